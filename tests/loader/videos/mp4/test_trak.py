"""A track's headers: timescales, rotation, where its media is; its edit list: what is shown, and when."""

from __future__ import annotations

import struct

import numpy
import pytest
from support.mp4_boxes import TURNED, HandTrack, box, film, full, reads_of, table

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box
from forebay_loader.videos.mp4.index import Mp4Index, read_index
from forebay_loader.videos.mp4.trak import Edit, apply_edit, read_edit


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


TIMES = numpy.arange(0, 100, 10)
DURATIONS = numpy.full(10, 10)


def elst(*rows: tuple[int, int, int], version: int = 0) -> Box:
    data = table(b"elst", ">Qqhh" if version else ">Iihh", ((*row, 0) for row in rows), version)
    return Box(b"elst", 0, memoryview(data)[8:])


def shown(edit: Edit | None, sound: bool = False) -> list[tuple[int, int]]:
    """(sample, presentation time) of what is shown."""
    pts, visible = apply_edit(edit, TIMES, DURATIONS, sound)
    assert len(set(pts.tolist())) == len(TIMES)
    return [(number, int(pts[number])) for number in numpy.flatnonzero(visible)]


@pytest.mark.parametrize(
    ("rows", "version", "edit"),
    [
        (((500, -1, 1), (2000, 1024, 1)), 0, Edit(1024, 1024 + 25600, 6400)),
        (((500, -1, 1), (2000, 1024, 1)), 1, Edit(1024, 1024 + 25600, 6400)),
        (((0, 512, 1),), 0, Edit(512, None, 0)),  # 8.6.6.3: without a duration it goes on
        ((), 0, None),
    ],
)
def test_an_edit_is_read(rows: tuple[tuple[int, int, int], ...], version: int, edit: Edit | None) -> None:
    """Durations are ticks of the movie, begins ticks of the track; an empty edit delays."""
    assert read_edit(elst(*rows, version=version), 12800, 1000) == edit


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (((500, -1, 1),), CorruptVideo, "shows nothing"),
        *((((500, 0, rate),), UnsupportedVideo, f"speed {rate}") for rate in (0, 2, -1)),  # of a picture that stands, too
        *(((row, (5, 0, 1)), CorruptVideo, "an edit shows") for row in ((0, 2**62, 1), (2**63, 0, 1), (2**63, -1, 1))),
    ],
)
def test_an_edit_that_is_not_read(rows: tuple[tuple[int, int, int], ...], error: type[Exception], match: str) -> None:
    """Nothing shown, another speed, or times of which sums would leave 64 bits."""
    with pytest.raises(error, match=match):
        read_edit(elst(*rows, version=1), 1000, 1000)


def test_pictures_outside_are_hidden() -> None:
    """One that begins in the edit is shown whole, one that began before it is not; of sound all is shown of which some is."""
    assert shown(Edit(15, 45, 100)) == [(2, 105), (3, 115), (4, 125)]
    assert shown(Edit(15, 45, 0), sound=True) == [(1, -5), (2, 5), (3, 15), (4, 25)]
    assert shown(None) == [(number, number * 10) for number in range(10)]
