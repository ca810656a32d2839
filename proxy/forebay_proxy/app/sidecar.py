"""A sidecar that serves: until it is asked to end or has long been idle, and then until all of its parts have ended, in their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from forebay_proxy.app.composition import CacheParts
from forebay_proxy.app.doors import SidecarDoors
from forebay_proxy.app.startup import Start
from forebay_proxy.app.status import ServiceInfo
from forebay_proxy.node.runfile import Claim

__all__ = ["Sidecar"]

log = logging.getLogger("forebay")

# What has come whole only has to be written: the last segment of a reader that has just left. Longer means a disk in trouble.
FLIGHTS_END_S = 2.0


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
        if self._parts.fd_leases.lingering:
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
        await parts.flights.ended(FLIGHTS_END_S)
        for task in self._tasks.values():
            task.cancel()
        parts.resolver.cancel()
        parts.flights.cancel()
        parts.digest_check.stop()
        parts.indexer.stop()
        await parts.tasks.idle()

    def _drop_unread(self) -> None:
        """Flights without a reader end now. Flights that a running answer needs go on, and bytes that have come are written."""
        cache, flights = self._parts.cache, self._parts.flights
        keys = {reading.entry.key for reading in cache.readers}
        names = {reading.entry.name for reading in cache.readers}
        # The bytes of an opening are written by the opening itself.
        entries = cache.room.entries
        names |= {entries[key].name for key in flights.arrived() if key in entries}
        flights.drop(keys.__contains__)
        self._parts.resolver.drop(names.__contains__)
