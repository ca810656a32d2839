"""Runs of samples in a fragment: what each has of its own, and what the fragment says for all."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mp4_boxes import full

from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.mp4.boxes import Box
from forebay_loader.videos.mp4.sample_table import SampleTable, joined
from forebay_loader.videos.mp4.track_run import PlacedRun, SampleDefaults, TrackRun, is_pcm, read_run, spread_runs

DEFAULTS = SampleDefaults(description=1, duration=10, size=100, flags=0x01010000)


def run_of(flags: int, *numbers: int, total: int = 2) -> TrackRun:
    data = full(b"trun", struct.pack(f">I{len(numbers)}i", total, *numbers), flags=flags)
    return read_run(Box(b"trun", 0, memoryview(data)[8:]), DEFAULTS)


def samples(*runs: TrackRun, begin: int = 0, dts: int = 0, sound: bool = False) -> SampleTable:
    """All of them, each run at the same place."""
    return joined(spread_runs([PlacedRun(run, begin, dts) for run in runs], sound))


def test_what_a_run_does_not_say_the_fragment_does() -> None:
    """Sizes, durations and flags of all samples."""
    table = samples(run_of(0), begin=1000, dts=50)
    assert (table.offsets.tolist(), table.sizes.tolist()) == ([1000, 1100], [100, 100])
    assert (table.dts.tolist(), table.durations.tolist(), table.shifts.tolist()) == ([50, 60], [10, 10], [0, 0])
    assert table.key.tolist() == [False, False]


def test_samples_say_what_is_theirs() -> None:
    """All four fields, in their order; composition offsets may be negative."""
    table = samples(run_of(0xF00, 5, 7, 0x02000000, -3, 6, 8, 0x00010000, 4))
    assert (table.durations.tolist(), table.sizes.tolist(), table.shifts.tolist()) == ([5, 6], [7, 8], [-3, 4])
    assert table.key.tolist() == [True, False]


def test_the_first_sample_has_flags_of_its_own() -> None:
    """So that one field says that a run begins with a keyframe; the run may begin at a byte of its own too."""
    run = run_of(0x5, -20, 0x02000000)
    assert run.offset == -20
    assert samples(run, run_of(0x4, 0x02000000, total=0), run).key.tolist() == [True, False] * 2


@pytest.mark.parametrize(("flags", "key"), [(0, True), (0x02000000, True), (0x00010000, False), (0x01000000, False)])
def test_a_keyframe_is_a_sync_sample_made_of_no_other(flags: int, key: bool) -> None:
    """Either flag tells it apart."""
    assert samples(run_of(0x400, flags, total=1)).key.tolist() == [key]


def test_sound_can_begin_anywhere() -> None:
    """Whatever its flags say."""
    assert samples(run_of(0), sound=True).key.tolist() == [True, True]


RUNS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.sampled_from([0, 0x00010000])), max_size=3),
        st.sampled_from([0, 0x100, 0x200, 0x300, 0x700]),
        st.none() | st.sampled_from([0, 0x01000000]),
        st.integers(0, 1000),
        st.integers(0, 1000),
    ),
    max_size=6,
)


@given(RUNS)
def test_all_at_once_is_as_one_by_one(runs: list[tuple[list[tuple[int, int, int]], int, int | None, int, int]]) -> None:
    """Runs of any fields in any order give what a loop over their samples gives."""
    expected, placed = [], []
    for rows, flags, first_flags, begin, dts in runs:
        numbers = [n for row in rows for n, flag in zip(row, (0x100, 0x200, 0x400), strict=True) if flags & flag]
        head = [] if first_flags is None else [first_flags]
        placed.append(PlacedRun(run_of(flags | (4 if head else 0), *head, *numbers, total=len(rows)), begin, dts))
        at, clock = begin, dts
        for number, row in enumerate(rows):
            duration, size, own = (
                n if flags & flag else default
                for n, flag, default in zip(row, (0x100, 0x200, 0x400), (DEFAULTS.duration, DEFAULTS.size, DEFAULTS.flags), strict=True)
            )
            own = head[0] if head and number == 0 else own
            expected.append((at, size, clock, duration, 0, own & 0x01010000 == 0))
            at, clock = at + size, clock + duration
    tables = spread_runs(placed, sound=False)
    found = [
        row
        for table in tables
        for row in zip(*(getattr(table, name).tolist() for name in ("offsets", "sizes", "dts", "durations", "shifts", "key")), strict=True)
    ]
    assert found == expected


def test_sums_are_those_of_all_samples() -> None:
    """Known without a step for each, where all are alike."""
    assert run_of(0, total=2**32 - 1).sum("size") == (2**32 - 1) * 100
    assert run_of(0x200, 7, -1).sum("size") == 7 + 2**32 - 1
    assert run_of(0x200, 7, 8).sum("duration") == 20


@pytest.mark.parametrize("flags", [0x100, 0x200, 0xF00])
def test_no_count_is_believed(flags: int) -> None:
    """The box has to have room for its rows."""
    with pytest.raises(CorruptVideo, match="box trun"):
        run_of(flags, 1, 2, 3, 4, total=2**32 - 1)


@pytest.mark.parametrize("flags", [0x1, 0x4, 0x5])
def test_what_is_announced_is_there(flags: int) -> None:
    """A box cut short is refused."""
    with pytest.raises(CorruptVideo, match="box trun"):
        run_of(flags)


def test_uncompressed_sound_in_a_run() -> None:
    """A sample a frame, all alike: units are made of it, between runs that are none."""
    run = TrackRun(3000, None, None, None, SampleDefaults(1, 1, 4, 0))
    assert is_pcm(run, 4)
    assert not is_pcm(run, 2)
    assert not is_pcm(run, 0)
    other = run_of(0, total=1)
    table = joined(spread_runs([PlacedRun(other, 0, 0), PlacedRun(run, 100, 7), PlacedRun(other, 5, 5)], True, 4))
    assert (table.offsets.tolist(), table.dts.tolist()) == ([0, 100, 4196, 8292, 5], [0, 7, 1031, 2055, 5])
