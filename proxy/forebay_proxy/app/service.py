"""The composition root: builds the parts of a sidecar in order, runs them in one task group; what it enters closes them in reverse."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, NoReturn

from forebay_proxy.app.composition import CacheParts, Surroundings, build_cache
from forebay_proxy.app.doors import SidecarDoors
from forebay_proxy.app.shutdown import Deadline, Shutdown
from forebay_proxy.app.startup import NotBegun, OwnedDirectory, Start, adopt, begin_access_log, own_directory
from forebay_proxy.app.status import ServiceInfo, StatusReport, TelemetryParts
from forebay_proxy.background.set_prefetch import check_sets
from forebay_proxy.background.verifier import IdleVerifier
from forebay_proxy.config.settings import Settings
from forebay_proxy.core import logs, secret_parameters
from forebay_proxy.core.errors import ConfigError, causes
from forebay_proxy.core.events import Events
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.facts.requests import LoopLagged
from forebay_proxy.core.logs import frames_of
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SegmentLayout
from forebay_proxy.core.tasks import describe_fault, kept
from forebay_proxy.node.runfile import Claim, RunDirectory, RunFile, process_start_time
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.registry import Origins
from forebay_proxy.server.http.connection import raise_limit
from forebay_proxy.server.http.server import ServerAddress
from forebay_proxy.telemetry.troubles import Troubles
from forebay_proxy.telemetry.waits import LongWaits

__all__ = ["TICK_S", "Sidecar", "begin_tasks", "measure_lag", "run_service", "serve"]


log = logging.getLogger("forebay")

Announce = Callable[[ServiceInfo], None]

TICK_S = 1.0  # a silent reader is given a minute, a failed opening half of one


# What has come whole only has to be written: the last segment of a reader that has just left. Longer means a disk in trouble.


class Sidecar:
    """``info`` is what it knows of itself."""

    def __init__(
        self, info: ServiceInfo, start: Start, claim: Claim, parts: CacheParts, doors: SidecarDoors, tasks: Mapping[str, asyncio.Task[None]]
    ) -> None:
        self.info = info
        self._start = start
        self._claim = claim
        self._parts = parts
        self._doors = doors
        self._tasks = tasks
        self._lingered_at = float("-inf")  # when a descriptor was last seen that has outlived its lease

    async def until_ended(self) -> None:
        """Serve until asked to end, then end all parts, each before the parts that it needs."""
        idle_s, asked = self._start.settings.idle_exit_s, self._start.ending.asked
        while not asked.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(None if idle_s is None else max(1.0, idle_s / 10)):
                    await asked.wait()
            if idle_s is not None and self._idle_s() > idle_s:
                log.info("held and read by nobody for %g s: ending", idle_s)
                break
        await self._end()

    def _idle_s(self) -> float:
        """For how long no client has used it."""
        now = self._start.clock()
        if self._parts.cache.fd_lender.lingering:
            self._lingered_at = now
        return 0.0 if self._doors.in_use else now - max(self._doors.last_active, self._lingered_at)

    async def _end(self) -> None:
        parts, doors, ending = self._parts, self._doors, self._start.ending
        ending.began()
        self._claim.close()  # nobody new joins
        parts.store.directory.leaving()
        for name in {"prefetch", "sets"} & self._tasks.keys():
            self._tasks[name].cancel()
        await doors.http.drain()
        await doors.fd.aclose()
        self._drop_unread()
        await doors.http.aclose(self._start.settings.drain_timeout_s, ending.hurried)
        for task in self._tasks.values():
            task.cancel()
        parts.resolver.cancel()
        parts.fetches.cancel()
        parts.digest_check.stop()
        parts.indexer.stop()
        if parts.fetcher.shared is not None:
            await parts.fetcher.shared.aclose()
        await parts.tasks.idle()

    def _drop_unread(self) -> None:
        """Fetches without a reader end now; those that a running answer needs go on."""
        cache = self._parts.cache
        cache.fetches.drop({reading.entry.key for reading in cache.readers}.__contains__)
        self._parts.resolver.drop({reading.entry.name for reading in cache.readers}.__contains__)


def run_service(settings: Settings, *, announce: Announce, layout: SegmentLayout = DEFAULT_LAYOUT) -> int:
    """Serve until a signal ends it, or the idle time is over. Returns the exit code; raises ``ConfigError`` when it cannot start.

    ``layout``: how shards are cut; no setting, as a directory that was filled under another would be of no use.
    """
    raise_limit()
    logs.set_up(settings.log_level, settings.log_format)

    async def life() -> int:
        ending = Shutdown(settings.drain_timeout_s, deadline=Deadline())
        try:
            return await serve(settings, announce=announce, environ=os.environ, ending=ending, layout=layout)
        finally:
            ending.over()  # what is left now is asyncio's own: joining a thread that waits for a name server

    return asyncio.run(life())


async def serve(
    settings: Settings,
    *,
    announce: Announce,
    environ: Mapping[str, str],
    ending: Shutdown | None = None,
    layout: SegmentLayout = DEFAULT_LAYOUT,
) -> int:
    """One sidecar's life. ``ending.asked`` ends it like a signal (tests). Raises ``ConfigError`` when it cannot begin."""
    ending = ending or Shutdown(settings.drain_timeout_s)
    secret_parameters.also_secret(settings.secret_param)
    try:
        async with AsyncExitStack() as life:
            life.enter_context(ending.on_signals())
            sidecar = await _begin(Start(settings, environ, life, ending, layout))
            _tell(announce, sidecar.info)
            await sidecar.until_ended()
    except Exception as error:  # not `except*`: before Python 3.11.4 what is raised inside that is put into a group again
        parts = causes(error)
        fault = next((part for part in parts if not isinstance(part, ConfigError | NotBegun)), None)
        refusal = next((part for part in parts if isinstance(part, ConfigError)), None)
        if fault is not None:
            log.error("%s", frames_of(fault))
            ending.fault(f"a fault in Forebay itself: {describe_fault(fault)}")
        if refusal is not None:
            ending.code = ExitCode.CANNOT_BEGIN  # the catching code reports it; this code counts if a thread hangs before that
            raise refusal from None
        if fault is None:
            log.info("asked to end before it had begun: its predecessor still held the directory")
    return ending.code


