"""Bytes of bodies in memory: a window over the newest bytes of each flight, and how much all of them may hold, in what units. Pure.

What arrived is read from its flight's window until it is written, so the fastest reader waits for the origin and never for the disk. Where
no disk room could be granted (a bypass) the window is all there is: it moves with its fastest reader. A slower one may fall out of it and
then goes on with a fetch of its own; only the fastest (so also a reader alone) makes the fetch wait. Pieces are shared between readers,
never copied.

One budget for the whole process (the contract: at most 64 MiB), in three shares, because each share's holders wait for different things:
*fetches* wait for the disk, *windows* (bypass) wait for readers, *readers* wait for their sockets. Were the shares one pool, a hundred
stopped readers would hold it all and every fetch would stop with them. Within a share there is no queue: the unit shrinks instead, from 1
MiB (what one system call moves well) to 128 KiB, below which the calls cost more than the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from forebay_proxy.core.errors import FellBehind

__all__ = ["BUDGET_BYTES", "BufferBudget", "MemoryWindow", "Share"]

BUDGET_BYTES = 64 * 2**20
MAX_UNIT_BYTES = 2**20
MIN_UNIT_BYTES = 128 * 2**10


class MemoryWindow:
    """Bytes ``start`` to ``end`` of a shard, in the pieces they came in. Not thread-safe: the event loop's only."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._pieces: deque[bytes | memoryview] = deque()

    def __repr__(self) -> str:
        return f"<MemoryWindow {self.start}-{self.end}>"

    def __len__(self) -> int:
        return self.end - self.start

    def room(self, size: int, capacity_bytes: int, fastest: int) -> bool:
        """Whether ``size`` bytes more fit, once what the ``fastest`` reader has passed is dropped; an empty window takes anything."""
        while self._pieces and len(self) + size > capacity_bytes and self.start + len(self._pieces[0]) <= fastest:
            self.start += len(self._pieces.popleft())
        return not self._pieces or len(self) + size <= capacity_bytes

    def drop(self, end: int) -> None:
        """The bytes below ``end`` are on the disk."""
        while self._pieces and self.start + len(self._pieces[0]) <= end:
            self.start += len(self._pieces.popleft())

    def append(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece)
        self.end += len(piece)

    def read(self, position: int) -> memoryview | None:
        """The bytes at ``position`` as far as their piece goes; None at the end of the window.

        Raises ``FellBehind`` for a position the window has moved past.
        """
        if position >= self.end:
            return None
        if position < self.start:
            raise FellBehind(f"the window has moved on to {self.start}, the reader is at {position}")
        offset = self.start
        for piece in self._pieces:
            if position < offset + len(piece):
                return memoryview(piece)[position - offset :]
            offset += len(piece)
        raise AssertionError("a window's pieces fill it")


class Share:
    """A part of the budget and how many use it now. Not thread-safe: the event loop's only."""

    def __init__(
        self, total_bytes: int, per_holder: int, smallest_bytes: int = MIN_UNIT_BYTES, largest_bytes: int = MAX_UNIT_BYTES
    ) -> None:
        """``per_holder``: units one holder may have at once."""
        self._largest = largest_bytes
        self.total_bytes = total_bytes
        self._per_holder = per_holder
        self._smallest = smallest_bytes
        self.holders = 0
        self.held_bytes = 0  # by windows, for which units are no measure: one may stay full for as long as its reader is stopped

    @contextmanager
    def held(self) -> Iterator[None]:
        """One more holder for the length of the ``with``."""
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1

    @property
    def unit_bytes(self) -> int:
        """The unit each holder may use now: an even part of the share."""
        even = self.total_bytes // (self._per_holder * max(1, self.holders))
        return max(self._smallest, min(self._largest, even))

    @property
    def piece_bytes(self) -> int:
        """Bytes to take next: a unit, or the smallest piece once the share is spent; an empty window takes that all the same."""
        return self.unit_bytes if self.held_bytes + self.unit_bytes <= self.total_bytes else self._smallest

    def allowance(self, held_bytes: int) -> int:
        """Bytes that a holder of ``held_bytes`` may have now: its units, unless earlier holders have spent the share."""
        return min(self._per_holder * self.unit_bytes, held_bytes + max(0, self.total_bytes - self.held_bytes))


class BufferBudget:
    """The three shares of the budget."""

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        quarter = budget_bytes // 4
        # A write is a hop to a thread and back, whatever its size: where few fetch, their units are larger. One comes while one is written.
        self.fetches = Share(quarter, per_holder=2, smallest_bytes=MIN_UNIT_BYTES // 2, largest_bytes=2 * MAX_UNIT_BYTES)
        # Readers of distinct shards who have stopped: 1,000 of them still fit into the budget, with a piece each, so that all can go on.
        self.windows = Share(quarter, per_holder=4, smallest_bytes=16 * 2**10)
        # Half of it: 64 warm readers still have 512 KiB each. Their unit may go down to 16 KiB: 2,000 stopped readers fit.
        self.readers = Share(2 * quarter, per_holder=1, smallest_bytes=16 * 2**10)
