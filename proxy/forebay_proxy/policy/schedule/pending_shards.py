"""Shards that are being opened or compared ahead of need, and those that cannot be: no cursor waits for one. Pure.

Stored shards that their job must compare with the origin first have a queue of their own, in the order of need, a few at once per origin:
nothing of that waits for room or for bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["PendingShards", "RevalidationQueue"]

AT_ONCE = 8  # small requests in the air at one origin: 80 shards a second at 100 ms


class RevalidationQueue:
    """The questions not asked yet, and those in the air. Not thread-safe: the event loop's only."""

    def __init__(self, plans: PlanRegistry, forgone: Callable[[str], None]) -> None:
        """``forgone``: who wanted to know left before it was asked; another reader may still wait for the answer."""
        self._plans = plans
        self._forgone = forgone
        self._waiting: dict[str, list[tuple[float, int, str, ReaderName, int]]] = {}  # by origin
        self._in_air: dict[str, str] = {}  # shard name -> origin
        self._wanted: set[str] = set()  # both
        self._serial = 0

    def __repr__(self) -> str:
        return f"<RevalidationQueue {len(self._wanted)} wanted, {len(self._in_air)} in the air>"

    def __contains__(self, name: object) -> bool:
        """Whether the question is to be asked, or in the air."""
        return name in self._wanted

    def want(self, shard: Shard, plan: ReaderPlan, index: int) -> None:
        """``plan`` opens ``shard`` at ``index``."""
        self._wanted.add(shard.name)
        self._serial += 1
        heapq.heappush(self._waiting.setdefault(shard.origin, []), (plan.need_at(index), self._serial, shard.name, plan.reader, index))

    def ended(self, name: str) -> None:
        """It was answered, or could not be."""
        self._in_air.pop(name, None)
        self._wanted.discard(name)

    def next(self) -> tuple[float, ReaderPlan, Shard] | None:
        """(when needed, for whom, what) to ask now; None: nothing, or enough is in the air."""
        for origin, waiting in list(self._waiting.items()):
            in_air = sum(asked == origin for asked in self._in_air.values())
            while waiting and in_air < AT_ONCE:
                need_at, _, name, reader, index = heapq.heappop(waiting)
                plan = self._plans.get(reader)
                if plan is None or not plan.position <= index < len(plan) or self._plans.shard_at(plan, index).name != name:
                    self._wanted.discard(name)
                    self._forgone(name)
                    continue
                self._in_air[name] = origin
                return need_at, plan, self._plans.shard_at(plan, index)
            if not waiting:
                del self._waiting[origin]
        return None


class PendingShards:
    """By shard name. Not thread-safe: the event loop's only."""

    def __init__(self, revalidations: RevalidationQueue) -> None:
        self.opening: set[str] = set()
        self.failed: set[str] = set()
        self.revalidations = revalidations

    def __repr__(self) -> str:
        return f"<PendingShards {len(self.opening)} being opened, {len(self.failed)} cannot be>"

    def ended(self, name: str) -> None:
        """Its opening, or its comparison with the origin, is over."""
        self.opening.discard(name)
        self.revalidations.ended(name)

    def fail(self, name: str) -> None:
        """It cannot be opened, or fetched, ahead of need."""
        self.ended(name)
        self.failed.add(name)

    def forgive(self, name: str) -> None:
        """It may be tried again."""
        self.failed.discard(name)
