"""The store: sparse shard files and the index of what is claimed of them, in one cache directory with one owner.

Opening takes the directory's lock and probes what its file system can do; ``load`` makes files and rows agree; from then on ``claims`` is
the index, and ``create`` and ``reopen`` hand out shard files. The store counts nothing and decides nothing: who holds how many bytes is
the ledger's, who leaves is the cache's. The event loop's only; all that blocks runs in the pools.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import diskcache

from forebay_proxy import fallocate, fileio
from forebay_proxy.claims import Claims
from forebay_proxy.directory import Directory
from forebay_proxy.diskerror import disk_errors, disk_failed
from forebay_proxy.errors import ConfigError
from forebay_proxy.fallocate import Abilities
from forebay_proxy.index import Index, IndexBroken, LoadedIndex
from forebay_proxy.pools import Pools
from forebay_proxy.recovery import recover, remove_stuck
from forebay_proxy.row import Row
from forebay_proxy.shardfile import ShardFile

__all__ = ["Loaded", "Store"]

_NAMES_SHOWN = 8


@dataclass(slots=True)
class Loaded:
    """What a start found. ``allocated_bytes`` counts everything in the directory, ``allocated`` each kept shard's file."""

    rows: list[Row] = field(default_factory=list)
    allocated: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)  # names that are not ours: left alone, counted as overhead
    stuck: list[str] = field(default_factory=list)  # keys of unclaimed files held by a passed descriptor: counted as overhead
    rows_refused: int = 0
    rows_without_file: int = 0
    files_without_row: int = 0
    punched_bytes: int = 0
    allocated_bytes: int = 0
    notices: list[str] = field(default_factory=list)


