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

__all__ = ["TICK_S", "begin_tasks", "measure_lag"]

TICK_S = 1.0  # a silent reader is given a minute, a failed opening half of one


def begin_tasks(
    start: Start, parts: CacheParts, telemetry: TelemetryParts, report: StatusReport, group: asyncio.TaskGroup, chance: random.Random
) -> dict[str, asyncio.Task[None]]:
    """By name."""
    settings, store, cache = start.settings, parts.store, parts.cache
    idle_verifier = IdleVerifier(cache.room, parts.segment_check, lambda: store.idle, every_s=settings.verify_every_s, chance=chance)
    long_waits = LongWaits(cache.readers.waits, telemetry.board, start.clock)
    makes: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        **({"prefetch": parts.prefetcher.run, "sets": parts.sets.run} if settings.prefetch else {}),
        "tick": lambda: _tick(parts, report, long_waits, telemetry.troubles, start),
        "disk monitor": parts.disk_monitor.run,
        "loop lag": lambda: measure_lag(start.events),
        "sweep": store.sweeping.run,
        "sample indexes": parts.indexer.run,
        **({"sample": idle_verifier.run} if settings.verify_every_s else {}),
    }
    return {name: group.create_task(kept(name, make, start.ending.fault), name=name) for name, make in makes.items()}


async def _tick(parts: CacheParts, report: StatusReport, long_waits: LongWaits, troubles: Troubles, start: Start) -> NoReturn:
    """Once a second, until cancelled: silent readers expire, and refused work may be tried again."""
    cache = parts.cache
    while True:
        await asyncio.sleep(TICK_S)
        parts.limiters.look_again()
        parts.resolver.expire()
        cache.readers.waits.look(report.readers_lately())
        long_waits.look()
        troubles.look(parts.ledger.capacity_bytes, cache.disk.state, cache.disk.reason)
        parts.prefetcher.look_again()
        parts.sets.look_again()
        cache.readers.let_rest(start.clock())
        cache.fd_lender.look_again()
        for reader in parts.plans.expire(cache.readers.is_reading):
            start.events.emit(PlanChanged(reader.job, "expired"))


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
