"""Bytes of bodies in memory: how much all may hold; what a window gives is exact bytes, or FellBehind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import FellBehind
from forebay_proxy.transfer.buffers import BUDGET_BYTES, MAX_UNIT_BYTES, MIN_UNIT_BYTES, BufferBudget, MemoryWindow

DATA = bytes(index * 31 % 251 for index in range(4000))


def test_the_unit_shrinks_with_the_holders_down_to_a_least() -> None:
    """A lone one has what one system call moves well; below 64 KiB, two of which a fetch may have, calls cost more than the bytes."""
    buffers = BufferBudget()
    assert buffers.readers.unit_bytes == buffers.windows.unit_bytes == MAX_UNIT_BYTES <= buffers.fetches.unit_bytes
    buffers.fetches.holders = 10_000
    assert buffers.fetches.unit_bytes == MIN_UNIT_BYTES // 2


@given(st.integers(0, 128), st.integers(0, 32), st.integers(0, 1024))
def test_all_holders_together_keep_to_the_budget(fetches: int, windows: int, readers: int) -> None:
    """64 MiB for as many as a full node has."""
    buffers = BufferBudget()
    buffers.fetches.holders, buffers.windows.holders, buffers.readers.holders = fetches, windows, readers
    shares = (buffers.fetches, buffers.windows, buffers.readers)
    assert sum(share.holders * share._per_holder * share.unit_bytes for share in shares) <= BUDGET_BYTES


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
    """So a lone reader never falls behind: the fetch waits. An empty window takes a piece of any size."""
    window = MemoryWindow(0)
    assert window.room(1000, 10, fastest=0)
    window.append(b"a" * 10)
    assert not window.room(10, 15, fastest=9)
    assert window.room(10, 15, fastest=10)