def _tell(announce: Announce, info: ServiceInfo) -> None:
    try:
        announce(info)
    except OSError as error:  # whoever started us reads no further (``forebay serve | head -1``), or the disk of its log is full
        log.warning("nobody hears where the sidecar serves (%s): %s", error.strerror, info.url)


async def _begin(start: Start) -> Sidecar:
    """Own the directory, load what is there, listen. Raises ``ConfigError``."""
    settings, life = start.settings, start.life
    egress, telemetry = (
        Egress.of(start.environ, start.instance),
        TelemetryParts.build(start.events, start.clock, start.layout.segment_bytes),
    )
    check_sets(settings.set)
    run = RunDirectory.of(start.environ)
    fingerprint = run.fingerprint(start.environ)
    claim = life.enter_context(run.claim(fingerprint))
    owned = await own_directory(start)
    await begin_access_log(start, owned.store)
    group = await life.enter_async_context(asyncio.TaskGroup())
    origins, chance = Origins.of(settings, start.environ, start.events, egress), random.Random()  # noqa: S311 -- spreads retries, guards nothing
    life.push_async_callback(origins.aclose)
    parts = build_cache(
        owned.store, owned.capacity, settings, Surroundings(origins, start.events, group, start.clock, asyncio.sleep, chance)
    )
    adopt(owned.found, owned.store, parts.resolver, parts.cache)
    parts.cache.room.measure_overhead()
    await parts.disk_monitor.fit()
    report = StatusReport(parts, telemetry, start.instance, start.clock)
    doors = SidecarDoors(start, parts, telemetry, report, origins.guard, egress.loop_guard, group)
    said = await doors.open(start, claim, can_lend=owned.store.can_lend)
    info = _info(start, owned, doors.http.address, fingerprint, said)
    owned.store.directory.announce(info.url, start.instance)
    claim.announce(_run_file(info, settings))
    report.introduce(info, settings, lambda: doors.fd.path)
    return Sidecar(info, start, claim, parts, doors, begin_tasks(start, parts, telemetry, report, group, chance))


def _info(start: Start, owned: OwnedDirectory, at: ServerAddress, fingerprint: str, said: tuple[str, ...]) -> ServiceInfo:
    notices = (*start.settings.notices, *owned.chosen, *owned.place.warnings, *owned.found.notices, *said)
    path, capacity_bytes = owned.store.path, owned.capacity.effective_bytes
    return ServiceInfo(at.url, at.port or 0, at.socket, path, start.instance, capacity_bytes, fingerprint, notices, owned.chosen)


def _run_file(info: ServiceInfo, settings: Settings) -> RunFile:
    socket = str(info.socket) if info.socket else None
    started_by: Any = "serve" if settings.idle_exit_s is None else "run"
    start_time = process_start_time(os.getpid()) or 0
    return RunFile(info.url, socket, os.getpid(), start_time, info.instance, str(info.cache_dir), info.fingerprint, started_by)


# The tasks while it serves. Each is begun again after a fault; one that fails again and again ends the sidecar.


def begin_tasks(
    start: Start, parts: CacheParts, telemetry: TelemetryParts, report: StatusReport, group: asyncio.TaskGroup, chance: random.Random
) -> dict[str, asyncio.Task[None]]:
    """By name."""
    settings, store, cache = start.settings, parts.store, parts.cache
    idle_verifier = IdleVerifier(cache.room, parts.segment_reader, lambda: store.idle, every_s=settings.verify_every_s, chance=chance)
    long_waits = LongWaits(cache.readers.waits, telemetry.board, start.clock)
    makes: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        **({"prefetch": parts.prefetcher.run, "sets": parts.sets.run} if settings.prefetch else {}),
        "tick": lambda: _tick(parts, report, long_waits, telemetry.troubles, start),
        "disk monitor": parts.disk_monitor.run,
        "loop lag": lambda: measure_lag(start.events),
        "sweep": store.sweeping.run,
        "sample indexes": parts.indexer.run,
        **({"sample": idle_verifier.run} if settings.verify_every_s else {}),
        **({"shared tier": parts.fetcher.shared.run} if parts.fetcher.shared is not None else {}),
        **({"shared writer": parts.shared_writer.run} if parts.shared_writer is not None else {}),
    }
    return {name: group.create_task(kept(name, make, start.ending.fault), name=name) for name, make in makes.items()}


async def _tick(parts: CacheParts, report: StatusReport, long_waits: LongWaits, troubles: Troubles, start: Start) -> NoReturn:
    """Once a second, until cancelled: silent readers expire, and refused work may be tried again."""
    cache = parts.cache
    while True:
        await asyncio.sleep(TICK_S)
        parts.limiters.look_again()
        parts.faults.expire()
        cache.readers.waits.look(report.readers_lately())
        long_waits.look()
        report.look()
        troubles.look(parts.ledger.capacity_bytes, cache.disk.state, cache.disk.reason)
        parts.prefetcher.look_again()
        parts.sets.look_again()
        cache.readers.let_rest(start.clock())
        cache.fd_lender.look_again()
        parts.plans.expire(cache.readers.is_reading)


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
