"""The tasks of a sidecar while it serves. Each is begun again after a fault; one that fails again and again ends the sidecar."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from forebay_proxy.app.composition import CacheParts
from forebay_proxy.app.startup import Start
from forebay_proxy.app.status import StatusReport
from forebay_proxy.app.telemetry_parts import TelemetryParts
from forebay_proxy.background.verifier import IdleVerifier
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import LoopLagged, PlanChanged
from forebay_proxy.core.tasks import kept
from forebay_proxy.telemetry.long_waits import LongWaits
from forebay_proxy.telemetry.troubles import Troubles

__all__ = ["TICK_S", "Tick", "begin_tasks", "measure_lag"]

TICK_S = 1.0  # a silent reader is given a minute, a failed opening half of one


def begin_tasks(
    start: Start, parts: CacheParts, telemetry: TelemetryParts, report: StatusReport, group: asyncio.TaskGroup, chance: random.Random
) -> dict[str, asyncio.Task[None]]:
    """By name."""
    settings, background, store, cache = start.settings, parts.background, parts.resident.store, parts.cache
    idle_verifier = IdleVerifier(
        cache.room, parts.resident.segment_check, lambda: store.idle, every_s=settings.verify_every_s, chance=chance
    )
    long_waits = LongWaits(cache.readers.waits, telemetry.board, start.clock)
    makes: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        **({"prefetch": background.prefetcher.run, "sets": background.sets.run} if settings.prefetch else {}),
        "tick": Tick(parts, report, long_waits, telemetry.troubles, start.events, start.clock).run,
        "disk monitor": background.disk_monitor.run,
        "loop lag": lambda: measure_lag(start.events),
        "sweep": store.sweeping.run,
        "sample indexes": background.indexer.run,
        **({"sample": idle_verifier.run} if settings.verify_every_s else {}),
    }
    return {name: group.create_task(kept(name, make, start.ending.fault), name=name) for name, make in makes.items()}


class Tick:
    """Once a second: silent readers expire, and refused work may be tried again."""

    def __init__(
        self,
        parts: CacheParts,
        report: StatusReport,
        long_waits: LongWaits,
        troubles: Troubles,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        self._parts = parts
        self._report = report
        self._long_waits = long_waits
        self._troubles = troubles
        self._events = events
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.look()

    def look(self) -> None:
        """At what time alone has changed."""
        parts, cache, background = self._parts, self._parts.cache, self._parts.background
        parts.transfer.limiters.look_again()
        parts.filling.resolver.expire()
        cache.readers.waits.look(self._report.readers_lately())
        self._long_waits.look()
        self._troubles.look(parts.resident.ledger.capacity_bytes, cache.disk.state, cache.disk.reason)
        background.prefetcher.look_again()
        background.sets.look_again()
        cache.readers.let_rest(self._clock())
        cache.fd_lender.look_again()
        for reader in parts.resident.plans.expire(cache.readers.is_reading):
            self._events.emit(PlanChanged(reader.job, "expired"))


async def measure_lag(events: Events, *, every_s: float = 0.25, clock: Callable[[], float] = time.monotonic) -> NoReturn:
    """Report how late the event loop comes back when asked (``LoopLagged``): nobody is served meanwhile. Every ``every_s`` seconds,
    until cancelled.

    Four looks a second cost nothing measurable and still meet any block longer than a quarter second. A block is one sample however long
    it lasts, so read the histogram's upper buckets as "it happened", not as a share of time.
    """
    while True:
        asked = clock()
        await asyncio.sleep(every_s)
        events.emit(LoopLagged(max(0.0, clock() - asked - every_s)))
