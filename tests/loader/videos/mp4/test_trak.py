"""A track's headers: timescales, rotation, where its media is."""

from __future__ import annotations

import struct

import pytest
from support.mp4_boxes import TURNED, HandTrack, box, film, full, patched, places, reads_of

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.index import Mp4Index, read_index


def index_of(clip: bytes) -> Mp4Index:
    return read_index(reads_of(clip)[0], len(clip), "a.mp4")


@pytest.mark.parametrize("long", [False, True])
def test_both_versions_of_the_headers(long: bool) -> None:
    """64-bit times, durations and offsets move the fields."""
    video = index_of(film(HandTrack(long=long, timescale=600, edits=[(1000, 10, 1)], matrix=TURNED[90]))).video
    assert (video.timescale, video.rotation_deg, video.pts.tolist()) == (600, 90, [-10, 0, 10])


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_the_turn_is_clockwise(turn: int) -> None:
    """Of the track, and of the movie on top of it."""
    assert index_of(film(HandTrack(matrix=TURNED[turn]))).video.rotation_deg == turn
    assert index_of(film(HandTrack(matrix=TURNED[90]), matrix=TURNED[turn])).video.rotation_deg == (90 + turn) % 360
    mirrored = index_of(film(HandTrack(matrix=(-65536, *TURNED[0][1:])), matrix=TURNED[turn])).video
    assert (mirrored.rotation_deg, mirrored.mirrored) == ((180 + turn) % 360, True)


@pytest.mark.parametrize("matrix", [(2, 1, 0, -1, 2, 0, 0, 0, 1), (0,) * 9])
def test_another_matrix_is_the_nearest_quarter(matrix: tuple[int, ...]) -> None:
    """Frames are turned by quarters only."""
    assert index_of(film(HandTrack(matrix=matrix))).video.rotation_deg == 0


@pytest.mark.parametrize("path", [(b"moov", b"mvhd"), (b"moov", b"trak", b"mdia", b"mdhd")])
def test_a_clock_without_ticks_is_refused(path: tuple[bytes, ...]) -> None:
    """Nothing could be divided by it."""
    clip = film()
    with pytest.raises(CorruptVideo, match="has 0 ticks a second"):
        index_of(patched(clip, places(clip, *path)[0][0] + 20, ">I", 0))


@pytest.mark.parametrize(
    ("reference", "here"),
    [
        (full(b"url ", flags=1), True),
        (full(b"url ", b"file:///media.mov\0"), False),
        (full(b"alis", b"media.mov"), False),
        (full(b"alis", b"media.mov", flags=1), True),
        (full(b"url "), True),
    ],
)
def test_media_in_another_file_is_not_read(reference: bytes, here: bool) -> None:
    """Offsets would be into that one; a reference that names nothing means this file."""
    clip = film(HandTrack(reference=reference))
    if here:
        assert index_of(clip).video.frames == 3
    else:
        with pytest.raises(UnsupportedVideo, match="another file"):
            index_of(clip)


@pytest.mark.parametrize(
    ("path", "match"),
    [
        ((b"moov", b"mvhd"), "no box mvhd in moov"),
        ((b"moov", b"trak", b"tkhd"), "no box tkhd in trak"),
        ((b"moov", b"trak", b"mdia"), "no box mdia in trak"),
        ((b"moov", b"trak", b"mdia", b"mdhd"), "no box mdhd in mdia"),
        ((b"moov", b"trak", b"mdia", b"hdlr"), "no box hdlr in mdia"),
        ((b"moov", b"trak", b"mdia", b"minf"), "no box minf in mdia"),
        ((b"moov", b"trak", b"mdia", b"minf", b"stbl"), "no box stbl in minf"),
        *(
            ((b"moov", b"trak", b"mdia", b"minf", b"stbl", kind), f"no box {other} in stbl")
            for kind, other in ((b"stsd", "stsd"), (b"stts", "stts"), (b"stsc", "stsc"), (b"stsz", "stz2"), (b"stco", "stco"))
        ),
    ],
)
def test_what_is_missing_is_named(path: tuple[bytes, ...], match: str) -> None:
    """Each box that a track needs."""
    clip = film()
    with pytest.raises(CorruptVideo, match=match):
        index_of(patched(clip, places(clip, *path)[0][0] + 4, ">4s", b"free"))  # type: ignore[arg-type]


def test_all_samples_hidden_is_no_video() -> None:
    """An edit behind the last."""
    with pytest.raises(CorruptVideo, match="track 1 shows none of its 3 samples"):
        index_of(film(HandTrack(edits=[(30, 5000, 1)])))


def test_two_descriptions_of_which_one_is_used() -> None:
    """The one that the samples name."""
    other = box(b"hvc1", bytes(6), struct.pack(">H", 1), bytes(16), struct.pack(">HH", 32, 24), bytes(50))
    track = HandTrack()
    video = index_of(film(HandTrack(entries=other + track.entries, descriptions=[2, 2, 2]))).video
    assert (video.codec, video.width, video.height, video.extradata) == ("avc1", 64, 48, b"\1\2\3")
