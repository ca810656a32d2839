"""Bytes of bodies in memory: how much all may hold; what a window gives is exact bytes, or FellBehind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import FellBehind
from forebay_proxy.transfer.buffers import BUDGET_BYTES, MAX_UNIT_BYTES, MIN_UNIT_BYTES, BufferBudget, MemoryWindow

DATA = bytes(index * 31 % 251 for index in range(4000))


def test_a_lone_holder_has_the_largest_unit() -> None:
    """1 MiB, what one system call moves well; a fetch may have more."""
    assert BufferBudget().readers.unit_bytes == BufferBudget().windows.unit_bytes == MAX_UNIT_BYTES
    assert BufferBudget().fetches.unit_bytes >= MAX_UNIT_BYTES


@given(st.integers(0, 128), st.integers(0, 32), st.integers(0, 1024))
def test_all_holders_together_keep_to_the_budget(fetches: int, windows: int, readers: int) -> None:
    """64 MiB for as many as a full node has."""
    buffers = BufferBudget()
    buffers.fetches.holders, buffers.windows.holders, buffers.readers.holders = fetches, windows, readers
    shares = (buffers.fetches, buffers.windows, buffers.readers)
    assert sum(share.holders * share._per_holder * share.unit_bytes for share in shares) <= BUDGET_BYTES


def test_the_unit_stops_shrinking() -> None:
    """Below 64 KiB, two of which a fetch may have, the calls cost more than the bytes."""
    buffers = BufferBudget()
    buffers.fetches.holders = 10_000
    assert buffers.fetches.unit_bytes == MIN_UNIT_BYTES // 2


def test_a_holder_leaves_whatever_happens() -> None:
    """Also by an exception."""
    share = BufferBudget().fetches

    def fail() -> None:
        with share.held():
            assert share.holders == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert share.holders == 0


@given(st.lists(st.integers(0, 200), min_size=1, max_size=200))
def test_windows_that_stay_full_leave_the_others_what_is_left(order: list[int]) -> None:
    """Whoever comes and in whatever order they fill: the share, and one small piece for each that holds nothing else."""
    share = BufferBudget().windows
    held: dict[int, int] = {}
    for who in order:
        if who not in held:
            held[who] = 0
            share.holders += 1
        while not held[who] or held[who] + share.piece_bytes <= share.allowance(held[who]):
            piece = share.piece_bytes
            held[who] += piece
            share.held_bytes += piece
    assert share.held_bytes <= share.total_bytes + len(held) * share._smallest


# The window


@given(
    st.integers(0, 100),
    st.integers(10, 300),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 120)), max_size=120),
)
def test_every_reader_gets_exact_bytes_or_falls_behind(start: int, capacity: int, steps: list[tuple[int, int]]) -> None:
    """A fetch and three readers in any order; the window never holds more than its capacity, or one piece."""
    window, positions = MemoryWindow(start), [start, start, start]
    for who, size in steps:
        if who == 3:
            piece = DATA[window.end : window.end + size]
            if piece and window.room(len(piece), capacity, max(positions)):
                window.append(piece)
                assert len(window) <= max(capacity, len(piece))
            continue
        try:
            view = window.read(positions[who])
        except FellBehind:
            assert positions[who] < window.start
            positions[who] = window.end  # it goes on elsewhere
            continue
        if view is None:
            assert positions[who] == window.end
            continue
        part = view[:size]
        assert bytes(part) == DATA[positions[who] : positions[who] + len(part)]
        positions[who] += len(part)


def test_only_what_the_fastest_has_passed_is_dropped() -> None:
    """So a lone reader never falls behind: the fetch waits."""
    window = MemoryWindow(0)
    window.append(b"a" * 10)
    assert not window.room(10, 15, fastest=9)
    assert window.room(10, 15, fastest=10)


def test_an_empty_window_takes_anything() -> None:
    """A piece larger than the capacity passes, alone."""
    assert MemoryWindow(0).room(1000, 10, fastest=0)


def test_the_end_of_the_window_is_no_error() -> None:
    """The reader waits there."""
    assert MemoryWindow(7).read(7) is None


def test_who_is_before_the_window_fell_behind() -> None:
    """It hears where the window is."""
    window = MemoryWindow(5)
    window.append(b"x")
    with pytest.raises(FellBehind, match="moved on to 5"):
        window.read(4)
