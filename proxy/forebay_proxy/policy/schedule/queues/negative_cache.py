"""Which shards are left to their readers for a while, and how many of each origin. Pure.

What could not be fetched ahead of need is not asked for again at once: it would most likely fail again, and again in the next round.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator

__all__ = ["NegativeCache"]


class NegativeCache:
    """Names, each until a time."""

    def __init__(self) -> None:
        self.of_origin: Counter[str] = Counter()  # names without an origin are not counted
        self._until: dict[str, tuple[float, str]] = {}
        self._ends: list[tuple[float, str]] = []  # a heap; an end that is not its name's any more is passed over

    def __repr__(self) -> str:
        return f"<NegativeCache {len(self._until)} shards>"

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, name: str) -> bool:
        return name in self._until

    def add(self, name: str, origin: str, until: float) -> None:
        """Leave ``name`` alone until then, or longer if that was said before."""
        before = self._until.get(name)
        if before is None:
            self.of_origin[origin] += 1
        elif before[0] >= until:
            return
        self._until[name] = until, origin
        heapq.heappush(self._ends, (until, name))

    def over(self, now: float) -> Iterator[str]:
        """Those whose time is over; each is told once."""
        while self._ends and self._ends[0][0] <= now:
            until, name = heapq.heappop(self._ends)
            if name in self._until and self._until[name][0] == until:
                self.of_origin -= Counter((self._until.pop(name)[1],))
                yield name
