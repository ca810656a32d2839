"""Looks after the cache disk: once a second how full it is, and whether the directory is where it was.

The looks run in a thread of their own and are given ``PATIENCE_S``; a disk that does not answer even those hangs, and nobody waits for it.
What follows from a look is decided elsewhere: ``Headroom`` says what may be granted now, ``DiskHealth`` whether anything may be stored,
``Reclaimer`` lets go of what stands above a capacity that shrank.

A directory that was removed, replaced or unmounted is not made anew: its path may lead to another program's files now, and
open files of a directory that was mounted again have no path any more. Everything passes through memory until the sidecar is started again.
"""

from __future__ import annotations

import asyncio
import logging

from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.policy.eviction.headroom import Headroom
from forebay_proxy.store.directory import Look
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store

__all__ = ["DiskMonitor"]

log = logging.getLogger("forebay")

LOOK_S = 1.0  # other programs fill a disk in minutes, not in seconds
PATIENCE_S = 5.0  # for a look: milliseconds on a disk that is well, and a busy one is given time


class DiskMonitor:
    """Watches one store. Not thread-safe: the event loop's only."""

    def __init__(
        self,
        *,
        store: Store,
        room: SpaceManager,
        reclaimer: Reclaimer,
        files: OpenFiles,
        health: DiskHealth,
        headroom: Headroom,
        tasks: BackgroundTasks,
    ) -> None:
        self.seen: Look | None = None  # the last look; levels are pulled from here, nobody else asks the disk
        self._store = store
        self._room = room
        self._reclaimer = reclaimer
        self._files = files
        self._health = health
        self._headroom = headroom
        self._tasks = tasks
        self._tending = False

    def __repr__(self) -> str:
        return f"<DiskMonitor {self._health!r}, {self._headroom!r}>"

    async def fit(self) -> None:
        """Before anybody is served: what a size that was made smaller has no room for leaves. A disk that hangs is waited for so long."""
        if self._room.ledger.excess_bytes():
            self._tending = True
            if (tending := self._tasks.spawn(self._tend(), "fit")) is not None:
                await asyncio.wait((tending,), timeout=PATIENCE_S)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Look once, and do what follows."""
        self._room.ledger.watch()
        try:
            self.seen = seen = await self._store.look(PATIENCE_S)
        except DiskFailed as error:
            self._health.failed(error)
        else:
            self._follow(seen)
        self._health.look()
        if not self._health.lost and not self._tending:
            self._tending = True
            self._tasks.spawn(self._tend(), "tend")

    def _follow(self, seen: Look) -> None:
        self._headroom.looked(seen.free_bytes, self._room.ledger.least_bytes, seen.size_bytes)
        self._room.ledger.capacity_bytes = self._headroom.capacity_bytes
        if not seen.in_place:
            self._health.lose(f"cache directory {self._store.path} was removed, replaced or unmounted")

    def space_refused(self, error: DiskFailed) -> None:
        """ENOSPC or EDQUOT. A file that cannot be made says nothing of bytes: inodes lack."""
        if error.operation != "create":
            self._headroom.refused(self._room.ledger.held_bytes)
            self._room.ledger.capacity_bytes = self._headroom.capacity_bytes
            # Now, as others may give back what they took before the next second: how full it was is what tells later that there is more.
            self._tasks.spawn(self.look(), "look")

    async def _tend(self) -> None:
        """One task at a time, for which no caller waits: any of this may hang with the disk."""
        try:
            await self._reclaimer.work_off()
            await self._files.close_idle()
            await self._store.sweeping.run()
        finally:
            self._tending = False
