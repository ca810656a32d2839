"""What decoders are opened with, from the boxes that say it. What FFmpeg makes of the same boxes is compared in test_against_ffmpeg.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mp4_boxes import full

from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.mp4.boxes import Box
from forebay_loader.videos.mp4.sample_entry import aac_shape, esds_config, extradata_of, pcm_format


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


def test_a_descriptor_s_size_has_seven_bits_a_byte() -> None:
    """Four bytes, as most write it."""
    assert esds_config(esds(b"\3\x80\x80\x80\x15\0\1\0\4\x80\x80\x80\x0d\x40", bytes(12))) == ("aac", b"")


def test_a_long_configuration_is_read_whole() -> None:
    """Its size takes two bytes."""
    config = bytes(range(200))
    inside = bytes(3) + b"\4\x81\x58\x40" + bytes(12) + b"\5\x81\x48" + config + b"\6\1\2"
    assert esds_config(esds(b"\3\x81\x61" + inside)) == ("aac", config)


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (b"\4\x13\0\1\0\4\x0f\x40" + bytes(12) + b"\5\1\x77", "has no descriptor 3 at its byte 4"),
        (b"\3\x15\0\1\0\5\x0f\x40" + bytes(12) + b"\5\1\x77", "has no descriptor 4 at its byte 9"),
        (b"\3\x15\0\1\0\4\x0f\x40" + bytes(12) + b"\5\2\x77", "a descriptor of 2 bytes at byte 24"),
        (b"\3\x15\0\1\0\4\x10\x40" + bytes(12) + b"\5\2\x77\x78", "a descriptor of 2 bytes at byte 24"),
    ],
)
def test_what_is_wrong_with_a_descriptor_is_named(payload: bytes, match: str) -> None:
    """Another tag; a size beyond the box, or beyond the descriptor around it, is never cut to what is there."""
    with pytest.raises(CorruptVideo, match=match):
        esds_config(esds(payload))


@pytest.mark.parametrize("payload", [b"", b"\3", b"\3\x7f", b"\3\xff\xff\xff\xff", b"\4\x10", b"\3\x04\0\1\0\5", b"\3\x05\0\1\0\4\x60"])
def test_a_broken_descriptor_is_refused(payload: bytes) -> None:
    """Cut short, too long, of another tag."""
    with pytest.raises(CorruptVideo, match="esds"):
        esds_config(esds(payload))


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


@pytest.mark.parametrize(
    ("kind", "bits", "flags", "boxes", "expected"),
    [
        (b"sowt", 16, 0, {}, ("pcm_s16le", 2)),
        (b"twos", 16, 0, {}, ("pcm_s16be", 2)),
        (b"twos", 8, 0, {}, ("pcm_s8", 1)),
        (b"in24", 16, 0, {}, ("pcm_s24be", 3)),
        (b"in24", 16, 0, {b"enda": b"\0\1"}, ("pcm_s24le", 3)),
        (b"fl32", 16, 0, {b"enda": b"\0\0"}, ("pcm_f32be", 4)),
        (b"lpcm", 32, 1, {}, ("pcm_f32le", 4)),
        (b"lpcm", 24, 2, {}, ("pcm_s24be", 3)),
        (b"lpcm", 17, 2, {}, ("", 0)),
        (b"ipcm", 0, 0, {b"pcmC": b"\0\0\0\0\1\x18"}, ("pcm_s24le", 3)),
        (b"fpcm", 0, 0, {b"pcmC": b"\0\0\0\0\0\x40"}, ("pcm_f64be", 8)),
        (b"fpcm", 0, 0, {b"pcmC": b"\0\0\0\0\0\x10"}, ("", 0)),
        (b"ipcm", 16, 0, {}, ("", 0)),
        (b"ulaw", 16, 0, {}, ("pcm_mulaw", 1)),
        (b"mp4a", 16, 0, {}, ("", 0)),
    ],
)
def test_uncompressed_sound(kind: bytes, bits: int, flags: int, boxes: dict[bytes, bytes], expected: tuple[str, int]) -> None:
    """Each form by FFmpeg's name, and the bytes of one channel."""
    assert pcm_format(kind, bits, flags, {name: boxed(name, payload) for name, payload in boxes.items()}) == expected


def test_opus_numbers_are_turned() -> None:
    """Big-endian in the box, little-endian in the header that decoders take."""
    box = boxed(b"dOps", bytes.fromhex("00 02 0138 0000bb80 0000 00"))
    assert extradata_of({b"dOps": box}) == b"OpusHead" + bytes.fromhex("01 02 3801 80bb0000 0000 00")


def test_nothing_is_said_by_no_box() -> None:
    """Some codecs need nothing."""
    assert extradata_of({}) == b""
