"""The shard files that are kept open: opened or made when a segment is allocated or read, closed when there are too many.

``VersionFile.lock`` is held while a file is made, closed or removed. Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.core.errors import CacheFull, DiskFailed
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files.shard_file import PATIENCE_S, ShardFile
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store

__all__ = ["OpenFiles"]

log = logging.getLogger("forebay")
OPEN_FILES = 512  # descriptors for unused shards; with a limit of 1,024, sockets must still get some
_NOT_IT = ("ENOENT", "ESTALE", "ELOOP")  # no file has the name, or another file has it


class OpenFiles:
    """The open files, in the order of their last use."""

    def __init__(self, room: SpaceManager, store: Store, disk: DiskHealth) -> None:
        self._room = room
        self._store = store
        self._disk = disk
        self._open: OrderedDict[str, Entry] = OrderedDict()

    def __repr__(self) -> str:
        return f"<OpenFiles {len(self._open)} open>"

    def __len__(self) -> int:
        return len(self._open)

    async def open(self, entry: Entry) -> ShardFile:
        """The entry's file, opened or made. The caller holds ``entry.stored.lock``. Raises ``DiskFailed``, ``Leased``."""
        file = entry.stored.file
        if file is None:
            if entry.stored.filed:
                file = entry.stored.file = await self._reopened(entry)
            else:
                if self._store.index_writer.unsettled(entry.key):  # a row of a file that was removed would speak for this one after a kill
                    await self._store.index_writer.committed()
                file = await self._store.files.create(entry.key, entry.version.length)
                entry.stored.made(file)
        self._open[entry.key] = entry
        self._open.move_to_end(entry.key)
        return file

    async def _reopened(self, entry: Entry) -> ShardFile:
        try:
            file = await self._store.files.reopen(entry.key, entry.version.length, list(entry.segments.stored()))
        except DiskFailed as error:
            if error.errno_name in _NOT_IT:
                self._open.pop(entry.key, None)
                self._room.lost(entry)
            raise
        doubtful = {index for index in file.lacking if entry.segments.has(index)}
        if doubtful:
            log.warning("shard %s: %d segments are not whole in their file; they are verified before use", entry.name, len(doubtful))
            entry.segments.unverified |= doubtful
        return file

    async def stored(self, entry: Entry) -> ShardFile:
        """The file of an entry with stored segments. Waits for the entry's lock: a removal holds it, and may hang with the disk.

        Raises ``DiskFailed``, also after ``PATIENCE_S``; ``CacheError`` if the disk hangs.
        """
        self._disk.must_answer()
        try:
            async with asyncio.timeout(PATIENCE_S), entry.stored.lock:
                if not entry.stored.filed:
                    raise DiskFailed("read", "ENOENT", f"the file of shard {entry.name} is gone")
                return await self.open(entry)
        except TimeoutError:
            raise DiskFailed("open", "ETIMEDOUT", f"no answer within {PATIENCE_S:g} s ({entry.name})") from None

    async def allocate(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        """The entry's file with segment ``index`` allocated in it, for ``grant``, whose victims are gone. Waits for the entry's lock.

        Raises ``CacheFull``, ``DiskFailed``, ``Leased``. After ``ETIMEDOUT``, as after a cancellation, blocks may be allocated.
        """
        first, size = entry.segments.span(index)
        async with entry.stored.lock:
            file = await self.open(entry)
        if entry.segments.has(index):
            raise CacheFull(f"segment {index} could not be removed, and stays")
        if index in entry.stored.writing:  # this call is late: its fetch went on without it, and another one is here
            raise CacheFull(f"segment {index} is being written already")
        entry.stored.charged_bytes += grant.bytes
        entry.stored.writing.add(index)
        try:
            await file.allocate(first, size)
        except DiskFailed as error:
            if error.errno_name != "ETIMEDOUT":
                entry.stored.charged_bytes -= grant.bytes
                entry.stored.writing.discard(index)
            raise
        if self._store.abilities.allocate:
            self._room.ledger.allocated(grant)
        return file

    async def remove(self, entry: Entry) -> None:
        """Unlink the entry's file. The caller holds ``entry.stored.lock``. Raises ``DiskFailed``, ``Leased``; nothing has changed then."""
        await (await self.open(entry)).remove()
        self._forget(entry)

    async def leave_behind(self, entry: Entry) -> None:
        """Close and forget a file that cannot be removed: it stays, empty, until it is replaced or a start finds it."""
        file = entry.stored.file
        self._forget(entry)
        if file is not None:
            await file.aclose()

    def _forget(self, entry: Entry) -> None:
        self._open.pop(entry.key, None)
        self._room.without_file(entry)

    async def close_idle(self) -> None:
        """Close the files of idle shards beyond ``OPEN_FILES``, the longest unused first."""
        surplus = len(self._open) - OPEN_FILES
        idle = [entry for entry in self._open.values() if _unused(entry)] if surplus > 0 else []
        for entry in idle[:surplus]:
            async with entry.stored.lock:
                if _unused(entry) and entry.stored.file is not None:
                    file, entry.stored.file = entry.stored.file, None
                    self._open.pop(entry.key, None)
                    await file.aclose()


def _unused(entry: Entry) -> bool:
    """Whether it is idle and not lent: the end of a lease is found through this file."""
    return entry.in_use.idle and not entry.segments.whole_leases
