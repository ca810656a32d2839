"""Sample indexes of complete shards: made here, kept beside the shards, served to clients that may read the shard.

Clients cannot put an index: a wrong one would poison other jobs. Indexes are made one at a time, in steps of 2 ms in a read thread. After
each step comes a pause, a multiple of the step's time. The index of a shard that has just become complete begins once no reader is inside
the shard, so that the response that completed it is over. While other readers read or fetches run, it takes a twentieth of one core,
because training does not need it yet. A requested index begins at once and takes a third. Only verified bytes that no
digest contradicts are read, one page of the page cache for each file, and if any of them left meanwhile the work is thrown away.

An index may outlive its shard's segments, so that a part of a cold shard can be asked for by ranges: all together they hold at most
1/64 of the capacity, the longest unused leave first, and those of a version that the origin no longer has, or of which bytes were found
wrong, leave at once. They are overhead in the ledger; room for one is granted before it is written, like for a segment ahead of need.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from forebay_proxy.background.sample_index_steps import SampleIndexReader, check_indexable, index_not_yet, no_index
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import ReadersLeft, ShardCompleted
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.core.errors import (
    CacheError,
    CacheFull,
    DiskFailed,
    IndexNotYet,
    ShardError,
)
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import IndexDone
from forebay_proxy.core.shard import Shard, Version
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.store.sample_index_files import MOST_FILES, SampleFiles, disk_bytes
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.tar.sample_index import NotIndexable

__all__ = ["SampleIndexer"]

log = logging.getLogger("forebay")

SHARE = 64  # of the capacity, all indexes together: those of shards with 10 KB files take 1/100 of them, of larger files far less
MOST_BYTES = 4 << 30
MOST_WAITING = 4096  # complete shards to be indexed ahead; beyond, the oldest are made when they are asked for
MOST_REFUSED = 4096  # shards known to have none
MOST_OUT_BYTES = 64 << 20  # of indexes on their way to clients


class SampleIndexer:
    """``asked`` answers for one shard; ``run`` makes those of shards as they become complete."""

    def __init__(self, cache: ShardCache, files: SampleFiles, tasks: BackgroundTasks, events: Events) -> None:
        self._cache = cache
        self._files = files
        self._tasks = tasks
        self._events = events
        self._calls: dict[str, asyncio.Future[bytes]] = {}
        self._dropped: set[str] = set()  # of those being made: what is made may be kept no more
        self._turn = asyncio.Lock()
        self._reader = SampleIndexReader(cache)
        self._out_bytes = 0  # in memory until a client has taken them
        self._refused: OrderedDict[str, str] = OrderedDict()  # key -> why it has none
        self._ahead: OrderedDict[str, None] = OrderedDict()  # keys of complete shards, to be indexed
        self._come = asyncio.Event()

    def __repr__(self) -> str:
        return f"<SampleIndexer {self._files!r}, {len(self._calls)} being made, {len(self._ahead)} to be made>"

    @asynccontextmanager
    async def asked(self, shard: Shard, reader: ReaderName | None, *, only_kept: bool = False) -> AsyncIterator[tuple[bytes, str, Version]]:
        """(the index of ``shard``, its ETag, its version) for a reader that may open the shard: by the same opening, with the same proof.

        ``only_kept``: do not wait for an index that is not made yet, but have it made soon. Raises ``NoIndex``, ``IndexNotYet`` and
        whatever opening the shard raises.
        """
        async with self._cache.open(shard, reader, None, head=True) as reading:
            version, etag = reading.entry.shown_version, reading.entry.shown_version.etag(reading.entry.shown_key)
            encoded = await self._of(reading.entry, only_kept=only_kept)
        size, out = len(encoded), self._out_bytes
        if out and out + size > MOST_OUT_BYTES:
            raise IndexNotYet(shard.name, f"{out} bytes of sample indexes are on their way already", next_step="ask again")
        self._out_bytes += size
        try:
            yield encoded, etag, version
        finally:
            self._out_bytes -= size

    async def run(self) -> None:
        """Make the indexes of shards as they become complete, one at a time, for ever."""
        with suppress(DiskFailed):  # what is too much leaves before the next one is kept
            await self._fit_share(0)
        while True:
            await self._come.wait()
            self._come.clear()
            while (key := self._next_ahead()) is not None:
                entry = self._cache.room.entries.get(key)
                if entry is not None and key not in self._files and key not in self._refused:
                    with suppress(ShardError, CacheError):  # it left meanwhile, or has none: told when somebody asks
                        await self._cache.parts.digest_check.verdict(entry)
                        await self._made_ahead(entry)

    def _next_ahead(self) -> str | None:
        """The newest key whose shard no reader is inside: its headers are still in memory. None: ``completed`` or ``left`` wakes."""
        for key in reversed(self._ahead):
            entry = self._cache.room.entries.get(key)
            if entry is None or not entry.in_use.readers:
                del self._ahead[key]
                return key
        return None

    async def _made_ahead(self, entry: Entry) -> None:
        """A fault of ours with one odd tar, which ``_make`` has counted and its chore logged, must not be the sidecar's: nobody asked."""
        try:
            await self._made(entry)
        except (ShardError, CacheError):
            raise
        except Exception:
            log.info("the index of shard %s is not made ahead", entry.name)

    def stop(self) -> None:
        """Everything is coming down: what is being made ends unfinished."""
        self._reader.stop()

    # What others report

    def completed(self, fact: ShardCompleted) -> None:
        """A shard is here whole: its index is made once no reader is inside."""
        self._await_turn(fact.entry)

    def left(self, fact: ReadersLeft) -> None:
        """A shard has no reader any more: an index of it that waits for that may begin."""
        if fact.entry.key in self._ahead:
            self._come.set()

    def _await_turn(self, entry: Entry) -> None:
        if not _keepable(entry) or not entry.segments.complete:
            return
        self._ahead[entry.key] = None
        self._ahead.move_to_end(entry.key)
        if len(self._ahead) > MOST_WAITING:
            self._ahead.popitem(last=False)
        self._come.set()

    def drop(self, entry: Entry) -> None:
        """Nothing may be said of this version any more."""
        self._refused.pop(entry.key, None)
        self._ahead.pop(entry.key, None)
        if entry.key in self._calls:
            self._dropped.add(entry.key)  # it may be written after this
        if entry.key in self._files or entry.key in self._calls:
            self._tasks.spawn(self._removed(entry.key), "drop a sample index")

    async def _removed(self, key: str) -> None:
        await self._files.remove(key)
        self._cache.room.measure_overhead()

    # For one shard

    async def _of(self, entry: Entry, *, only_kept: bool) -> bytes:
        cause = self._refused.get(entry.key)
        if cause is not None:
            raise no_index(entry, cause)
        if entry.key in self._files:
            with suppress(DiskFailed):  # it is made again if it can be
                found = await self._files.read(entry.key)
                if found is not None:
                    self._events.emit(IndexDone("read"))
                    return found
        if only_kept:
            self._await_turn(entry)
            raise index_not_yet(entry, "it is not made yet")
        with self._reader.asked():
            return await self._made(entry)

    async def _made(self, entry: Entry) -> bytes:
        """Make it, or wait for who does."""
        check_indexable(entry)
        call = self._calls.get(entry.key)
        if call is None:
            call = asyncio.get_running_loop().create_future()
            call.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, even if nobody waits any more
            self._calls[entry.key] = call
            if self._tasks.spawn(self._make(entry, call), "sample index") is None:
                self._calls.pop(entry.key, None)
                raise index_not_yet(entry, "the sidecar is shutting down")
        return await asyncio.shield(call)

    async def _make(self, entry: Entry, call: asyncio.Future[bytes]) -> None:
        try:
            async with self._turn:
                encoded = await self._reader.read(entry)
                await self._keep(entry, encoded)
            call.set_result(encoded)
            self._events.emit(IndexDone("built"))
        except NotIndexable as reason:
            self._refuse(entry, str(reason))
            call.set_exception(no_index(entry, str(reason)))
        except ShardError as error:
            call.set_exception(error)
        except CacheError as error:
            self._events.emit(IndexDone("failed"))
            call.set_exception(index_not_yet(entry, f"it cannot be read now: {error}"))
        except asyncio.CancelledError:
            call.set_exception(index_not_yet(entry, "the sidecar is shutting down"))
            raise
        except Exception as error:  # a fault of ours: told to who waits, and logged by the chore
            self._events.emit(IndexDone("failed"))
            call.set_exception(error)
            raise
        finally:
            self._calls.pop(entry.key, None)
            self._dropped.discard(entry.key)

    def _refuse(self, entry: Entry, cause: str) -> None:
        self._events.emit(IndexDone("refused"))
        self._refused[entry.key] = cause
        if len(self._refused) > MOST_REFUSED:
            self._refused.popitem(last=False)

    # On the disk

    async def _keep(self, entry: Entry, encoded: bytes) -> None:
        """Keep the index if there is room; without, it is made again when it is next asked for."""
        room, size = self._cache.room, disk_bytes(len(encoded))
        if size > self._share_bytes or not _keepable(entry) or not self._cache.disk.usable:
            return
        try:
            await self._fit_share(size)
            grant = room.reserve_ahead(size, None, None)
            await self._cache.reclaimer.clear(grant)
        except (CacheFull, DiskFailed):
            return
        try:
            with suppress(DiskFailed):
                await self._files.write(entry.key, encoded)
        finally:
            room.ledger.release(grant)
            room.measure_overhead()
        if entry.in_use.stale or entry.key in self._dropped:
            await self._removed(entry.key)

    @property
    def _share_bytes(self) -> int:
        return min(MOST_BYTES, self._cache.room.ledger.configured_bytes // SHARE)

    async def _fit_share(self, more_bytes: int) -> None:
        """Remove what leaves no place for that many more; at a start, what a larger cache kept. Raises DiskFailed."""
        for key in self._files.surplus(self._share_bytes - more_bytes, files=MOST_FILES - (more_bytes > 0)):
            await self._removed(key)


def _keepable(entry: Entry) -> bool:
    """Whether the version can be recognised again by its key."""
    return not entry.stored.transient and bool(entry.version.identity) and not entry.in_use.stale
