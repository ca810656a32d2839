"""Sample descriptions (stsd, ISO/IEC 14496-12, 8.5.2 and 12): what a decoder is made of."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, BoxCount, name_of

__all__ = ["CONFIGURATIONS", "UNCOMPRESSED", "SampleEntry", "aac_shape", "esds_config", "extradata_of", "read_sample_entry"]


# Boxes that configure a decoder, as what FFmpeg's decoders take for extradata (the layouts: ISO/IEC 14496-1, 14496-14, 14496-15, 23003-5,
# the AV1, Opus and FLAC mappings, and QuickTime's).
WHOLE = (b"avcC", b"hvcC", b"vvcC", b"av1C")  # a decoder takes the payload as it is
CONFIGURATIONS = frozenset([*WHOLE, b"glbl", b"esds", b"dOps", b"dfLa", b"alac", b"wave"])

# ISO/IEC 14496-3, tables 1.18 and 1.19; kinds of audio objects that say a second rate, the one they are heard at.
AAC_RATES_HZ = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
AAC_CHANNELS = (0, 1, 2, 3, 4, 5, 6, 8, 0, 0, 0, 7, 8, 24, 8, 0)
SPECTRAL_BANDS, PARAMETRIC_STEREO = (5, 29), 29

# ISO/IEC 14496-1, table 5: what an elementary stream descriptor says it is.
OBJECT_TYPES = {
    0x20: "mpeg4", 0x21: "h264", 0x23: "hevc", 0x6A: "mpeg1video", 0x6C: "mjpeg", 0x6D: "png", 0x6E: "jpeg2000",
    **dict.fromkeys(range(0x60, 0x66), "mpeg2video"),
    0x40: "aac", 0x66: "aac", 0x67: "aac", 0x68: "aac", 0x69: "mp3", 0x6B: "mp3", 0xA5: "ac3", 0xA6: "eac3", 0xA9: "dca", 0xAD: "opus",
    0xC1: "flac", 0xDD: "vorbis",
}  # fmt: skip
ES, DECODER_CONFIG, DECODER_SPECIFIC = 3, 4, 5  # tags of descriptors

# Sound whose samples are frames of numbers, by the million, and not packets: left to FFmpeg's demuxer.
UNCOMPRESSED = frozenset(
    (b"ipcm", b"fpcm", b"lpcm", b"sowt", b"twos", b"in24", b"in32", b"fl32", b"fl64", b"ulaw", b"alaw", b"raw ", b"NONE")
)


def extradata_of(boxes: dict[bytes, Box]) -> bytes:
    """What the codec's own box says; b"" without one."""
    for kind in WHOLE:
        if kind in boxes:
            return bytes(boxes[kind].data)
    if b"dOps" in boxes:
        return _opus_head(boxes[b"dOps"])
    if b"dfLa" in boxes:  # a full box, then the metadata block STREAMINFO with a header of four bytes
        return bytes(boxes[b"dfLa"].data[8:42])
    if b"alac" in boxes:  # the decoder wants the box itself
        return struct.pack(">I4s", len(boxes[b"alac"].data) + 8, b"alac") + bytes(boxes[b"alac"].data)
    if b"esds" in boxes:
        return esds_config(boxes[b"esds"])[1]
    return bytes(boxes[b"glbl"].data) if b"glbl" in boxes else b""  # FFmpeg's own, for codecs that have no box of theirs


def _opus_head(box: Box) -> bytes:
    """An Opus header: version 1, and its numbers the other way round."""
    _, channels, pre_skip, rate, gain = box.fields(0, ">BBHIh")
    return b"OpusHead" + struct.pack("<BBHIh", 1, channels, pre_skip, rate, gain) + bytes(box.data[10:])


