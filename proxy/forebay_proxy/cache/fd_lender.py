"""A reader's other way into a shard: a complete shard is lent whole, as a descriptor of its file.

A descriptor is a lease on a whole shard: its reader's until it says that it is done, or its connection ends, and the kernel's (``flock``)
until the last map of it is gone, which may be much later (views in a shuffle buffer). Our books hold what the kernel holds: a shard whose
last reader has left *lingers* until an exclusive lock on it can be had, asked once a second. The version is found as for any reader, and a
client with a descriptor is a reader like any other until its lease ends; but it reads without the cache. So only a shard that no later
check can refute is lent: all segments here, verified, compared with the origin's digest where it names one, and claimed on the disk (after
a kill nothing of it is fetched anew).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.readers.active_readers import ActiveReaders
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.shard import Shard
from forebay_proxy.store.store import Store
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["FdLease", "FdLender", "UseHttp"]

LOOKED_AT = 1024  # lingering shards asked about in one turn of the loop: some milliseconds


class UseHttp(CacheError):
    """Not by descriptor, now or at all. ``reason``: incomplete, encoded, digest, half, disk."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LendingHost(Protocol):
    """What is the same for every reader, by HTTP or by descriptor."""

    async def find(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> tuple[Entry, bool, float]: ...

    def reading(self, entry: Entry, shard: Shard, reader: ReaderName | None, *, opened_here: bool) -> ShardReader: ...

    def note_opening(self, entry: Entry, shard: Shard, reader: ReaderName | None, want: RangeRequest | None) -> None: ...


@dataclass(slots=True, eq=False)
class FdLease:
    """A shard that is out. ``descriptor`` is the caller's, to be passed on and closed; ``FdLender.end`` ends the lease in our books."""

    reading: ShardReader
    descriptor: int
    held: tuple[int, int]  # bytes and segments, as they were counted: what leaves meanwhile, because it is wrong, is counted to the end
    in_parts: bool = False  # samples of it are read, and nobody hears how much that is
    asked_at: float = 0.0  # on the door's clock
    answered_s: float = 0.0  # from then on


class FdLender:
    """Lends shards, and keeps the books of what is out. ``bytes`` and ``segments`` are those of the shards out now or lingering, each
    counted once. Not thread-safe: the event loop's only.
    """

    def __init__(
        self, *, host: LendingHost, readers: ActiveReaders, room: SpaceManager, resolver: VersionResolver, segment_reader: SegmentReader,
        store: Store,
    ) -> None:  # fmt: skip
        self.count = 0  # leases of readers
        self.bytes = 0
        self.segments = 0
        self._lingering: dict[Entry, tuple[int, int]] = {}  # what was counted of them; one of ``whole_leases`` is theirs
        self._host = host
        self._readers = readers
        self._room = room
        self._resolver = resolver
        self._segment_reader = segment_reader
        self._store = store

    def __repr__(self) -> str:
        return f"<FdLender {self.count} descriptors, {self.bytes} bytes>"

    # Lending

    def lend(self, shard: Shard, reader: ReaderName | None) -> FdLease | None:
        """A shard that is complete here, with a descriptor of it; None: something must be waited for first (``lend_when_ready``).

        The caller tells the ``FdLease`` when it was passed on and when it ended. Raises ``ShardError``, and ``UseHttp`` where
        ``ShardCache.open`` is the way.
        """
        job = reader.job if reader else ""
        with nullcontext() if job else self._resolver.versions.bursts.inside(shard.group):
            entry = self._resolver.ready(shard, job)
        if entry is None or self._room.entries.get(entry.key) is not entry or not self._is_ready(entry):
            self._fit(self._resolver.versions.current.get(shard.name))  # before the origin is asked whether it changed
            return None
        return self._lend(entry, shard, reader)

    async def lend_when_ready(self, shard: Shard, reader: ReaderName | None) -> FdLease:
        """As ``lend``, after everything it needs: waits for the origin, and until what another boot stored is verified."""
        self._fit(self._resolver.versions.current.get(shard.name))
        entry, _, _ = await self._host.find(shard, reader, None)
        with self._readers.inside(self._host.reading(entry, shard, reader, opened_here=False)):
            self._fit(entry)
            held = self._lease(entry)
            try:
                await self._readied(entry)
            finally:
                self._end(entry, held)
                self._give_back(entry)
        return self._lend(entry, shard, reader)

    def _lend(self, entry: Entry, shard: Shard, reader: ReaderName | None) -> FdLease:
        """An ``entry`` that is ready, open for reading only, with the kernel's lease on it. Raises ``UseHttp``."""
        self._fit(entry)
        if not self._is_ready(entry) or entry.stored.file is None:
            raise UseHttp("disk", "its file was closed while it was made ready")
        try:
            descriptor = entry.stored.file.lend(entry.version.length or 0)
        except CacheError as error:
            raise _use_http(error) from error
        entry.segments.unread.clear()  # from now on its reader may have read any of it, and so counts as having read all
        reading = self._host.reading(entry, shard, reader, opened_here=False)
        self._readers.enter(reading)
        reading.has_all()
        return FdLease(reading, descriptor, self._lease(entry))

    def _fit(self, entry: Entry | None) -> None:
        """Raises ``UseHttp`` if something known here forbids to lend it; no origin is asked."""
        if entry is None or entry.in_use.stale or not entry.segments.complete or not entry.version.length:
            raise UseHttp("incomplete", "the shard is not complete here")
        if entry.version.encoding:
            raise UseHttp("encoded", f"the shard has the encoding {entry.version.encoding[:40]}, which only HTTP can name")
        if entry.trust.digest_pending or entry.in_use.fault is not None:
            raise UseHttp("digest", "the shard is still being compared with its digest")
        size, half = _size(entry), self._room.ledger.capacity_bytes // 2
        if not entry.segments.whole_leases and self.bytes + size > half:
            raise UseHttp("half", f"descriptors hold {self.bytes} bytes, this shard has {size}, and half of the cache is {half}")

    def _is_ready(self, entry: Entry) -> bool:
        return entry.stored.file is not None and not entry.segments.unverified and not self._store.index_writer.unsettled(entry.key)

    async def _readied(self, entry: Entry) -> None:
        """Return when it is: what another boot stored is verified, all of it claimed on the disk. Raises ``UseHttp``."""
        try:
            if entry.stored.file is None:
                await self._segment_reader.stored(entry)
            for index in sorted(entry.segments.unverified):
                if index + 1 < entry.segments.count:
                    self._segment_reader.foresee(entry, index + 1)  # the disk has the next one while we wait for this
                if not await self._segment_reader.trusted(entry, index):
                    raise UseHttp("incomplete", f"segment {index} is not what was stored")
            if self._store.index_writer.unsettled(entry.key):
                await self._store.index_writer.committed()
        except UseHttp:
            raise
        except CacheError as error:  # HTTP has its ways around what goes wrong with the cache's disk
            raise _use_http(error) from error

    @asynccontextmanager
    async def held(self, entry: Entry) -> AsyncIterator[int]:
        """A descriptor of a complete ``entry`` for a task of ours, for the length of the ``async with``: nobody counts as its reader.

        Raises ``UseHttp``.
        """
        self._fit(entry)
        held, descriptor = self._lease(entry), -1
        try:
            await self._readied(entry)
            if entry.stored.file is None:
                raise UseHttp("disk", "its file was closed while it was made ready")
            descriptor = entry.stored.file.lend(entry.version.length or 0)
            yield descriptor
        except CacheError as error:
            raise error if isinstance(error, UseHttp) else _use_http(error) from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            self._end(entry, held)
            self._give_back(entry)
            self._room.left(entry)

    # How a lease goes on

    def passed(self, fd_lease: FdLease) -> None:
        """It has reached a client: only this is an opening. It may be told a little later."""
        reading = fd_lease.reading
        self._host.note_opening(reading.entry, reading.shard, reading.reader, None)

    def end(self, fd_lease: FdLease) -> None:
        """The lease is over; what the kernel still holds lingers in the books. Once; ``release`` comes next, a little later."""
        self._end(fd_lease.reading.entry, fd_lease.held)
        self._readers.leave(fd_lease.reading)

    def release(self, fd_lease: FdLease) -> None:
        """What it kept may leave, unless a map of it is left. Whoever waits for an answer is answered first."""
        entry = fd_lease.reading.entry
        self._give_back(entry)
        self._room.left(entry)

    # The books

    @property
    def lingering(self) -> int:
        """Shards that no reader has any more, and a map of one has."""
        return len(self._lingering)

    def outlived(self, entry: Entry) -> None:
        """It could not leave, because a descriptor of it is out that the books do not know: passed in an earlier life of this sidecar."""
        known = self._lingering.pop(entry, None)
        if known is not None:  # more of it was put back meanwhile
            self._free(entry, known)
        if not entry.segments.whole_leases:
            self._lingering[entry] = self._count(entry)

    def look_again(self) -> None:
        """Once a second: what maps that outlived their lease held until now may leave. Some microseconds each, so not too many in one turn
        of the loop: the others come next.
        """
        for entry in list(islice(self._lingering, LOOKED_AT)):
            if self._give_back(entry):
                self._room.left(entry)
            elif entry in self._lingering:
                self._lingering[entry] = self._lingering.pop(entry)

    def _lease(self, entry: Entry) -> tuple[int, int]:
        """Lease all of an ``entry`` that is fit; returns what ``_end`` is to be told."""
        self.count += 1
        return self._lingering.pop(entry, None) or self._count(entry)

    def _count(self, entry: Entry) -> tuple[int, int]:
        size, count = _size(entry), entry.segments.count
        if not entry.segments.whole_leases:
            self.bytes += size
            self.segments += count
        entry.segments.whole_leases += 1
        return size, count

    def _end(self, entry: Entry, held: tuple[int, int]) -> None:
        """A reader has left; ``_give_back`` comes next, a little later."""
        self.count -= 1
        if entry.segments.whole_leases > 1:
            entry.segments.whole_leases -= 1
        else:
            self._lingering[entry] = held

    def _give_back(self, entry: Entry) -> bool:
        """Give back an ``entry`` that lingers once no process holds a lock on its file; returns whether it did."""
        if entry not in self._lingering or entry.in_use.leaving or entry.stored.writing or entry.stored.lock.locked():
            return False  # or its file is being worked at, which wants the same lock
        if entry.stored.file is not None and entry.stored.file.is_held():
            return False
        self._free(entry, self._lingering.pop(entry))
        if len(self._room.read_ahead):  # the reader leaves the entry too, and then the eviction queue puts the entry in its place
            for index in range(entry.segments.count):
                if index not in entry.segments.leases and index not in entry.segments.unread:
                    self._room.read_ahead.end(entry.key, index)
        return True

    def _free(self, entry: Entry, held: tuple[int, int]) -> None:
        entry.segments.whole_leases -= 1
        self.bytes -= held[0]
        self.segments -= held[1]


def _size(entry: Entry) -> int:
    return entry.segments.layout.stored_bytes(entry.segments.sums, entry.version.length)


def _use_http(error: CacheError) -> UseHttp:
    if isinstance(error, DiskFailed):
        return UseHttp("disk", f"its file cannot be given out ({error.errno_name})")
    return UseHttp("disk", "the cache disk does not answer")
