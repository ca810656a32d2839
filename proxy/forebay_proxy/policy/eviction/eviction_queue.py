"""The order in which shards leave the cache. Pure.

A shard's ``next_use`` changes with every opening and every second, so the noted order is always a little old. When a shard comes to the
top, its ``next_use`` is computed again: if it is still first it leaves, otherwise it sinks to its place. The other direction needs a call.
``touch`` reports shards that may leave sooner because of an opening, a closing or a plan. ``refresh`` finds those that may leave sooner
through time alone, or because a reader became slower.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from forebay_proxy.policy.plans.registry import NextUse

__all__ = ["EvictionQueue"]

_SLACK = 64  # more outdated heap entries than this are cleaned up


class EvictionQueue:
    """The stored shards, ordered by next use. Not thread-safe: used on the event loop alone."""

    def __init__(self, next_use: Callable[[str], NextUse | None]) -> None:
        """``next_use`` maps a store key to its ``NextUse``; None when nothing of it is stored."""
        self._next_use = next_use
        self._newest: dict[str, NextUse] = {}  # only this entry of a key counts; older ones in the heap are skipped
        self._heap: list[tuple[int, float, float, str]] = []  # (rank, order, then, key): tuples compare without running Python code
        self._round: deque[str] = deque()  # keys that ``refresh`` has not visited in this round

    def __len__(self) -> int:
        return len(self._newest)

    def touch(self, key: str) -> None:
        """Sort ``key`` again after a change."""
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
        """Sort the next ``count`` keys again, round robin."""
        if not self._round:
            self._round.extend(self._newest)
        for _ in range(min(count, len(self._round))):
            key = self._round.popleft()
            if key in self._newest:
                self.touch(key)

    def order(self) -> Iterator[tuple[NextUse, str]]:
        """Keys, the first to leave first. A yielded key stays in the queue: the caller calls ``touch`` for those it changes."""
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
                if now > written:  # needed sooner than noted: it sinks
                    heapq.heappush(self._heap, _place(now, key))
                    continue
                taken.add(key)
                yield now, key
        finally:
            for key in taken & self._newest.keys():
                heapq.heappush(self._heap, _place(self._newest[key], key))


def _place(use: NextUse, key: str) -> tuple[int, float, float, str]:
    return use.rank, use.order, use.then, key
