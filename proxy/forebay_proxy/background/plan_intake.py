"""Where readers hand in their plans: into ``PlanRegistry``, in slices, and the prefetcher is told.

A plan of half a million shards takes seconds of one core. It is taken a few milliseconds at a time, and between two slices the loop serves
everything else: whose plan is next takes turns over all that are on their way, and what one reader sends is taken in the order it came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import PlanChanged
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.plans.sets.templates import Entries, Listed
from forebay_proxy.wire.protocol.plan import PlanBody, ReaderName

__all__ = ["PlanIntake"]

TURN_S = 0.002  # of the event loop at a time, for all plans together: a hundredth of what a reader notices


@dataclass(slots=True)
class _Queue:
    """What one reader sends, one after the other."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class PlanIntake:
    """``PUT``, ``POST`` and ``DELETE`` of ``/v1/plans/…``."""

    def __init__(self, plans: PlanRegistry, prefetcher: Prefetcher, events: Events) -> None:
        self._plans = plans
        self._prefetcher = prefetcher
        self._events = events
        self._queues: dict[ReaderName, _Queue] = {}
        self._turn = asyncio.Lock()  # first come, first served
        self._spent_s = 0.0  # in this turn of the loop, as far as is known

    # At once

    def replace(self, reader: ReaderName, shards: Entries, epoch: int | None = None, set_name: str | None = None) -> None:
        self._plans.replace(reader, shards, epoch, set_name)
        self._changed(reader, "replaced")

    def append(self, reader: ReaderName, shards: Entries, epoch: int | None = None, set_name: str | None = None) -> None:
        self._plans.append(reader, shards, epoch, set_name)
        self._changed(reader, "extended")

    def withdraw(self, reader: ReaderName) -> bool:
        withdrawn = self._plans.withdraw(reader)
        if withdrawn:
            self._changed(reader, "withdrawn")
        return withdrawn

    def _changed(self, reader: ReaderName, what: str) -> None:
        self._events.emit(PlanChanged(reader.job, what))
        self._prefetcher.wake()

    # In slices

    async def announce(
        self,
        reader: ReaderName,
        plan: PlanBody,
        shards: Sequence[Shard],
        headers: tuple[tuple[str, str], ...] = (),
        *,
        appended: bool = False,
    ) -> None:
        """Take ``shards``, or the indices of ``plan`` into its set, as the shards that ``reader`` opens next, or behind earlier ones.

        Raises ``PlansFull`` and ``InvalidShardUrl``; then, and when it is cancelled, nothing was taken of a plan that replaces.
        """
        async with self._queued(reader):
            take = self._plans.appending if appended else self._plans.replacing
            await self._in_slices(take(reader, self._entries(plan, shards, headers), plan.epoch, plan.set, plan.at))
            self._changed(reader, "extended" if appended else "replaced")

    def _entries(self, plan: PlanBody, shards: Sequence[Shard], headers: tuple[tuple[str, str], ...]) -> Entries:
        if plan.indices is None:
            return shards.picked() if isinstance(shards, Listed) else shards
        first = plan.indices[0] if plan.indices else 0
        return self._plans.shard_ids.template(plan.set or "", headers, first).picked(plan.indices)

    async def retract(self, reader: ReaderName) -> bool:
        """Forget what ``reader`` announced and has not read, all that it sent before included; False if there was nothing."""
        async with self._queued(reader):
            return self.withdraw(reader)

    @asynccontextmanager
    async def _queued(self, reader: ReaderName) -> AsyncIterator[None]:
        """Until what this reader sent before is done."""
        queue = self._queues.setdefault(reader, _Queue())
        queue.waiting += 1
        try:
            async with queue.turn:
                yield
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                del self._queues[reader]

    async def _in_slices(self, slices: Iterator[None]) -> None:
        """Run to the end of ``slices``, a turn at a time."""
        try:
            while True:
                async with self._turn:
                    if self._run_turn(slices):
                        return
                    await asyncio.sleep(0)  # with the turn kept: whoever comes next comes in the loop's next round
                    self._spent_s = 0.0
        finally:
            slices.close()  # type: ignore[attr-defined]

    def _run_turn(self, slices: Iterator[None]) -> bool:
        """Whether they came to their end before the turn did."""
        started = time.perf_counter()
        while self._spent_s < TURN_S:
            if next(slices, self) is self:
                self._spent_s += time.perf_counter() - started
                return True
            now = time.perf_counter()
            self._spent_s, started = self._spent_s + now - started, now
        return False