def esds_config(esds: Box) -> tuple[str, bytes]:
    """``(FFmpeg's name of the decoder, "" if none is known, DecoderSpecificInfo)`` of an elementary stream descriptor."""
    place, end = _descriptor(esds, 4, len(esds.data), ES)
    flags = esds.number(place + 2, ">B")
    place += 3 + (2 if flags & 0x80 else 0)
    if flags & 0x40:
        place += 1 + esds.number(place, ">B")
    place += 2 if flags & 0x20 else 0
    place, end = _descriptor(esds, place, end, DECODER_CONFIG)
    decoder = OBJECT_TYPES.get(esds.number(place, ">B"), "")
    if place + 13 >= end or esds.data[place + 13] != DECODER_SPECIFIC:
        return decoder, b""
    begin, end = _descriptor(esds, place + 13, end, DECODER_SPECIFIC)
    return decoder, bytes(esds.data[begin:end])


def _descriptor(box: Box, place: int, end: int, tag: int) -> tuple[int, int]:
    """``(begin, end)`` of the payload of the descriptor at ``place``: its size has seven bits a byte, four bytes at most."""
    if box.number(place, ">B") != tag:
        raise CorruptVideo(f"box esds at byte {box.at} has no descriptor {tag} at its byte {place}")
    size = 0
    for step in range(1, 5):
        byte = box.number(place + step, ">B")
        size = size << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    begin = place + step + 1
    if begin + size > min(end, len(box.data)):
        raise box.too_short(f"a descriptor of {size} bytes at byte {place}")
    return begin, begin + size


def aac_shape(config: bytes) -> tuple[int, int]:
    """``(samples a second, channels)`` that a decoder gives for an AudioSpecificConfig (ISO/IEC 14496-3, 1.6.2.1), 0 for what it does not
    say. A sample entry has no room for 96 kHz, and often says 2 channels whatever they are."""
    bits = int.from_bytes(config[:10].ljust(10, b"\0"), "big")
    place = 80

    def take(count: int) -> int:
        nonlocal place
        place -= count
        return bits >> place & (1 << count) - 1

    def take_kind() -> int:
        kind = take(5)
        return 32 + take(6) if kind == 31 else kind

    def take_rate() -> int:
        number = take(4)
        return take(24) if number == 15 else AAC_RATES_HZ[number] if number < len(AAC_RATES_HZ) else 0

    kind, rate, channels = take_kind(), take_rate(), take(4)
    if kind in SPECTRAL_BANDS:
        rate = take_rate()
    return rate, AAC_CHANNELS[channels] * (2 if kind == PARAMETRIC_STEREO and channels == 1 else 1)


# FFmpeg's names of the decoders.
DECODERS = {
    b"avc1": "h264", b"avc2": "h264", b"avc3": "h264", b"avc4": "h264", b"dvav": "h264", b"dva1": "h264",
    b"hvc1": "hevc", b"hev1": "hevc", b"dvh1": "hevc", b"dvhe": "hevc", b"vvc1": "vvc", b"vvi1": "vvc",
    b"av01": "libdav1d", b"dav1": "libdav1d",  # FFmpeg's own, av1, needs a graphics card
    b"vp08": "vp8", b"vp09": "vp9", b"s263": "h263", b"h263": "h263",
    b"jpeg": "mjpeg", b"mjpa": "mjpeg", b"png ": "png", b"mjp2": "jpeg2000", b"CFHD": "cfhd", b"AVdn": "dnxhd", b"FFV1": "ffv1",
    b"rle ": "qtrle", b"SVQ1": "svq1", b"cvid": "cinepak", b"rpza": "rpza", b"v210": "v210", b"r210": "r210",
    b"m1v ": "mpeg1video", b"m1v1": "mpeg1video", b"m2v1": "mpeg2video",
    **dict.fromkeys((b"dvc ", b"dvcp", b"dvpp", b"dv5p", b"dv5n", b"AVdv"), "dvvideo"),
    b"apch": "prores", b"apcn": "prores", b"apcs": "prores", b"apco": "prores", b"ap4h": "prores", b"ap4x": "prores",
    b"Opus": "opus", b"fLaC": "flac", b"alac": "alac", b"ac-3": "ac3", b"ec-3": "eac3", b".mp3": "mp3", b"mp3 ": "mp3",
}  # fmt: skip
PALETTES = (b"rle ", b"cvid")  # of QuickTime's, those whose pixels are numbers in a table where they have few bits
ENCRYPTED = (b"encv", b"enca", b"drmi", b"drms")
GREY = 32  # is added to a depth: 40 are 256 levels of grey
VIDEO_BYTES, AUDIO_BYTES = 78, 28  # of the fields before the boxes inside (12.1.3, 12.2.3)
QUICKTIME_BYTES = {0: 0, 1: 16, 2: 36}  # of more fields, by the version of QuickTime's sound description


