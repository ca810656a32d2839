"""How much memory bodies may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.transfer.buffer_budget import BUDGET_BYTES, MAX_UNIT_BYTES, MIN_UNIT_BYTES, BufferBudget


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
