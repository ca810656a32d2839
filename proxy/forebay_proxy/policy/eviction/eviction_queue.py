"""In what order shards leave: guesses by their use, announced ones by the reader that needs them first. Pure.

``next_use`` changes with every opening and every second, so what is written down here is always a little stale. Whatever comes to the top
is therefore asked for again: still first -> it is really next; otherwise it sinks to where it belongs. What *rises* towards leaving through
an opening, a closing or a plan is told by ``touch``; through mere time, ``refresh`` finds it out.

Announced shards stand in a max-heap per reader, of the positions that this reader needs first of all, and each reader's farthest one stands
in a heap of readers. The order within a reader does not depend on its rate: when it advances, or its rate changes, one entry is pushed
again and all its shards have moved. A shard that another reader needs sooner by now is found out at the top, as above: where it stands is
by a mention that still holds, so it can only be too far in front.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from math import inf

from forebay_proxy.policy.plans.next_use import NextUse, Rank
from forebay_proxy.policy.plans.reader_plan import ReaderPlan

__all__ = ["EvictionQueue"]

_SLACK = 64  # stale entries that are not worth cleaning up


class EvictionQueue:
    """The stored shards by when they are used next. Not thread-safe: the event loop's only."""

    def __init__(self, next_use: Callable[[str], NextUse | None]) -> None:
        """``next_use`` maps a store key to its ``NextUse``; None once nothing of it is stored."""
        self._next_use = next_use
        self._newest: dict[str, NextUse] = {}  # only this entry of a key counts, older ones are skipped
        self._guesses: list[tuple[int, float, float, str]] = []  # (rank, order, then, key): a tuple is compared without a line of Python
        self._announced: dict[ReaderPlan, list[tuple[int, str]]] = {}  # (index with the sign turned, key)
        self._readers: list[tuple[float, int, ReaderPlan]] = []  # (need of its farthest with the sign turned, how many came before, plan)
        self._pushed = 0
        self._farthest: dict[ReaderPlan, float] = {}  # the entry of each in ``_readers`` that counts
        self._round: deque[str] = deque()  # keys still to be looked at in this round of ``refresh``
        self._entries = 0  # in ``_announced``, stale ones included

    def __len__(self) -> int:
        return len(self._newest)

    def touch(self, key: str) -> None:
        """Something happened to ``key``: put it where it belongs now."""
        use = self._next_use(key)
        if use is None:
            self._newest.pop(key, None)
        elif not _same_place(self._newest.get(key), use):
            self._put(key, use)

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
        taken, moved = set[str](), set[str]()
        try:
            while (first := self._first()) is not None:
                _, key, plan = first
                if key in taken:
                    self._drop(plan)
                    moved.add(key)
                    continue
                now = self._next_use(key)
                if now is None:
                    del self._newest[key]
                    continue
                if not _same_place(now, self._newest[key]):
                    self._put(key, now)
                    if not self._is_first(key, now):  # needed sooner than it seemed: sinks
                        continue
                taken.add(key)
                yield now, key
        finally:
            for key in moved & self._newest.keys():
                self._put(key, self._newest[key])

    # Where they stand

    def _put(self, key: str, use: NextUse) -> None:
        self._newest[key] = use
        if use.plan is None:
            heapq.heappush(self._guesses, (use.rank, use.order, use.then, key))
        else:
            self._put_announced(key, use.plan, use.index)
        self._compact()

    def _put_announced(self, key: str, plan: ReaderPlan, index: int) -> None:
        heap = self._announced.get(plan)
        if heap is None:
            heap = self._announced[plan] = []
            plan.moved = self._moved
        heapq.heappush(heap, (-index, key))
        self._entries += 1
        if heap[0] == (-index, key):
            self._moved(plan)

    def _moved(self, plan: ReaderPlan) -> None:
        """The reader's farthest shard is another one, or is needed at another time: sooner is found out when it comes to the top."""
        heap = self._announced.get(plan)
        if not heap:
            return
        order = -plan.need_at(-heap[0][0])
        if order < self._farthest.get(plan, inf):
            self._farthest[plan] = order
            self._pushed += 1
            heapq.heappush(self._readers, (order, self._pushed, plan))

    def _top(self) -> ReaderPlan | None:
        """The reader with the announced shard that leaves first; its heap has a key on top that counts."""
        while self._readers:
            order, _, plan = self._readers[0]
            heap = self._announced.get(plan)
            if heap is None or self._farthest.get(plan) != order:
                heapq.heappop(self._readers)
                continue
            while heap and not self._is_newest(heap[0][1], plan, -heap[0][0]):
                heapq.heappop(heap)
                self._entries -= 1
            if not heap:
                heapq.heappop(self._readers)
                self._remove(plan)
                continue
            now = -plan.need_at(-heap[0][0])
            if now <= order:
                return plan
            self._farthest[plan] = now
            self._pushed += 1
            heapq.heapreplace(self._readers, (now, self._pushed, plan))
        return None

    def _is_newest(self, key: str, plan: ReaderPlan, index: int) -> bool:
        use = self._newest.get(key)
        return use is not None and use.plan is plan and use.index == index

    def _remove(self, plan: ReaderPlan) -> None:
        """Nothing of this reader's stands here any more."""
        del self._announced[plan]
        self._farthest.pop(plan, None)
        plan.moved = None

    def _guess(self) -> NextUse | None:
        """The use of the guessed shard that leaves first."""
        while self._guesses:
            rank, order, then, key = self._guesses[0]
            newest = self._newest.get(key)
            if newest is not None and newest.plan is None and (newest.rank, newest.order, newest.then) == (rank, order, then):
                return newest
            heapq.heappop(self._guesses)
        return None

    def _first(self) -> tuple[NextUse, str, ReaderPlan | None] | None:
        """The first entry of all: (next use as written down, key, reader of that use; no reader: a guess)."""
        guess = self._guess()
        if guess is None or guess.rank > Rank.AHEAD:  # no guess has the rank AHEAD
            plan = self._top()
            if plan is not None:
                key = self._announced[plan][0][1]
                return self._newest[key], key, plan
        return None if guess is None else (guess, self._guesses[0][3], None)

    def _drop(self, plan: ReaderPlan | None) -> None:
        """Take away what ``_first`` returned."""
        if plan is None:
            heapq.heappop(self._guesses)
            return
        heapq.heappop(self._announced[plan])
        self._entries -= 1
        if self._announced[plan]:
            self._moved(plan)
        else:
            self._remove(plan)

    def _is_first(self, key: str, use: NextUse) -> bool:
        """Whether nothing stands before ``key``, which is used then."""
        first = self._first()
        if first is None or first[1] == key:
            return True
        _, _, plan = first
        foremost = first[0] if plan is None else NextUse(Rank.AHEAD, -plan.need_at(first[0].index))
        return use <= foremost

    def _compact(self) -> None:
        """Stale entries never outnumber the live ones by more than three to one."""
        most = _SLACK + 4 * len(self._newest)
        if len(self._guesses) > most:
            self._guesses = [(use.rank, use.order, use.then, key) for key, use in self._newest.items() if use.plan is None]
            heapq.heapify(self._guesses)
        if self._entries > most or len(self._readers) > most + 4 * len(self._farthest):
            self._rebuild()

    def _rebuild(self) -> None:
        for plan in list(self._announced):
            self._remove(plan)
        self._readers, self._entries = [], 0
        for key, use in self._newest.items():
            if use.plan is not None:
                self._announced.setdefault(use.plan, []).append((-use.index, key))
                self._entries += 1
        for plan, heap in self._announced.items():
            plan.moved = self._moved
            heapq.heapify(heap)
            self._moved(plan)


def _same_place(one: NextUse | None, other: NextUse) -> bool:
    """Whether nothing need be moved: an announced shard stands by its index, whatever its reader's rate is by now."""
    if one is None or one.plan is not other.plan:
        return False
    return one.index == other.index if other.plan is not None else one == other
