"""The composition root: builds the parts of a sidecar in order, runs them in one task group; what it enters closes them in reverse."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from forebay_proxy.app.cache_rooms import Surroundings
from forebay_proxy.app.composition import build_cache
from forebay_proxy.app.doors import SidecarDoors
from forebay_proxy.app.service_tasks import begin_tasks
from forebay_proxy.app.shutdown import Deadline, Shutdown
from forebay_proxy.app.sidecar import Sidecar
from forebay_proxy.app.startup import NotBegun, OriginParts, OwnedDirectory, Start, adopt, own_directory
from forebay_proxy.app.status import ServiceInfo
from forebay_proxy.app.telemetry_parts import TelemetryParts, begin_access_log
from forebay_proxy.background.set_prefetch import check_sets
from forebay_proxy.config.settings import Settings
from forebay_proxy.core import logs, secret_parameters
from forebay_proxy.core.errors import ConfigError, causes
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.logs import frames_of
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SegmentLayout
from forebay_proxy.core.tasks import describe_fault
from forebay_proxy.node.runfile import RunDirectory, RunFile, process_start_time
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.server.http.connection import raise_limit
from forebay_proxy.server.http.server import ServerAddress

__all__ = ["run_service", "serve"]

log = logging.getLogger("forebay")

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
    egress, telemetry = Egress.of(start.environ, start.instance), TelemetryParts.build(start)
    check_sets(settings.set)
    run = RunDirectory.of(start.environ)
    fingerprint = run.fingerprint(start.environ)
    claim = life.enter_context(run.claim(fingerprint))
    owned = await own_directory(start)
    await begin_access_log(start, owned.store)
    group = await life.enter_async_context(asyncio.TaskGroup())
    outward, chance = OriginParts.build(start, egress), random.Random()  # noqa: S311 -- spreads retries, guards nothing
    parts = build_cache(
        owned.store, owned.capacity, settings, Surroundings(outward.origins, start.events, group, start.clock, asyncio.sleep, chance)
    )
    adopt(owned.found, owned.store, parts.filling.resolver, parts.cache)
    parts.cache.room.overhead.measure()
    report = telemetry.report_on(parts, start)
    doors = SidecarDoors(start, parts, telemetry, report, outward, group)
    said = await doors.open(start, claim, outward.guard, can_lend=owned.store.can_lend)
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