class Store:
    """The owner of one cache directory.

    ``claims.on_commit`` and ``claims.on_failure`` tell of the index. ``on_index_lost`` is called when the index had to be begun anew
    while running: the caller then puts every row again.
    """

    def __init__(self, directory: Directory, pools: Pools, abilities: Abilities, boot_id: str, who: str) -> None:
        self.boot_id = boot_id
        self.claims = Claims(self._commit)
        self.on_index_lost: Callable[[], None] = lambda: None
        self._directory = directory
        self._pools = pools
        self._abilities = abilities
        self._who = who
        self._index = Index(directory.index)
        self._files: dict[str, ShardFile | None] = {}  # None: being opened
        self._stuck: dict[str, int] = {}
        self._sweeping = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Store {self.path}, {len(self._files)} files open, {len(self._stuck)} stuck>"

    @classmethod
    async def open(cls, directory: Path, *, who: str) -> Store:
        """Own ``directory``, making it if needed. Raises ConfigError: another owner, or a place that cannot be written."""
        async with AsyncExitStack() as undo:
            pools = Pools.start()
            undo.push_async_callback(pools.aclose)
            owned = await pools.writes.run(Directory.open, directory, who, undo=Directory.close)
            undo.callback(owned.close)
            try:
                abilities = await pools.writes.run(fallocate.probe, owned.shards)
            except OSError as error:
                raise ConfigError(f"cache directory {owned.path} cannot be written: {error.strerror}") from error
            undo.pop_all()
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()  # noqa: ASYNC240 -- procfs does not block
        return cls(owned, pools, abilities, boot_id, who)

    @property
    def path(self) -> Path:
        """The cache directory, absolute."""
        return self._directory.path

    @property
    def can_punch(self) -> bool:
        """Whether part of a shard can leave; else only a whole one can."""
        return self._abilities.punch

    @property
    def can_allocate(self) -> bool:
        """Whether blocks can be reserved before they are written; else a write may still run out of space."""
        return self._abilities.allocate

    @property
    def hmac_key(self) -> bytes:
        """32 secret bytes that outlive the process: the key of credential HMACs in rows."""
        return self._directory.hmac_key

    def announce(self, url: str, instance: str) -> None:
        """Say in the lock file where we serve: a second owner-to-be is told."""
        self._directory.announce(self._who, url, instance)

    async def load(self) -> Loaded:
        """Read the index and make it agree with the files; the index may be written from then on. Raises DiskFailed."""
        loaded = Loaded()
        with disk_errors("load", str(self.path)):
            index = await self._load_index(loaded)
            scan = await self._pools.reads.run(self._directory.scan)
            found = await self._pools.writes.run(recover, index.rows, scan, self._directory.shards, self._abilities)
        loaded.rows, loaded.allocated, loaded.unknown = found.rows, found.allocated, scan.unknown
        loaded.rows_refused, loaded.rows_without_file = index.refused, len(found.dropped)
        loaded.files_without_row, loaded.punched_bytes = found.removed, found.punched_bytes
        loaded.stuck, self._stuck = list(found.stuck), found.stuck
        loaded.allocated_bytes = self.measure() + sum(found.allocated.values())
        _describe(loaded)
        self.claims.start()
        for key in found.dropped:
            self.claims.drop(key)
        return loaded

    async def _load_index(self, loaded: Loaded) -> LoadedIndex:
        try:
            return await self._pools.index.run(self._index.load)
        except IndexBroken as error:
            await self._pools.index.run(self._directory.set_index_aside)
            loaded.notices.append(f"the index was damaged ({error}): kept as index-broken; all shards will be fetched again")
            return await self._pools.index.run(self._index.load)
        except sqlite3.Error as error:
            raise disk_failed("load", error, "index") from error

    async def _commit(self, changes: Mapping[str, str | None]) -> None:
        try:
            await self._pools.index.run(self._index.commit, changes)
        except (sqlite3.Error, diskcache.Timeout, OSError) as error:
            failure = disk_failed("index commit", error, f"{len(changes)} rows")
            if failure.errno_name == "EUCLEAN" or isinstance(error, FileNotFoundError):  # damaged, or removed under us
                await self._begin_index_anew()
            raise failure from error

    async def _begin_index_anew(self) -> None:
        """An empty index claims nothing, which is always safe."""
        with suppress(OSError, sqlite3.Error, IndexBroken):  # the next commit will tell
            await self._pools.index.run(self._index.close)
            await self._pools.index.run(self._directory.set_index_aside)
            await self._pools.index.run(self._index.load)
            self.on_index_lost()

    def measure(self) -> int:
        """Allocated bytes of all that is not a live shard file: index, lock, key, log, folders, unknown and stuck files."""
        return self._directory.overhead() + sum(self._stuck.values())

    async def sweep(self) -> int:
        """Try again to remove stuck files; how many are left."""
        if self._stuck:
            async with self._sweeping:
                tried = dict(self._stuck)
                self._stuck = await self._pools.writes.run(remove_stuck, tried, self._directory.shards, self._abilities)
        return len(self._stuck)

    async def create(self, key: str, length: int | None) -> ShardFile:
        """A new sparse file of ``length`` bytes (None: empty, it grows). Raises DiskFailed, or Leased if an old file is stuck there."""
        async with self._sweeping if key in self._stuck else nullcontext():  # or the sweep would remove the new file
            file = await self._open_file(key, "create", lambda: fileio.create(key, self._directory.shards, length, self._abilities))
            self._stuck.pop(key, None)
            return file

    async def reopen(self, key: str) -> ShardFile:
        """A file that ``load`` kept or ``create`` made, and that was closed since. Raises DiskFailed."""
        return await self._open_file(key, "open", lambda: fileio.reopen(key, self._directory.shards))

    async def _open_file(self, key: str, operation: str, opener: Callable[[], int]) -> ShardFile:
        if key in self._files:
            raise ValueError(f"shard file {key[:12]} is open already")
        self._files[key] = None
        try:
            with disk_errors(operation, f"shard file {key[:12]}"):
                fd = await self._pools.writes.run(opener, undo=os.close)
        except BaseException:
            del self._files[key]
            raise
        file = ShardFile(key, fd, self._directory.shards, pools=self._pools, abilities=self._abilities, closed=self._forget)
        self._files[key] = file
        return file

    def _forget(self, file: ShardFile) -> None:
        del self._files[file.key]

    async def aclose(self) -> None:
        """Commit what is pending, close all files, give the directory up. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        async with AsyncExitStack() as stack:
            stack.callback(self._directory.close)
            stack.push_async_callback(self._pools.aclose)
            stack.push_async_callback(self._pools.index.run, self._index.close)
            for file in list(self._files.values()):
                if file is not None:
                    stack.push_async_callback(file.aclose)
            stack.push_async_callback(self.claims.aclose)


def _describe(loaded: Loaded) -> None:
    """One line for each thing a person may want to know."""
    counts = {
        "index rows refused as not ours": loaded.rows_refused,
        "index rows dropped, their file is gone or cut": loaded.rows_without_file,
        "shard files removed, nothing claims them": loaded.files_without_row,
        "shard files left until a client lets go of them": len(loaded.stuck),
        "unclaimed bytes freed": loaded.punched_bytes,
    }
    loaded.notices += [f"cache directory: {count} {what}" for what, count in counts.items() if count]
    if loaded.unknown:
        names = ", ".join(ascii(name) for name in loaded.unknown[:_NAMES_SHOWN])
        more = f" and {len(loaded.unknown) - _NAMES_SHOWN} more" if len(loaded.unknown) > _NAMES_SHOWN else ""
        loaded.notices.append(f"cache directory: not ours, left alone, counted against the cache size: {names}{more}")
