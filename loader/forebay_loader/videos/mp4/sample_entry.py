"""Sample descriptions (stsd, ISO/IEC 14496-12, 8.5.2 and 12): what a decoder is made of."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, BoxCount, name_of
from forebay_loader.videos.mp4.codec_boxes import CONFIGURATIONS, aac_shape, esds_config, extradata_of, pcm_format

__all__ = ["SampleEntry", "read_sample_entry"]

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
    is opened with, as FFmpeg's own demuxer gives it. ``width`` and ``height`` are pixels as coded; of sound ``rate_hz`` and ``channels``,
    and ``pcm_bytes``, of one frame of uncompressed sound, else 0. ``reference`` is the number of the data reference, from 1. ``tag`` is the
    entry's four characters as they are, ``depth`` of pictures bits of a pixel."""

    codec: str
    decoder: str
    extradata: bytes
    reference: int
    width: int = 0
    height: int = 0
    rate_hz: int = 0
    channels: int = 0
    pcm_bytes: int = 0
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
    version, channels, bits, rate = *entry.fields(8, ">H"), *entry.fields(16, ">HH"), entry.number(24) >> 16
    layout = version if stsd_version == 0 else 0  # in ISO files version 1 has the fields of version 0 (12.2.3)
    if layout not in QUICKTIME_BYTES:
        raise UnsupportedVideo(f"sound description of version {layout}")
    lpcm_flags = 0
    if layout == 2:
        exact_rate, channels, _, bits, lpcm_flags = entry.fields(AUDIO_BYTES + 4, ">dIIII")
        rate = int(exact_rate) if 0 < exact_rate < 1e9 else 0
    boxes = entry.only(CONFIGURATIONS, count, skip=AUDIO_BYTES + QUICKTIME_BYTES[layout])
    if b"wave" in boxes:  # QuickTime puts them one box deeper
        boxes = {**boxes[b"wave"].only(CONFIGURATIONS - {b"wave"}, count), **boxes}
    decoder, sample_bytes = pcm_format(entry.kind, bits, lpcm_flags, boxes)
    extradata = b""
    if not sample_bytes:
        decoder, extradata = _decoder(entry.kind, boxes)
    if decoder == "aac" and extradata:
        said_rate, said_channels = aac_shape(extradata)
        rate, channels = said_rate or rate, said_channels or channels
    return SampleEntry(
        name_of(entry.kind), decoder, extradata, entry.number(6, ">H"), rate_hz=rate, channels=channels, pcm_bytes=sample_bytes * channels
    )


def _decoder(kind: bytes, boxes: dict[bytes, Box]) -> tuple[str, bytes]:
    """``(FFmpeg's name, extradata)``; an esds names its codec itself."""
    if kind in DECODERS:
        return DECODERS[kind], extradata_of(boxes)
    return esds_config(boxes[b"esds"]) if b"esds" in boxes else ("", extradata_of(boxes))
