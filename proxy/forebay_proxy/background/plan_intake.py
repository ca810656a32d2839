"""Where readers hand in their plans: into ``PlanRegistry``, in slices, and the prefetcher is told.

A plan of half a million shards takes seconds of one core. It is taken a few milliseconds at a time, and between two slices the loop serves
everything else: whose plan is next takes turns over all that are on their way, and what one reader sends is taken in the order it came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from weakref import WeakValueDictionary

from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.policy.plans.entries import Entries
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.wire.protocol.plan import PlanBody, ReaderName

__all__ = ["PlanIntake"]

TURN_S = 0.002  # of the event loop at a time, for all plans together: a hundredth of what a reader notices


class PlanIntake:
    """``PUT``, ``POST`` and ``DELETE`` of ``/v1/plans/…``."""

    def __init__(self, plans: PlanRegistry, prefetcher: Prefetcher) -> None:
        self._plans = plans
        self._prefetcher = prefetcher
        self._queues = WeakValueDictionary[ReaderName, asyncio.Lock]()  # what one reader sends, one after the other
        self._turn = asyncio.Lock()  # first come, first served

    async def announce(
        self, reader: ReaderName, plan: PlanBody, headers: tuple[tuple[str, str], ...] = (), *, appended: bool = False
    ) -> None:
        """Take the shards, or the indices into the set, of ``plan`` as what ``reader`` opens next, or behind what it announced before.

        Raises ``PlansFull`` and ``InvalidShardUrl``; then, and when it is cancelled, nothing was taken of a plan that replaces.
        """
        async with self._queues.setdefault(reader, asyncio.Lock()):
            entries = Entries(plan.shards, headers, pattern=plan.set or "", indices=plan.indices)
            take = self._plans.appending if appended else self._plans.replacing
            await self._in_turns(take(reader, entries, plan.epoch, plan.set, plan.at))
            self._prefetcher.wake()

    async def retract(self, reader: ReaderName) -> bool:
        """Forget what ``reader`` announced and has not read, all that it sent before included; False if there was nothing."""
        async with self._queues.setdefault(reader, asyncio.Lock()):
            withdrawn = self._plans.withdraw(reader)
            if withdrawn:
                self._prefetcher.wake()
            return withdrawn

    async def _in_turns(self, slices: Iterator[None]) -> None:
        """Run to the end of ``slices``, a turn at a time."""
        try:
            done = False
            while not done:
                async with self._turn:
                    await asyncio.sleep(0)  # with the turn kept: one plan is worked on in each round of the loop
                    until = time.perf_counter() + TURN_S
                    while not done and time.perf_counter() < until:
                        done = next(slices, self) is self
        finally:
            slices.close()  # type: ignore[attr-defined]
