"""Which prefetched segments stand where a needed one stood, and for whom. Pure; the event loop's only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

__all__ = ["DISPLACED_PER_READER", "Displacers"]

DISPLACED_PER_READER = 2  # the contract: so many prefetched segments of a reader may stand where a needed one stood


class Displacers:
    """Counted from the moment room is granted until the segment is read, leaves or fails to come."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int], Hashable] = {}  # (store key, segment) -> reader
        self._counts: Counter[Hashable] = Counter()

    def __repr__(self) -> str:
        return f"<Displacers {len(self._owners)} segments of {len(self._counts)} readers>"

    def __len__(self) -> int:
        return len(self._owners)

    def may(self, reader: Hashable) -> bool:
        """Whether one more may displace for ``reader``."""
        return self._counts[reader] < DISPLACED_PER_READER

    def note(self, key: str, index: int, reader: Hashable) -> None:
        """Segment ``index`` of ``key`` stands where a needed one stood, for ``reader``."""
        self.settle(key, index)
        self._owners[key, index] = reader
        self._counts[reader] += 1

    def settle(self, key: str, index: int) -> None:
        """It was read, or is gone; nothing where it displaced nobody."""
        if (key, index) not in self._owners:
            return
        reader = self._owners.pop((key, index))
        self._counts[reader] -= 1
        if not self._counts[reader]:
            del self._counts[reader]

    def counts(self) -> dict[Hashable, int]:
        """How many of each reader; readers without one are not named."""
        return dict(self._counts)
