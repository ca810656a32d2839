"""Edit lists: what is shown, and when."""

from __future__ import annotations

import struct

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mp4_boxes import table

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.boxes import Box
from forebay_loader.videos.mp4.edit_list import MAX_EDITS, Edit, apply_edits, read_edits

TIMES = numpy.arange(0, 100, 10)
DURATIONS = numpy.full(10, 10)


def elst(*rows: tuple[int, int, int], version: int = 0) -> Box:
    data = table(b"elst", ">Qqhh" if version else ">Iihh", ((*row, 0) for row in rows), version)
    return Box(b"elst", 0, memoryview(data)[8:])


def shown(edits: list[Edit], sound: bool = False) -> list[tuple[int, int]]:
    """(sample, presentation time) of what is shown."""
    pts, visible = apply_edits(edits, TIMES, DURATIONS, sound)
    assert len(set(pts.tolist())) == len(TIMES)
    return [(number, int(pts[number])) for number in numpy.flatnonzero(visible)]


@pytest.mark.parametrize("version", [0, 1])
def test_an_empty_edit_delays(version: int) -> None:
    """Durations are ticks of the movie, begins ticks of the track."""
    edits = read_edits(elst((500, -1, 1), (2000, 1024, 1), version=version), 12800, 1000)
    assert edits == [Edit(1024, 1024 + 25600, 6400)]


def test_an_edit_without_a_duration_goes_on() -> None:
    """In a fragmented file nobody knew how long it would be."""
    assert read_edits(elst((0, 512, 1)), 12800, 1000) == [Edit(512, None, 0)]


def test_no_entries_show_everything() -> None:
    """As no list does."""
    assert read_edits(elst(), 12800, 1000) == []
    assert shown([]) == [(number, number * 10) for number in range(10)]


def test_a_list_that_shows_nothing_is_refused() -> None:
    """A track of empty edits."""
    with pytest.raises(CorruptVideo, match="shows nothing"):
        read_edits(elst((500, -1, 1)), 1000, 1000)


@pytest.mark.parametrize("rate", [0, 2, -1])
def test_another_speed_is_not_read(rate: int) -> None:
    """Nor a picture that stands still: its sample has no one time."""
    with pytest.raises(UnsupportedVideo, match=f"speed {rate}"):
        read_edits(elst((500, 0, rate)), 1000, 1000)


@pytest.mark.parametrize("row", [(0, 2**62, 1), (2**63, 0, 1), (2**63, -1, 1)])
def test_times_beyond_reason_are_refused(row: tuple[int, int, int]) -> None:
    """Sums of them would leave 64 bits."""
    with pytest.raises(CorruptVideo, match="an edit shows"):
        read_edits(elst(row, (5, 0, 1), version=1), 1000, 1000)


def test_very_many_edits_are_not_read() -> None:
    """Each is looked at in turn."""
    with pytest.raises(UnsupportedVideo, match=f"{MAX_EDITS + 1} edits"):
        read_edits(elst(*[(1, 0, 1)] * (MAX_EDITS + 1)), 1000, 1000)


def test_a_count_that_the_box_has_no_room_for() -> None:
    """Is refused before rows are made."""
    data = bytearray(table(b"elst", ">Iihh", [(1, 0, 1, 0)]))
    struct.pack_into(">I", data, 12, 2**31)
    with pytest.raises(CorruptVideo, match="rows of 12 bytes"):
        read_edits(Box(b"elst", 0, memoryview(bytes(data))[8:]), 1000, 1000)


def test_pictures_outside_are_hidden() -> None:
    """One that begins in the edit is shown whole, one that began before it is not."""
    assert shown([Edit(15, 45, 100)]) == [(2, 105), (3, 115), (4, 125)]


def test_sound_is_shown_where_some_of_it_is() -> None:
    """Its first unit begins before: what of it is heard is for whoever decodes."""
    assert shown([Edit(15, 45, 0)], sound=True) == [(1, -5), (2, 5), (3, 15), (4, 25)]


def test_pieces_in_any_order() -> None:
    """Each has its own times; what is hidden has times that no frame has."""
    assert shown([Edit(50, 80, 0), Edit(0, 20, 30)]) == [(0, 30), (1, 40), (5, 0), (6, 10), (7, 20)]


@pytest.mark.parametrize("edits", [[Edit(0, 50, 0), Edit(40, 60, 50)], [Edit(0, None, 0), Edit(40, 60, 50)]])
def test_a_part_shown_twice_is_not_read(edits: list[Edit]) -> None:
    """Its samples have two times."""
    with pytest.raises(UnsupportedVideo, match="twice"):
        apply_edits(edits, TIMES, DURATIONS, False)


def test_sound_in_pieces_is_not_read() -> None:
    """A unit at an edge is in both."""
    with pytest.raises(UnsupportedVideo, match="2 pieces"):
        apply_edits([Edit(0, 50, 0), Edit(60, 70, 50)], TIMES, DURATIONS, True)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), max_size=5))
def test_pieces_show_what_a_loop_shows(cuts: list[tuple[int, int]]) -> None:
    """Of each edit the pictures that begin in it, moved to where the edit is shown."""
    edits, media, clock = [], 0, 0
    for gap, length in cuts:
        edits.append(Edit(media + gap, media + gap + length, clock))
        media, clock = media + gap + length, clock + length
    expected = [
        (number, int(time) - edit.begin + edit.shown)
        for edit in edits
        for number, time in enumerate(TIMES)
        if edit.begin <= time < (edit.end or 0)
    ]
    if len(edits) > 1:
        assert shown(edits) == sorted(expected)
