"""Lends complete shards to readers as file descriptors, which read without the cache.

A descriptor is a lease on a whole shard. The reader's lease ends when it says so, or its connection ends. The kernel's lock (``flock``)
ends when the last mapping is gone, which may be much later (views in a shuffle buffer). The shard's bytes may not leave before that. When
the last reader has left, the shard *lingers*: once a second the lender tries an exclusive lock, until it gets it.

The version is found as for any reader, and a client with a descriptor counts as a reader until its lease ends. But no later check can stop
its reading. So a shard is lent only if all segments are stored and verified, and its digest is compared if its origin names one. The index
on the disk must also claim all of it, so that nothing of it is fetched again after a kill.
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

LOOKED_AT = 1024  # lingering shards tried per call: some milliseconds


class UseHttp(CacheError):
    """The shard cannot be lent, now or at all. ``reason``: incomplete, encoded, digest, half, disk."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LendingHost(Protocol):
    """The parts of ``ShardCache`` that the lender uses, as HTTP readers do."""

    async def find(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> tuple[Entry, bool, float]: ...

    def reading(self, entry: Entry, shard: Shard, reader: ReaderName | None, *, opened_here: bool) -> ShardReader: ...

    def note_opening(self, entry: Entry, shard: Shard, reader: ReaderName | None, want: RangeRequest | None) -> None: ...


@dataclass(slots=True, eq=False)
class FdLease:
    """A lent shard. The caller passes ``descriptor`` on and closes it; ``FdLender.end`` ends the lease."""

    reading: ShardReader
    descriptor: int
    held: tuple[int, int]  # bytes and segments as counted at the start: wrong segments that leave meanwhile still count
    in_parts: bool = False  # parts of it are read, and the sidecar never learns how much
    asked_at: float = 0.0  # on the fd server's clock
    answered_s: float = 0.0  # seconds from then to the answer


class FdLender:
    """Lends shards, and counts what is lent. ``bytes`` and ``segments`` are those of shards lent now or lingering, each counted once.

    Not thread-safe: used on the event loop alone.
    """

    def __init__(
        self, *, host: LendingHost, readers: ActiveReaders, room: SpaceManager, resolver: VersionResolver, segment_reader: SegmentReader,
        store: Store,
    ) -> None:  # fmt: skip
        self.count = 0  # leases of readers
        self.bytes = 0
        self.segments = 0
        self._lingering: dict[Entry, tuple[int, int]] = {}  # what was counted for each; it keeps one of its ``whole_leases``
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
        """Lend a complete shard, with a descriptor of it; None if something must be awaited first (``lend_when_ready``).

        The caller reports when the ``FdLease`` was passed on and when it ended. Raises ``ShardError``, and ``UseHttp`` if the shard must be
        read with ``ShardCache.open``.
        """
        job = reader.job if reader else ""
        with nullcontext() if job else self._resolver.versions.bursts.inside(shard.group):
            entry = self._resolver.ready(shard, job)
        if entry is None or self._room.entries.get(entry.key) is not entry or not self._is_ready(entry):
            self._fit(self._resolver.versions.current.get(shard.name))  # before the origin is asked whether it changed
            return None
        return self._lend(entry, shard, reader)

    async def lend_when_ready(self, shard: Shard, reader: ReaderName | None) -> FdLease:
        """As ``lend``, but waits for the origin, and for the verification of segments that were stored under another boot."""
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
        """Lend an ``entry`` that is ready: open it read-only, with a lock. Raises ``UseHttp``."""
        self._fit(entry)
        if not self._is_ready(entry) or entry.stored.file is None:
            raise UseHttp("disk", "its file was closed while it was made ready")
        try:
            descriptor = entry.stored.file.lend(entry.version.length or 0)
        except CacheError as error:
            raise _use_http(error) from error
        entry.segments.unread.clear()  # its reader may read any of it, so all of it counts as read
        reading = self._host.reading(entry, shard, reader, opened_here=False)
        self._readers.enter(reading)
        reading.has_all()
        return FdLease(reading, descriptor, self._lease(entry))

    def _fit(self, entry: Entry | None) -> None:
        """Raises ``UseHttp`` if a known fact forbids to lend it; does not ask the origin."""
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
        """Make it ready: verify segments of another boot, and commit all claims to the disk. Raises ``UseHttp``."""
        try:
            if entry.stored.file is None:
                await self._segment_reader.stored(entry)
            for index in sorted(entry.segments.unverified):
                if index + 1 < entry.segments.count:
                    self._segment_reader.foresee(entry, index + 1)  # read the next one meanwhile
                if not await self._segment_reader.trusted(entry, index):
                    raise UseHttp("incomplete", f"segment {index} is not what was stored")
            if self._store.index_writer.unsettled(entry.key):
                await self._store.index_writer.committed()
        except UseHttp:
            raise
        except CacheError as error:  # HTTP can work around a failing cache disk
            raise _use_http(error) from error

    @asynccontextmanager
    async def held(self, entry: Entry) -> AsyncIterator[int]:
        """A descriptor of a complete ``entry`` for a task of the sidecar, within the ``async with``. It counts as no reader.

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

    # The life of a lease

    def passed(self, fd_lease: FdLease) -> None:
        """The descriptor has reached a client: this is the opening. The call may come a little later."""
        reading = fd_lease.reading
        self._host.note_opening(reading.entry, reading.shard, reading.reader, None)

    def end(self, fd_lease: FdLease) -> None:
        """The lease is over; if the kernel still holds a lock, the shard lingers. Call it once; ``release`` follows a little later."""
        self._end(fd_lease.reading.entry, fd_lease.held)
        self._readers.leave(fd_lease.reading)

    def release(self, fd_lease: FdLease) -> None:
        """Let the shard's bytes leave, unless a mapping is left. Called later than ``end``, after waiting clients are answered."""
        entry = fd_lease.reading.entry
        self._give_back(entry)
        self._room.left(entry)

    # Counting

    @property
    def lingering(self) -> int:
        """The number of shards that no reader holds, but a mapping does."""
        return len(self._lingering)

    def outlived(self, entry: Entry) -> None:
        """The entry could not leave: a descriptor that this process does not know holds it, passed before a restart of the sidecar."""
        known = self._lingering.pop(entry, None)
        if known is not None:  # more of it was put back meanwhile
            self._free(entry, known)
        if not entry.segments.whole_leases:
            self._lingering[entry] = self._count(entry)

    def look_again(self) -> None:
        """Call it once a second: release lingering shards whose mappings are gone.

        Each try takes some microseconds, so one call tries ``LOOKED_AT`` of them; the next call continues with the others.
        """
        for entry in list(islice(self._lingering, LOOKED_AT)):
            if self._give_back(entry):
                self._room.left(entry)
            elif entry in self._lingering:
                self._lingering[entry] = self._lingering.pop(entry)

    def _lease(self, entry: Entry) -> tuple[int, int]:
        """Lease all of a suitable ``entry``; returns what ``_end`` needs."""
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
        """A reader has left; ``_give_back`` follows a little later."""
        self.count -= 1
        if entry.segments.whole_leases > 1:
            entry.segments.whole_leases -= 1
        else:
            self._lingering[entry] = held

    def _give_back(self, entry: Entry) -> bool:
        """Release a lingering ``entry`` if no process holds a lock on its file; returns whether it did."""
        if entry not in self._lingering or entry.in_use.leaving or entry.stored.writing or entry.stored.lock.locked():
            return False  # or its file is being changed, which needs the same lock
        if entry.stored.file is not None and entry.stored.file.is_held():
            return False
        self._free(entry, self._lingering.pop(entry))
        if len(self._room.read_ahead):  # the reader leaves the entry too, and then the eviction queue sorts it
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
