"""In what order shards leave. Pure.

``next_use`` changes with every opening and every second, so what is written down here is always a little stale. Whatever comes to the top
is therefore asked for again: still first -> it is really next; otherwise it sinks to where it belongs. What *rises* towards leaving through
an opening, a closing or a plan is told by ``touch``; through mere time, or a reader that became slower, ``refresh`` finds it out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from forebay_proxy.policy.plans.registry import NextUse

__all__ = ["EvictionQueue"]

_SLACK = 64  # stale entries that are not worth cleaning up


class EvictionQueue:
    """The stored shards by when they are used next. Not thread-safe: the event loop's only."""

    def __init__(self, next_use: Callable[[str], NextUse | None]) -> None:
        """``next_use`` maps a store key to its ``NextUse``; None once nothing of it is stored."""
        self._next_use = next_use
        self._newest: dict[str, NextUse] = {}  # only this entry of a key counts, older ones are skipped
        self._heap: list[tuple[int, float, float, str]] = []  # (rank, order, then, key): a tuple is compared without a line of Python
        self._round: deque[str] = deque()  # keys still to be looked at in this round of ``refresh``

    def __len__(self) -> int:
        return len(self._newest)

    def touch(self, key: str) -> None:
        """Something happened to ``key``: put it where it belongs now."""
        use = self._next_use(key)
        if use is None:
            self._newest.pop(key, None)
        elif self._newest.get(key) != use:
            self._newest[key] = use
            heapq.heappush(self._heap, _place(use, key))
            if len(self._heap) > _SLACK + 4 * len(self._newest):
                self._heap = [_place(newest, of) for of, newest in self._newest.items()]
                heapq.heapify(self._heap)

    def refresh(self, count: int) -> None:
        """Put the next ``count`` keys, round and round, where they belong now."""
        if not self._round:
            self._round.extend(self._newest)
        for _ in range(min(count, len(self._round))):
            key = self._round.popleft()
            if key in self._newest:
                self.touch(key)

    def order(self) -> Iterator[tuple[NextUse, str]]:
        """Keys from the first to leave on. A key that was yielded stays here: the caller touches the entries it changes."""
        taken: set[str] = set()
        try:
            while self._heap:
                place = heapq.heappop(self._heap)
                key = place[3]
                written = self._newest.get(key)
                if written is None or key in taken or _place(written, key) != place:
                    continue
                now = self._next_use(key)
                if now is None:
                    del self._newest[key]
                    continue
                self._newest[key] = now
                if now > written:  # needed sooner than it seemed: sinks
                    heapq.heappush(self._heap, _place(now, key))
                    continue
                taken.add(key)
                yield now, key
        finally:
            for key in taken & self._newest.keys():
                heapq.heappush(self._heap, _place(self._newest[key], key))


def _place(use: NextUse, key: str) -> tuple[int, float, float, str]:
    return use.rank, use.order, use.then, key
