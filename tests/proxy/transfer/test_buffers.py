"""Bytes of bodies in memory: how much all may hold, and whose it is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.transfer.buffers import (
    KEPT_SEGMENTS,
    MAX_UNIT_BYTES,
    MEMORY_SEGMENTS,
    MIN_UNIT_BYTES,
    READERS_BYTES,
    BufferBudget,
    MemorySegments,
    Share,
)


@given(st.integers(0, 10_000))
def test_the_unit_shrinks_with_the_holders_down_to_a_least(holders: int) -> None:
    """A lone one has what one system call moves well; below 16 KiB calls cost more than the bytes."""
    share = Share()
    share.holders = holders
    assert MIN_UNIT_BYTES <= share.unit_bytes <= MAX_UNIT_BYTES
    assert share.unit_bytes == MIN_UNIT_BYTES or holders * share.unit_bytes <= READERS_BYTES
    assert share.unit_bytes == MAX_UNIT_BYTES or holders > READERS_BYTES // MAX_UNIT_BYTES


def test_a_holder_leaves_whatever_happens() -> None:
    """Also by an exception."""
    share = Share()

    def fail() -> None:
        with share.held():
            assert share.holders == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert share.holders == 0


def test_with_the_usual_segments_bypasses_have_64_mib() -> None:
    assert MEMORY_SEGMENTS * BufferBudget(8 * 2**20).memory._segment_bytes == 64 * 2**20


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=10))
def test_a_memory_segment_gives_what_was_written_at_its_place(pieces: list[bytes]) -> None:
    """As a copy: memory that is used again changes under nobody."""
    segments = MemorySegments(400, 1)
    for _ in range(2):
        with ExitStack() as until:
            segment, at, whole = segments.take(1000, until), 1000, b"".join(pieces)
            for piece in pieces:
                segment.write(at, piece)
                at += len(piece)
            got = bytearray(len(whole))
            segment.read(1000, memoryview(got))
            segment.write(1000, bytes(400))
            assert got == whole


def test_who_finds_none_is_told_so() -> None:
    """To wait would be to wait for other readers."""
    segments, held = MemorySegments(10, 1), ExitStack()
    segments.take(0, held)
    with pytest.raises(CacheFull), ExitStack() as until:
        segments.take(0, until)
    held.close()
    assert segments.taken == 0


def test_little_unused_memory_is_kept() -> None:
    """From the start on: the first bypass takes nothing new."""
    segments = MemorySegments(10)
    assert len(segments._unused) == KEPT_SEGMENTS
    with ExitStack() as until:
        for _ in range(MEMORY_SEGMENTS):
            segments.take(0, until)
    assert (segments.taken, len(segments._unused)) == (0, KEPT_SEGMENTS)
