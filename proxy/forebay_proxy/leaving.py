"""In what order shards leave: one heap, re-keyed when popped. Pure.

``next_use`` changes with every opening and every second, so a heap keyed by it is always a little stale. A key is therefore asked for
again when it reaches the top: still the smallest -> it is really next; otherwise it sinks to where it belongs. Keys *rise* towards
leaving through an opening, a closing or a plan, and those call ``touch``; or through mere time, and that ``refresh`` finds out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from forebay_proxy.use import Use

__all__ = ["Leaving"]


class Leaving:
    """The stored shards by when they are used next. Not thread-safe: the event loop's only."""

    def __init__(self, next_use: Callable[[str], Use | None]) -> None:
        """``next_use`` maps a store key to its ``Use``; None once nothing of it is stored."""
        self._next_use = next_use
        self._heap: list[tuple[Use, str]] = []
        self._newest: dict[str, Use] = {}  # only this entry of a key counts, older ones are skipped
        self._round: deque[str] = deque()  # keys still to be looked at in this round of ``refresh``

    def __len__(self) -> int:
        return len(self._newest)

    def touch(self, key: str) -> None:
        """Something happened to ``key``: put it where it belongs now."""
        use = self._next_use(key)
        if use is None:
            self._newest.pop(key, None)
            return
        if self._newest.get(key) != use:
            self._newest[key] = use
            heapq.heappush(self._heap, (use, key))
            self._compact()

    def refresh(self, count: int) -> None:
        """Put the next ``count`` keys, round and round, where they belong now."""
        if not self._round:
            self._round.extend(self._newest)
        for _ in range(min(count, len(self._round))):
            key = self._round.popleft()
            if key in self._newest:
                self.touch(key)

    def order(self) -> Iterator[tuple[Use, str]]:
        """Keys from the first to leave on. What was yielded stays in the heap: the caller touches what it changes."""
        taken: dict[str, Use] = {}
        try:
            while self._heap:
                use, key = heapq.heappop(self._heap)
                if self._newest.get(key) != use or key in taken:  # a key that came back to an old place is in the heap twice
                    continue
                now = self._next_use(key)
                if now is None:
                    del self._newest[key]
                    continue
                if now > use and self._heap and now > self._heap[0][0]:  # needed sooner than it seemed: sinks
                    self._newest[key] = now
                    heapq.heappush(self._heap, (now, key))
                    continue
                self._newest[key] = now
                taken[key] = now
                yield now, key
        finally:
            for key, use in taken.items():
                heapq.heappush(self._heap, (use, key))

    def _compact(self) -> None:
        """Stale entries never outnumber the live ones by more than three to one."""
        if len(self._heap) > 64 + 4 * len(self._newest):
            self._heap = [(use, key) for key, use in self._newest.items()]
            heapq.heapify(self._heap)
