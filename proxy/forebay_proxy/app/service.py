"""The composition root: builds the parts, runs them in one task group, closes them in reverse."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from forebay_proxy.app.cache_rooms import Surroundings
from forebay_proxy.app.composition import build_cache
from forebay_proxy.app.operations import Operations
from forebay_proxy.app.plan_status import PlanStatus
from forebay_proxy.app.shutdown import Deadline, Shutdown
from forebay_proxy.app.startup import NotBegun, adopt, own_directory
from forebay_proxy.app.status import ServiceInfo, StatusReport
from forebay_proxy.background.plan_intake import PlanIntake
from forebay_proxy.background.set_prefetch import check_sets
from forebay_proxy.background.verifier import Sampling
from forebay_proxy.config.settings import Settings
from forebay_proxy.core import logs, secret_parameters
from forebay_proxy.core.errors import ConfigError, InvalidRequest, causes
from forebay_proxy.core.events import Events, PlanChanged, RequestDone
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.logs import frames_of
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SegmentLayout
from forebay_proxy.core.tasks import describe_fault, kept
from forebay_proxy.core.uids import anybodys_uid
from forebay_proxy.node.cache_location import Capacity
from forebay_proxy.node.runfile import Claim, RunDirectory, RunFile, process_start_time
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard, Refused
from forebay_proxy.origins.operators import operator_endpoints, operator_profiles
from forebay_proxy.origins.registry import Origins
from forebay_proxy.server.fd.server import FdServer, default_socket
from forebay_proxy.server.http.server import HttpServer
from forebay_proxy.server.net.access import Access
from forebay_proxy.server.net.process_limits import raise_limit
from forebay_proxy.store.store import Store
from forebay_proxy.telemetry.counters import Counters, PlanAdherence
from forebay_proxy.telemetry.logs.access_log import AccessLog
from forebay_proxy.telemetry.logs.request_log import log_request
from forebay_proxy.telemetry.long_waits import LongWaits
from forebay_proxy.telemetry.loop_lag import measure_lag
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.troubles import RecentErrors, Troubles
from forebay_proxy.wire.protocol.version import VERSION

__all__ = ["run_service", "serve"]

log = logging.getLogger("forebay")

# What has come whole only has to be written: the last segment of a reader that has just left. Longer means a disk in trouble.
FLIGHTS_END_S = 2.0
_ANYBODY = (
    "this user namespace does not map every user, and uid {0}, which this sidecar runs as, stands for all the others: local clients are "
    "refused; run it as another user of the namespace"
)
TICK_S = 1.0  # a silent reader is given a minute, a failed opening half of one


Announce = Callable[[ServiceInfo], None]


def run_service(settings: Settings, *, announce: Announce, layout: SegmentLayout = DEFAULT_LAYOUT) -> int:
    """Serve until a signal ends it, or the idle time is over. Returns the exit code; raises ``ConfigError`` when it cannot start.

    ``layout``: how shards are cut; no setting, as a directory that was filled under another would be of no use.
    """
    raise_limit()
    logs.set_up(settings.log_level)

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
            sidecar = _Sidecar(settings, environ, life, ending, layout)
            await sidecar.build()
            _tell(announce, sidecar.info)
            await sidecar.until()
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


class _Sidecar:
    """The parts of one sidecar, built in order; ``life`` closes them in reverse."""

    info: ServiceInfo

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], life: AsyncExitStack, ending: Shutdown, layout: SegmentLayout
    ) -> None:
        self._layout = layout
        self._ending = ending
        self._settings = settings
        self._environ = environ
        self._life = life
        self._clock = time.monotonic
        self._lingered_at = float("-inf")  # when a descriptor was last seen that has outlived its lease
        self._instance = secrets.token_hex(8)
        self._egress = Egress.of(environ, self._instance)
        self._events = Events()
        self._counters = Counters()
        self._adherence = PlanAdherence()
        self._board = OriginBoard(self._clock)
        self._recent_errors = RecentErrors(time.time)
        self._troubles = Troubles(self._clock, layout.segment_bytes, lambda: self._counters.bypassed)
        self._metrics = Metrics(version=VERSION)
        for listening in (self._counters, self._adherence, self._metrics, self._board, self._recent_errors):
            self._events.listen(listening.listen, listening.kinds)
        if log.isEnabledFor(logging.DEBUG):  # else nobody reads it
            self._events.on(RequestDone, log_request)

    async def build(self) -> None:
        """Own the directory, load what is there, listen. Raises ``ConfigError``."""
        check_sets(self._settings.set)
        run = RunDirectory.of(self._environ)
        fingerprint = run.fingerprint(self._environ)
        self._claim = claim = self._life.enter_context(run.claim(fingerprint))
        place, capacity, store, loaded = await own_directory(
            self._settings, self._environ, self._life, self._ending, self._clock, self._events, self._layout
        )
        await self._begin_access_log(store)
        group = await self._life.enter_async_context(asyncio.TaskGroup())
        self._build_cache(group, store, capacity)
        adopt(loaded, store, self._parts.filling.resolver, self._cache)
        self._cache.room.overhead.measure()
        said = await self._listen(claim, group)
        store.directory.announce(self._face.address.url, self._instance)
        chosen = (*place.notices, *capacity.notices)
        notices = (*self._settings.notices, *chosen, *place.warnings, *loaded.notices, *said)
        at = self._face.address
        self.info = ServiceInfo(
            at.url, at.port or 0, at.socket, store.path, self._instance, capacity.effective_bytes, fingerprint, notices, chosen
        )
        claim.announce(self._run_file(fingerprint))
        self._status_report.introduce(self.info, self._settings, lambda: self._door.listener.path)
        self._background = {
            name: group.create_task(kept(name, make, self._ending.fault), name=name)
            for name, make in {
                **({"prefetch": self._parts.background.prefetcher.run} if self._settings.prefetch else {}),
                **({"sets": self._parts.background.sets.run} if self._settings.prefetch else {}),
                "tick": self._tick,
                "disk monitor": self._parts.background.disk_monitor.run,
                "loop lag": lambda: measure_lag(self._events),
                "sweep": store.sweeping.run,
                "sample indexes": self._parts.background.indexer.run,
                **({"sample": self._sampling.run} if self._settings.verify_every_s else {}),
            }.items()
        }

    async def _begin_access_log(self, store: Store) -> None:
        path = self._settings.access_log
        if path is None:
            return
        if path.resolve().is_relative_to(store.path.resolve()):
            step = "name a file elsewhere: what lies in the cache directory counts against --cache-size, and a log grows without a bound"
            raise ConfigError(f"--access-log {path} is in the cache directory", next_step=step)
        access_log = AccessLog(path, store.directory.hmac_key, self._events, clock=self._clock)
        await access_log.start()
        self._life.push_async_callback(access_log.aclose)

    def _build_cache(self, group: asyncio.TaskGroup, store: Store, capacity: Capacity) -> None:
        settings, clock, events = self._settings, self._clock, self._events
        chance = random.Random()  # noqa: S311 -- spreads retries, guards nothing
        self._guard = Guard(settings.allow_origin, settings.strict_origins, operator_endpoints=operator_endpoints(settings, self._environ))
        origins = Origins.create(
            guard=self._guard, events=events, file_roots=settings.file_root, profiles=operator_profiles(settings, self._environ),
            connect_timeout_s=settings.connect_timeout_s, idle_timeout_s=settings.idle_timeout_s, user_agent=f"forebay/{VERSION}",
            egress=self._egress, gs_endpoint=settings.gs_endpoint or "", gs_anonymous=settings.gs_anonymous, environ=self._environ,
        )  # fmt: skip
        self._life.push_async_callback(origins.aclose)
        around = Surroundings(origins, events, group, clock, asyncio.sleep, chance)
        self._parts = parts = build_cache(store, capacity, settings, around)
        self._cache, self._plans = parts.cache, parts.resident.plans
        cache, plans = self._cache, self._plans
        self._long_waits = LongWaits(cache.readers.waits, self._board, clock)
        self._sampling = Sampling(
            cache.room, parts.resident.segment_check, lambda: store.idle, every_s=settings.verify_every_s, chance=chance
        )
        self._intake = PlanIntake(plans, parts.background.prefetcher, events)
        announced = PlanStatus(cache=cache, plans=plans, prefetcher=parts.background.prefetcher, adherence=self._adherence, clock=clock)
        self._status_report = StatusReport(
            cache=cache, plans=plans, announced=announced, counters=self._counters, limiters=parts.transfer.limiters,
            disk_monitor=parts.background.disk_monitor, board=self._board, recent_errors=self._recent_errors, instance=self._instance,
            clock=clock, sets=parts.background.sets.status_rows, troubles=self._troubles.rows,
        )  # fmt: skip
        self._metrics.watch(self._status_report.usage)

    async def _listen(self, claim: Claim, group: asyncio.TaskGroup) -> tuple[str, ...]:
        """Let readers in; returns what a person should know of how."""
        settings = self._settings
        access = Access(
            own_uid=os.getuid(),
            allow_uid=frozenset(settings.allow_uid),
            anybodys_uid=anybodys_uid(),
            hosts=frozenset({settings.host}),
            token=settings.token.get_secret_value() if settings.token else None,
        )
        sets = self._parts.background.sets
        self._face = HttpServer(
            cache=self._cache, plans=self._intake,
            operations=Operations(
                self._cache, self._parts.filling.resolver, self._parts.resident.segment_check, self._clock, sets.declare,
                self._parts.reading.tar_check, sets.remove,
            ),
            status=self._status_report.status, announced=self._status_report.announced, indexes=self._parts.background.indexer,
            metrics=self._metrics.render, access=access, events=self._events, pass_headers=settings.pass_header, clock=self._clock,
            loop_guard=self._egress.loop_guard, instance=self._instance, jobs=self._plans.jobs, allow=self._allow,
        )  # fmt: skip
        socket, said = default_socket(claim.socket) if settings.socket is None else (settings.socket or None, ())
        self._life.push_async_callback(self._face.aclose)
        await self._face.start(settings.host, settings.port, socket if socket is None else Path(socket))
        for host, port in self._face.address.bound:
            self._guard.add_own(host, port)
        self._door = FdServer(
            cache=self._cache.fd_lender, access=access, events=self._events, group=group, clock=self._clock,
            pass_headers=settings.pass_header,
            instance=self._instance, jobs=self._plans.jobs,
        )  # fmt: skip
        self._life.push_async_callback(self._door.aclose)
        self._door.open_beside(self._face.address.socket, can_lend=self._parts.resident.store.can_lend)
        return said if access.own_uid != access.anybodys_uid else (*said, _ANYBODY.format(access.own_uid))

    def _allow(self, origins: Sequence[str]) -> None:
        """``POST /v1/allow``. Raises ``InvalidRequest`` for what cannot be understood, or is closed by strict origins."""
        try:
            self._guard.allow(origins)
        except ConfigError as error:
            raise InvalidRequest(str(error), next_step=error.next_step) from error
        except Refused as error:
            raise InvalidRequest(error.cause, next_step=error.next_step, status=403) from error
        self._status_report.allowed(origins)
        log.info("origins allowed from now on too: %s", ", ".join(origins))

    def _run_file(self, fingerprint: str) -> RunFile:
        socket = str(self._face.address.socket) if self._face.address.socket else None
        started_by: Any = "serve" if self._settings.idle_exit_s is None else "run"
        start_time = process_start_time(os.getpid()) or 0
        path = str(self._parts.resident.store.path)
        return RunFile(self._face.address.url, socket, os.getpid(), start_time, self._instance, path, fingerprint, started_by)

    async def until(self) -> None:
        """Serve until asked to end, then end all parts, each before the parts that it needs."""
        idle_s, asked = self._settings.idle_exit_s, self._ending.asked
        while not asked.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(None if idle_s is None else max(1.0, idle_s / 10)):
                    await asked.wait()
            if self._cache.fd_lender.leases.lingering:
                self._lingered_at = self._clock()
            last_active = max(self._face.requests.last_active, self._door.clients.last_active, self._lingered_at)
            in_use = self._face.requests.in_use or self._door.clients.in_use
            if idle_s is not None and not in_use and self._clock() - last_active > idle_s:
                log.info("held and read by nobody for %g s: ending", idle_s)
                break
        await self._close()

    async def _close(self) -> None:
        self._ending.began()
        self._claim.close()  # nobody new joins
        self._parts.resident.store.directory.leaving()
        for name in {"prefetch", "sets"} & self._background.keys():
            self._background[name].cancel()
        await self._face.drain()
        await self._door.aclose()
        self._drop_unread()
        await self._face.aclose(self._settings.drain_timeout_s, self._ending.hurried)
        await self._parts.transfer.flights.ended(FLIGHTS_END_S)
        for task in self._background.values():
            task.cancel()
        self._parts.filling.resolver.cancel()
        self._parts.transfer.flights.cancel()
        self._parts.integrity.digest_check.stop()
        self._parts.background.indexer.stop()
        await self._parts.resident.tasks.idle()

    def _drop_unread(self) -> None:
        """Flights without a reader end now. Flights that a running answer needs go on, and bytes that have come are written."""
        keys = {reading.entry.key for reading in self._cache.readers}
        names = {reading.entry.name for reading in self._cache.readers}
        # The bytes of an opening are written by the opening itself.
        flights, entries = self._parts.transfer.flights, self._cache.room.entries
        names |= {entries[key].name for key in flights.arrived() if key in entries}
        flights.drop(keys.__contains__)
        self._parts.filling.resolver.drop(names.__contains__)

    async def _tick(self) -> None:
        """Once a second: silent readers expire, and refused work may be tried again."""
        while True:
            await asyncio.sleep(TICK_S)
            self._parts.transfer.limiters.look_again()
            self._parts.filling.resolver.expire()
            self._cache.readers.waits.look(self._status_report.readers_lately())
            self._long_waits.look()
            self._troubles.look(self._parts.resident.ledger.capacity_bytes, self._cache.disk.state, self._cache.disk.reason)
            self._parts.background.prefetcher.look_again()
            self._parts.background.sets.look_again()
            self._cache.readers.let_rest(self._clock())
            self._cache.fd_lender.look_again()
            for reader in self._plans.expire(self._cache.readers.is_reading):
                self._events.emit(PlanChanged(reader.job, "expired"))