@dataclass(frozen=True)
class SampleEntry:
    """``codec`` is the entry's four characters, ``decoder`` FFmpeg's name of what decodes it ("" if none is known), ``extradata`` what that
    is opened with, as FFmpeg's own demuxer gives it. ``width`` and ``height`` are pixels as coded; of sound ``rate_hz`` and ``channels``.
    ``reference`` is the number of the data reference, from 1. ``tag`` is the
    entry's four characters as they are, ``depth`` of pictures bits of a pixel."""

    codec: str
    decoder: str
    extradata: bytes
    reference: int
    width: int = 0
    height: int = 0
    rate_hz: int = 0
    channels: int = 0
    tag: bytes = b""
    depth: int = 0


def read_sample_entry(stsd: Box, number: int, handler: bytes, count: BoxCount) -> SampleEntry:
    """Description ``number`` (from 1) of a track with this handler, ``vide`` or ``soun``. Raises ``CorruptVideo`` where there is none,
    ``UnsupportedVideo`` for an encrypted one."""
    entry = next((entry for index, entry in enumerate(stsd.children(None, count, skip=8), 1) if index == number), None)
    if entry is None:
        raise CorruptVideo(f"box stsd at byte {stsd.at} has no description {number}")
    if entry.kind in ENCRYPTED:
        raise UnsupportedVideo(f"encrypted ({name_of(entry.kind)})")
    return _video(entry, count) if handler == b"vide" else _audio(entry, stsd.version, count)


def _video(entry: Box, count: BoxCount) -> SampleEntry:
    (width, height), depth = entry.fields(24, ">HH"), entry.number(74, ">H")
    boxes = entry.only(CONFIGURATIONS, count, skip=VIDEO_BYTES)
    decoder, extradata = _decoder(entry.kind, boxes)
    if entry.kind in PALETTES and depth & GREY - 1 <= 8:
        decoder = ""  # the table is beside the packets, where only FFmpeg's demuxer puts it
    return SampleEntry(
        name_of(entry.kind), decoder, extradata, entry.number(6, ">H"), width=width, height=height, tag=entry.kind, depth=depth
    )


def _audio(entry: Box, stsd_version: int, count: BoxCount) -> SampleEntry:
    version, channels, rate = *entry.fields(8, ">H"), *entry.fields(16, ">H"), entry.number(24) >> 16
    layout = version if stsd_version == 0 else 0  # in ISO files version 1 has the fields of version 0 (12.2.3)
    if layout not in QUICKTIME_BYTES:
        raise UnsupportedVideo(f"sound description of version {layout}")
    if layout == 2:
        exact_rate, channels = entry.fields(AUDIO_BYTES + 4, ">dI")
        rate = int(exact_rate) if 0 < exact_rate < 1e9 else 0
    boxes = entry.only(CONFIGURATIONS, count, skip=AUDIO_BYTES + QUICKTIME_BYTES[layout])
    if b"wave" in boxes:  # QuickTime puts them one box deeper
        boxes = {**boxes[b"wave"].only(CONFIGURATIONS - {b"wave"}, count), **boxes}
    decoder, extradata = _decoder(entry.kind, boxes)
    if decoder == "aac" and extradata:
        said_rate, said_channels = aac_shape(extradata)
        rate, channels = said_rate or rate, said_channels or channels
    return SampleEntry(name_of(entry.kind), decoder, extradata, entry.number(6, ">H"), rate_hz=rate, channels=channels)


def _decoder(kind: bytes, boxes: dict[bytes, Box]) -> tuple[str, bytes]:
    """``(FFmpeg's name, extradata)``; an esds names its codec itself."""
    if kind in DECODERS:
        return DECODERS[kind], extradata_of(boxes)
    return esds_config(boxes[b"esds"]) if b"esds" in boxes else ("", extradata_of(boxes))
