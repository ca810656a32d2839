"""Sample descriptions in the forms of ISO and of QuickTime."""

from __future__ import annotations

import struct

import pytest
from support.mp4_boxes import AVC, HandTrack, box, film, full, reads_of

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box, BoxCount
from forebay_loader.videos.mp4.index import Mp4Index, read_index
from forebay_loader.videos.mp4.sample_entry import SampleEntry, read_sample_entry

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
    second = entry_of(sound(b"lpcm", version=2, more=more))
    assert (first.decoder, first.rate_hz) == ("aac", 48000)
    assert (second.decoder, second.rate_hz, second.channels, second.pcm_bytes) == ("pcm_s24be", 96000, 6, 18)


def test_iso_s_version_1_has_not() -> None:
    """Its description is told apart by the list's version."""
    assert entry_of(sound(b"mp4a", ESDS, version=1), stsd_version=1).decoder == "aac"


def test_a_version_that_nobody_wrote() -> None:
    """Its fields are not known."""
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


def test_a_description_cut_short() -> None:
    """Fields that are not there are not read."""
    with pytest.raises(CorruptVideo, match="avc1"):
        entry_of(box(b"avc1", bytes(20)), b"vide")


def test_sound_that_cannot_be_read_leaves_the_pictures() -> None:
    """And says why."""
    index = index_of(HandTrack(), HandTrack(number=2, handler=b"soun", entries=box(b"enca", bytes(100))))
    assert index.audio is None
    assert index.audio_fault == "encrypted (enca)"


def test_a_rate_that_has_no_room_is_the_track_s() -> None:
    """16 bits hold no 96 kHz; the track's clock counts its frames."""
    entries = sound(b"fLaC", rate=0)
    index = index_of(HandTrack(), HandTrack(number=2, handler=b"soun", entries=entries, timescale=96000))
    assert index.audio is not None
    assert index.audio.rate_hz == 96000
