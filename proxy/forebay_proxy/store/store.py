"""The store: sparse shard files and the index that says what they hold, in one cache directory with one owner.

``Store.open`` takes the directory's lock and probes the file system. ``load`` compares rows with files, and ``sweeping`` removes what does
not match. From then on ``index_writer`` writes the index, and ``files`` makes and opens shard files. The store counts and decides nothing:
the ledger counts bytes, and the cache decides what leaves. Used on the event loop alone; blocking calls run in the pools.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import diskcache

from forebay_proxy.core.errors import ConfigError, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SegmentLayout
from forebay_proxy.node.cache_location import file_system_type, is_network, read_mounts
from forebay_proxy.store.directory import Directory, Look, boot_id
from forebay_proxy.store.files import fallocate, file_io, page_cache
from forebay_proxy.store.files.fallocate import Abilities
from forebay_proxy.store.files.shard_file import PATIENCE_S, ShardFile
from forebay_proxy.store.files.thread_pools import Pools, disk_errors, disk_failed
from forebay_proxy.store.garbage import GarbageSweep
from forebay_proxy.store.index.database import IndexBroken, IndexDatabase, LoadedIndex
from forebay_proxy.store.index.row import Row, encode
from forebay_proxy.store.index.writer import IndexWriter
from forebay_proxy.store.recovery import StartReport, describe, recover
from forebay_proxy.store.sample_index_files import SampleFiles

__all__ = ["ShardFiles", "StartReport", "Store"]


class ShardFiles:
    """Makes shard files, and opens them again."""

    def __init__(self, directory: Directory, pools: Pools, abilities: Abilities, sweeping: GarbageSweep, layout: SegmentLayout) -> None:
        self.open: dict[str, ShardFile | None] = {}  # by store key; None: being opened
        self._late = set[str]()  # being opened by a call that has no waiter any more
        self._directory = directory
        self._pools = pools
        self._abilities = abilities
        self._sweeping = sweeping
        self._layout = layout

    def __repr__(self) -> str:
        return f"<ShardFiles {len(self.open)} open, {len(self._late)} late>"

    async def create(self, key: str, length: int | None) -> ShardFile:
        """A new sparse file of ``length`` bytes (None: empty, it grows).

        Raises DiskFailed, or Leased if a client holds an old file there.
        """

        def opener() -> int:
            return file_io.create(key, self._directory.shards, length, self._abilities)

        if not self._is_untidy(key):
            return await self._open_file(key, "create", opener)
        async with self._sweeping.apart(key):
            file = await self._open_file(key, "create", opener)
            self._sweeping.replaced(key)
            return file

    async def reopen(self, key: str, length: int | None = None, claimed: Sequence[int] = ()) -> ShardFile:
        """Open a file that ``load`` kept or ``create`` made, and that was closed since. Raises DiskFailed.

        ``ESTALE``: another file has its name, or the file is not ``length`` bytes long. The file's ``lacking`` are the segments of
        ``claimed`` that are not wholly in it.
        """
        lacking = set[int]()

        def opener() -> int:
            fd = file_io.reopen(key, self._directory.shards, length)
            lacking.update(file_io.lacking(fd, ((index, *self._layout.span(index, length)) for index in claimed)))  # raises nothing
            return fd

        async with self._sweeping.apart(key) if self._is_untidy(key) else nullcontext():
            file = await self._open_file(key, "open", opener)
            file.lacking = frozenset(lacking)
            return file

    def _is_untidy(self, key: str) -> bool:
        return key in self._sweeping.garbage or key in self._sweeping.unclaimed

    async def _open_file(self, key: str, operation: str, opener: Callable[[], int]) -> ShardFile:
        if key in self._late:
            raise DiskFailed(operation, "ETIMEDOUT", f"an earlier call has not come back (shard file {key[:12]})")
        if key in self.open:
            raise ValueError(f"shard file {key[:12]} is open already")
        self.open[key] = None
        try:
            with disk_errors(operation, f"shard file {key[:12]}"):
                late = partial(self._opens_late, key, operation)
                fd = await self._pools.writes.run(opener, undo=os.close, patience_s=PATIENCE_S, late=late)
        finally:
            if key not in self._late:
                del self.open[key]
        file = ShardFile(key, fd, self._directory.shards, pools=self._pools, abilities=self._abilities, closed=self._forget)
        self.open[key] = file
        return file

    def _opens_late(self, key: str, operation: str, call: asyncio.Future[int]) -> None:
        """No caller waits for ``call`` any more. The file must not be made again until the call returns: it would remove the new file.

        A file that the late call has made is garbage.
        """
        self._late.add(key)

        def came_back(_: asyncio.Future[int]) -> None:
            self._late.discard(key)
            del self.open[key]
            if operation == "create":
                self._sweeping.add({key: 0}, {})

        call.add_done_callback(came_back)

    def _forget(self, file: ShardFile) -> None:
        del self.open[file.key]

    async def aclose(self) -> None:
        """Close all files."""
        async with AsyncExitStack() as stack:
            for file in list(self.open.values()):
                if file is not None:
                    stack.push_async_callback(file.aclose)


class Store:
    """The owner of one cache directory.

    It reports faults and commits to ``events``, see ``facts.py``. ``boot_id`` names the boot of the machine and this very folder of shards.
    A row with another value was written before the boot or elsewhere; its segments are verified before their first use.
    """

    def __init__(
        self, directory: Directory, pools: Pools, abilities: Abilities, boot_id: str, events: Events, layout: SegmentLayout
    ) -> None:
        self.boot_id = boot_id
        self.layout = layout
        self.index_writer = IndexWriter(self._commit, events)
        self.directory = directory
        self._pools = pools
        self.abilities = abilities  # of the file system, see ``Abilities``
        self._index = IndexDatabase(directory.index, layout)  # used by its one thread only
        self._measured_bytes = 0  # after the last commit
        self.sweeping = GarbageSweep(pools.writes, directory.shards, abilities, events)
        self.files = ShardFiles(directory, pools, abilities, self.sweeping, layout)
        self.samples = SampleFiles(directory.samples, pools)
        self._closed = False

    def __repr__(self) -> str:
        return f"<Store {self.path}, {len(self.files.open)} files open, {self.sweeping!r}>"

    @classmethod
    async def open(cls, directory: Path, *, who: str, events: Events | None = None, layout: SegmentLayout = DEFAULT_LAYOUT) -> Store:
        """Own ``directory``, making it if needed. ``layout`` says how shards are cut. Without ``events``, faults are not reported.

        Raises ConfigError if it has another owner, or cannot be written.
        """
        async with AsyncExitStack() as undo:
            pools = Pools.start()
            undo.push_async_callback(pools.aclose)
            owned = await pools.writes.run(Directory.open, directory, who, undo=Directory.close)
            undo.callback(owned.close)
            try:
                abilities = await pools.writes.run(fallocate.probe, owned.shards)
                if page_cache.can_send(layout.segment_bytes) and not is_network(file_system_type(owned.path, read_mounts())):
                    abilities = replace(abilities, send=await pools.writes.run(page_cache.probe, owned.shards))
            except OSError as error:
                raise ConfigError(f"cache directory {owned.path} cannot be written: {error.strerror}") from error
            undo.pop_all()
        # In a copy of this directory, made while it was in use, rows and files are of different moments: rows are trusted here only.
        return cls(owned, pools, abilities, f"{boot_id()} {owned.place()}", events or Events(), layout)

    @property
    def path(self) -> Path:
        """The cache directory, absolute."""
        return self.directory.path

    @property
    def idle(self) -> bool:
        """Whether no read or write is running."""
        return self._pools.reads.idle and self._pools.writes.idle

    @property
    def can_lend(self) -> bool:
        """Whether a lock on a passed descriptor holds. Not on a network file system, whatever it answers."""
        return self.abilities.lock and not is_network(file_system_type(self.path, read_mounts()))

    async def load(self) -> StartReport:
        """Read the index and compare it with the files. From then on the index is written. Raises ConfigError if the index cannot be read.

        It removes nothing, so its time does not grow with what a killed process, or a lost index, left behind: ``sweeping`` removes that.
        """
        notices = list[str]()
        try:
            with disk_errors("load", str(self.path)):
                index = await self._load_index(notices)
                scan = await self._pools.reads.run(self.directory.scan)
        except DiskFailed as error:
            raise ConfigError(f"cache directory {self.path} cannot be used: {error}", next_step="name another with --cache-dir") from error
        loaded = recover(index.rows, scan, index.committed_at, self.layout)
        loaded.rows_refused, loaded.notices = index.refused, notices
        if not self.abilities.punch:
            loaded.unclaimed_bytes = 0
        self.sweeping.add(loaded.garbage, loaded.unclaimed)
        self.samples.found(scan.samples)
        self.measure()
        describe(loaded)
        self.index_writer.start()
        await self._drop(loaded.dropped)
        return loaded

    async def _load_index(self, notices: list[str]) -> LoadedIndex:
        """All rows. A damaged index is moved away and replaced by an empty one, which claims nothing and is always safe.

        It must not stay: if the next start could read it again, its rows would describe files that were replaced since. Raises OSError,
        sqlite3.Error.
        """
        try:
            return await self._pools.index.run(self._index.load)
        except (IndexBroken, sqlite3.Error) as error:
            await self._pools.index.run(self.directory.set_index_aside)
            notices.append(f"the index was damaged ({error}): kept as index-broken; all shards will be fetched again")
        try:
            return await self._pools.index.run(self._index.load)
        except (IndexBroken, sqlite3.Error) as error:
            raise disk_failed("load", error, "index") from error

    async def _drop(self, keys: list[str]) -> None:
        """Drop rows. No file of these keys may be made again before the index on the disk has forgotten them."""
        for key in keys:
            self.index_writer.drop(key)
        if keys:
            with suppress(DiskFailed):  # reported to listeners; it goes with the next commit
                await self.index_writer.committed()

    async def _commit(self, changes: Mapping[str, Row | None]) -> None:
        try:
            self._measured_bytes = await self._pools.index.run(self._commit_and_measure, changes)
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            raise disk_failed("index commit", error, f"{len(changes)} rows") from error

    def _commit_and_measure(self, changes: Mapping[str, Row | None]) -> int:
        if not self.directory.in_place():  # without its lock file another sidecar may own the directory, and this index, by now
            raise FileNotFoundError(errno.ENOENT, "the cache directory was removed, replaced or unmounted")
        self._index.commit({key: None if row is None else encode(row, self.layout) for key, row in changes.items()})
        return self.directory.overhead()

    async def look(self, patience_s: float) -> Look:
        """Measure how full the disk is, and whether the directory is where it was. Raises DiskFailed."""
        with disk_errors("look", str(self.path)):
            return await self._pools.watch.run(self.directory.look, patience_s=patience_s)

    @property
    def overhead_bytes(self) -> int:
        """The result of ``measure`` as of the last commit, without asking the disk."""
        return self._measured_bytes + self.sweeping.garbage_bytes + self.samples.bytes

    def measure(self) -> int:
        """Allocated bytes of everything but live shard files: index, lock, key, log, folders, unknown files and garbage."""
        self._measured_bytes = self.directory.overhead()
        return self.overhead_bytes

    def disown(self, key: str, allocated_bytes: int) -> None:
        """A file that ``load`` kept is of no use: drop its row, and remove it at the next sweep."""
        self.index_writer.drop(key)
        self.sweeping.add({key: allocated_bytes}, {})

    async def aclose(self) -> None:
        """Commit the pending changes, close all files, and give the directory up. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as stack:
            stack.callback(self.directory.close)
            stack.push_async_callback(self._pools.aclose)
            stack.push_async_callback(self._pools.index.run, self._index.close)
            stack.push_async_callback(self.files.aclose)
            stack.push_async_callback(self.index_writer.aclose)
