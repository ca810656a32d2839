"""Sample descriptions in the forms of ISO and of QuickTime."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mp4_boxes import AVC, HandTrack, box, film, full, reads_of

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, BoxCount
from forebay_loader.videos.mp4.index import Mp4Index, read_index
from forebay_loader.videos.mp4.sample_entry import SampleEntry, aac_shape, esds_config, extradata_of, read_sample_entry

ESDS = full(b"esds", b"\3\x19\0\1\0\4\x11\x40\x15", bytes(11), b"\5\2\x11\x90\6\1\2")  # AAC, 48 kHz, two channels


def sound(kind: bytes, *boxes: bytes, version: int = 0, channels: int = 2, bits: int = 16, rate: int = 48000, more: bytes = b"") -> bytes:
    fields = struct.pack(">HH4xHH4xI", version, 0, channels, bits, rate << 16)
    return box(kind, bytes(6), b"\0\1", fields, more, *boxes)


def entry_of(data: bytes, handler: bytes = b"soun", stsd_version: int = 0) -> SampleEntry:
    stsd = Box(b"stsd", 0, memoryview(struct.pack(">BxxxI", stsd_version, 1) + data))
    return read_sample_entry(stsd, 1, handler, BoxCount())


def index_of(*tracks: HandTrack) -> Mp4Index:
    clip = film(*tracks)
    return read_index(reads_of(clip)[0], len(clip), "a.mp4")


def test_a_picture_s_description() -> None:
    """Pixels as coded, and the decoder's own box."""
    entry = entry_of(AVC, b"vide")
    assert (entry.codec, entry.decoder, entry.extradata, entry.width, entry.height) == ("avc1", "h264", b"\1\2\3", 64, 48)


def test_a_sound_s_description() -> None:
    """What the decoder's configuration says goes before the fields."""
    entry = entry_of(sound(b"mp4a", ESDS, channels=1, rate=1000))
    assert entry == SampleEntry("mp4a", "aac", b"\x11\x90", 1, rate_hz=48000, channels=2)


def test_quicktime_has_more_fields() -> None:
    """16 bytes in version 1, 36 in version 2, where rate and channels are others; boxes may be one deeper."""
    first = entry_of(sound(b"mp4a", box(b"wave", box(b"frma", b"mp4a"), ESDS), version=1, more=bytes(16)))
    more = struct.pack(">IdIIIIII", 72, 96000.0, 6, 0x7F000000, 24, 2, 18, 1)
    second = entry_of(sound(b"mp4a", version=2, more=more))
    assert (first.decoder, first.rate_hz) == ("aac", 48000)
    assert (second.rate_hz, second.channels) == (96000, 6)


def test_iso_s_version_1_has_not() -> None:
    """Its description is told apart by the list's version; of a version that nobody wrote the fields are not known."""
    assert entry_of(sound(b"mp4a", ESDS, version=1), stsd_version=1).decoder == "aac"
    with pytest.raises(UnsupportedVideo, match="version 3"):
        entry_of(sound(b"mp4a", ESDS, version=3))


@pytest.mark.parametrize("kind", [b"encv", b"enca"])
def test_encrypted_media_is_not_read(kind: bytes) -> None:
    """Its bytes would decode to anything."""
    with pytest.raises(UnsupportedVideo, match=f"encrypted .{kind.decode()}"):
        entry_of(box(kind, bytes(100)))


def test_a_description_that_is_not_there() -> None:
    """A number beyond the list, and 0."""
    stsd = Box(b"stsd", 7, memoryview(bytes(8) + AVC))
    for number in (0, 2):
        with pytest.raises(CorruptVideo, match=f"has no description {number}"):
            read_sample_entry(stsd, number, b"vide", BoxCount())


def test_an_unknown_codec_has_no_decoder() -> None:
    """Its samples are found all the same."""
    entry = entry_of(box(b"xvid", AVC[8:]), b"vide")
    assert (entry.codec, entry.decoder) == ("xvid", "")


def test_a_rate_that_has_no_room_is_the_track_s() -> None:
    """16 bits hold no 96 kHz; the track's clock counts its frames."""
    entries = sound(b"fLaC", rate=0)
    index = index_of(HandTrack(), HandTrack(number=2, handler=b"soun", entries=entries, timescale=96000))
    assert index.audio is not None
    assert index.audio.rate_hz == 96000


def boxed(kind: bytes, payload: bytes) -> Box:
    return Box(kind, 0, memoryview(payload))


def esds(*payload: bytes) -> Box:
    return boxed(b"esds", full(b"esds", *payload)[8:])


@pytest.mark.parametrize("flags", [0x00, 0x20, 0x40, 0x80, 0xE0])
def test_optional_fields_of_a_descriptor(flags: int) -> None:
    """A stream that depends on another, has a URL, a clock of another."""
    optional = bytes(2 if flags & 0x80 else 0) + (b"\3abc" if flags & 0x40 else b"") + bytes(2 if flags & 0x20 else 0)
    config = b"\4\x10\x20" + bytes(12) + b"\5\1\x77"
    inside = bytes(2) + bytes([flags]) + optional + config
    assert esds_config(esds(b"\3" + bytes([len(inside)]) + inside)) == ("mpeg4", b"\x77")


def test_a_long_configuration_is_read_whole() -> None:
    """Its size takes two bytes."""
    config = bytes(range(200))
    inside = bytes(3) + b"\4\x81\x58\x40" + bytes(12) + b"\5\x81\x48" + config + b"\6\1\2"
    assert esds_config(esds(b"\3\x81\x61" + inside)) == ("aac", config)


@given(st.binary(max_size=60))
def test_any_descriptor_is_read_or_refused(payload: bytes) -> None:
    """Never another error, and never bytes that are not of the box."""
    try:
        _, config = esds_config(esds(payload))
    except CorruptVideo:
        return
    assert config in payload


@pytest.mark.parametrize(
    ("config", "rate", "channels"),
    [
        ("1190", 48000, 2),
        ("1208", 44100, 1),
        ("1030", 96000, 6),
        ("2b920800", 44100, 2),  # spectral band replication: 22,050 Hz heard at 44,100
        ("eb8a0800", 44100, 2),  # and parametric stereo, one channel heard as two
        ("17801f4008", 16000, 1),  # a rate that no table has
        ("1608", 7350, 1),
        ("1780", 0, 0),
        ("", 96000, 0),
        ("f94640", 48000, 2),  # a kind beyond 30
    ],
)
def test_what_an_aac_decoder_gives(config: str, rate: int, channels: int) -> None:
    """Rate and channels of an AudioSpecificConfig."""
    assert aac_shape(bytes.fromhex(config)) == (rate, channels)


@given(st.binary(max_size=12))
def test_any_aac_configuration_is_read(config: bytes) -> None:
    """However short."""
    rate, channels = aac_shape(config)
    assert 0 <= rate < 2**24
    assert 0 <= channels <= 24


def test_opus_numbers_are_turned() -> None:
    """Big-endian in the box, little-endian in the header that decoders take."""
    box = boxed(b"dOps", bytes.fromhex("00 02 0138 0000bb80 0000 00"))
    assert extradata_of({b"dOps": box}) == b"OpusHead" + bytes.fromhex("01 02 3801 80bb0000 0000 00")
