"""The index of the owned directory: read at the start, written while the directory is ours, and begun anew when it is damaged.

An empty index claims nothing, which is always safe. A damaged one is set aside rather than left: were it readable again at the next start,
its rows would speak of files that were replaced meanwhile.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping
from contextlib import suppress

import diskcache

from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.store.directory import Directory
from forebay_proxy.store.facts import IndexLost
from forebay_proxy.store.files.thread_pools import Pool, disk_failed
from forebay_proxy.store.index.database import IndexBroken, IndexDatabase, LoadedIndex
from forebay_proxy.store.index.row import Row, encode

__all__ = ["OwnedIndex"]


class OwnedIndex:
    """``thread`` is the one thread that the database is used by."""

    def __init__(self, directory: Directory, thread: Pool, events: Events, layout: SegmentLayout) -> None:
        self._directory = directory
        self._thread = thread
        self._events = events
        self._layout = layout
        self._database = IndexDatabase(directory.index, layout)

    async def load(self, notices: list[str]) -> LoadedIndex:
        """All rows; ``notices`` is told of an index that had to be set aside. Raises DiskFailed; OSError where the disk fails."""
        try:
            return await self._thread.run(self._database.load)
        except (IndexBroken, sqlite3.Error) as error:
            await self._thread.run(self._directory.set_index_aside)
            notices.append(f"the index was damaged ({error}): kept as index-broken; all shards will be fetched again")
        try:
            return await self._thread.run(self._database.load)
        except (IndexBroken, sqlite3.Error) as error:
            raise disk_failed("load", error, "index") from error

    async def commit(self, changes: Mapping[str, Row | None]) -> int:
        """Write ``changes`` (None: drop the row); returns the bytes of all in the directory that is no shard file. Raises DiskFailed."""
        try:
            return await self._thread.run(self._commit_and_measure, changes)
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            failure = disk_failed("index commit", error, f"{len(changes)} rows")
            if failure.errno_name == "EUCLEAN" or isinstance(error, FileNotFoundError):  # damaged, or removed under us
                await self._begin_anew()
            raise failure from error

    def _commit_and_measure(self, changes: Mapping[str, Row | None]) -> int:
        if not self._directory.in_place():  # without its lock file another sidecar may own it by now, and this very index
            raise FileNotFoundError(errno.ENOENT, "the cache directory was removed, replaced or unmounted")
        self._database.commit({key: None if row is None else encode(row, self._layout) for key, row in changes.items()})
        return self._directory.overhead()

    async def _begin_anew(self) -> None:
        """None is made where the directory is not ours any more."""
        with suppress(OSError, sqlite3.Error, IndexBroken):  # the next commit will tell
            if not await self._thread.run(self._directory.in_place):
                return
            await self._thread.run(self._database.close)
            await self._thread.run(self._directory.set_index_aside)
            await self._thread.run(self._database.load)
            self._events.emit(IndexLost())

    async def aclose(self) -> None:
        await self._thread.run(self._database.close)
