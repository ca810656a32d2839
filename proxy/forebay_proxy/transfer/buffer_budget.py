"""How much memory the bodies in the air may hold, and in what units. Pure.

One budget for the whole process (the contract: at most 64 MiB), in three shares, because each share's holders wait for different things:
*fetches* wait for the disk, *windows* (bypass) wait for readers, *readers* wait for their sockets. Were the shares one pool, a hundred
stopped readers would hold it all and every fetch would stop with them. Within a share there is no queue: the unit shrinks instead, from 1
MiB (what one system call moves well) to 128 KiB, below which the calls cost more than the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["BUDGET_BYTES", "BufferBudget", "Share"]

BUDGET_BYTES = 64 * 2**20
MAX_UNIT_BYTES = 2**20
MIN_UNIT_BYTES = 128 * 2**10


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
