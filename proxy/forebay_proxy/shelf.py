"""Bytes that are here: read from their file; verified before their first use where another boot of the machine stored them."""

from __future__ import annotations

import logging

from forebay_proxy import events
from forebay_proxy.chores import Chores
from forebay_proxy.clearing import Clearing
from forebay_proxy.diskhealth import DiskHealth
from forebay_proxy.entry import Entry
from forebay_proxy.errors import DiskFailed
from forebay_proxy.events import Events
from forebay_proxy.openfiles import OpenFiles
from forebay_proxy.room import Room
from forebay_proxy.segments import index_of, segment_span

__all__ = ["Shelf"]

log = logging.getLogger("forebay")


class Shelf:
    """Reads stored segments, and has those removed that turn out wrong. Not thread-safe: the event loop's only."""

    def __init__(self, *, room: Room, clearing: Clearing, files: OpenFiles, disk: DiskHealth, events: Events, chores: Chores) -> None:
        self._room = room
        self._clearing = clearing
        self._files = files
        self._disk = disk
        self._events = events
        self._chores = chores

    async def read(self, entry: Entry, first: int, buffer: memoryview) -> bytes | memoryview:
        """As many bytes as ``buffer`` holds, from ``first`` on. Raises ``DiskFailed``.

        In ``buffer`` where they are in memory and the loop could read them, else from the disk, in a read thread.
        """
        try:
            file = entry.file or await self._files.stored(entry)
            return buffer if file.read_now(first, buffer) else await file.read(first, len(buffer))
        except DiskFailed as error:
            self._disk.failed(error)
            if entry.segments.has(index_of(first)):
                self._chores.spawn(self._clearing.discard(entry, index_of(first)), "discard")
            raise

    async def trusted(self, entry: Entry, index: int) -> bool:
        """Verify a segment stored under another boot; a wrong one is removed."""
        if index not in entry.segments.unverified:
            return True
        first, size = segment_span(index, entry.version.length)
        try:
            found = await (await self._files.stored(entry)).digest(first, size)
        except DiskFailed as error:
            self._disk.failed(error)
            found = 0
        if index not in entry.segments.unverified:  # somebody else came to an end with it meanwhile
            return entry.segments.has(index)
        good = found == entry.segments.sums[index]
        if good:
            entry.segments.unverified.discard(index)
            self._room.claim(entry)
            return True
        log.warning("shard %s: segment %d is not what was stored before the last boot; it is fetched again", entry.name, index)
        self._events.emit(events.IntegrityFailed("recovery"))
        await self._clearing.discard(entry, index)
        return False
