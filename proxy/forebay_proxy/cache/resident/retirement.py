"""Forgets shard versions of which nothing is left: first their files go, then they are nobody's any more."""

from __future__ import annotations

import logging

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import EntryRetired
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.background_tasks import BackgroundTasks, to_its_end
from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.store.files.file_io import Leased

__all__ = ["Retirement"]

log = logging.getLogger("forebay")


class Retirement:
    """Asked whenever somebody leaves an entry, or something of it does. Not thread-safe: the event loop's only."""

    def __init__(self, room: SpaceManager, files: OpenFiles, tasks: BackgroundTasks, events: Events) -> None:
        self._events = events
        self._room = room
        self._files = files
        self._tasks = tasks

    def retire(self, entry: Entry) -> None:
        """Forget an entry of which nothing is left and in which nobody is, once its file is gone too."""
        if not self._is_over(entry):
            return
        if entry.stored.filed:
            self._tasks.spawn(self._clean_up(entry), "clean up")
            return
        self._room.forget(entry)
        self._events.emit(EntryRetired(entry))

    def _is_over(self, entry: Entry) -> bool:
        return entry.in_use.idle and not entry.segments.stored_count and self._room.entries.get(entry.key) is entry

    async def _clean_up(self, entry: Entry) -> None:
        """Remove the file in which nothing is left, unless somebody came meanwhile."""
        async with entry.stored.lock:
            if not (self._is_over(entry) and entry.stored.filed):
                return
            await to_its_end(self._remove_file(entry))
        self.retire(entry)

    async def _remove_file(self, entry: Entry) -> None:
        try:
            await self._files.remove(entry)
        except (DiskFailed, Leased) as error:
            log.warning("the file of shard %s could not be removed: %s", entry.name, error)
            await self._files.leave_behind(entry)
