"""Complete shards that are given out as descriptors: which shards may be, how much of the cache they hold, and the opening of one.

A descriptor is a lease on a whole shard: its reader's until it says that it is done, or its connection ends, and the kernel's (``flock``)
until the last map of it is gone, which may be much later (views in a shuffle buffer). Our books hold what the kernel holds: a shard whose
last reader has left *lingers* until an exclusive lock on it can be had, asked once a second. A reader with a descriptor reads without the
cache. So only a shard that no later check can refute is given out: all segments here, verified, compared with the origin's digest where it
names one, and claimed on the disk (after a kill nothing of it is fetched anew).

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.store.store import Store

__all__ = ["FdLease", "FdLeases", "UseHttp"]

LOOKED_AT = 1024  # lingering shards asked about in one turn of the loop: some milliseconds


class UseHttp(CacheError):
    """Not by descriptor, now or at all. ``reason``: incomplete, encoded, digest, half, disk."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Books(Protocol):
    def note_passed(self, fd_lease: FdLease) -> None: ...

    def take_back(self, fd_lease: FdLease) -> None: ...

    def release_lease(self, fd_lease: FdLease) -> None: ...


@dataclass(slots=True, eq=False)
class FdLease:
    """A shard that is out. ``descriptor`` is the caller's, to be passed on and closed; ``end`` ends the lease in our books."""

    reading: ShardReader
    descriptor: int
    size: int  # bytes and segments it holds, as it was counted: what leaves meanwhile, because it is wrong, is counted to the end
    segments: int
    _books: _Books
    in_parts: bool = False  # samples of it are read, and nobody hears how much that is
    asked_at: float = 0.0  # on the door's clock
    answered_s: float = 0.0  # from then on

    def passed(self) -> None:
        """It has reached a client: only this is an opening. It may be told a little later."""
        self._books.note_passed(self)

    def end(self) -> None:
        """Nothing is leased by it any more. Once; ``release`` comes next, a little later."""
        self._books.take_back(self)

    def release(self) -> None:
        """What its end means to others: the order in which shards leave. Whoever waits for an answer is answered first."""
        self._books.release_lease(self)


class FdLeases:
    """The books of descriptors' leases. ``bytes`` and ``segments`` are those of the shards out now or lingering, each counted once."""

    def __init__(self, room: SpaceManager, segment_reader: SegmentReader, store: Store) -> None:
        self.count = 0  # leases of readers
        self.bytes = 0
        self.segments = 0
        self._lingering: dict[Entry, tuple[int, int]] = {}  # what was counted of them; one of ``whole_leases`` is theirs
        self._room = room
        self._segment_reader = segment_reader
        self._store = store

    def __repr__(self) -> str:
        return f"<FdLeases {self.count} descriptors, {self.bytes} bytes>"

    def fit(self, entry: Entry | None) -> Entry:
        """``entry`` if nothing known here forbids to give it out; no origin is asked. Raises ``UseHttp``."""
        if entry is None or entry.in_use.stale or not entry.segments.complete or not entry.version.length:
            raise UseHttp("incomplete", "the shard is not complete here")
        if entry.version.encoding:
            raise UseHttp("encoded", f"the shard has the encoding {entry.version.encoding[:40]}, which only HTTP can name")
        if entry.trust.digest_pending or entry.in_use.fault is not None:
            raise UseHttp("digest", "the shard is still being compared with its digest")
        size, half = self._size(entry), self._room.ledger.capacity_bytes // 2
        if not entry.segments.whole_leases and self.bytes + size > half:
            raise UseHttp("half", f"descriptors hold {self.bytes} bytes, this shard has {size}, and half of the cache is {half}")
        return entry

    def lease(self, entry: Entry) -> tuple[int, int]:
        """Lease all of an ``entry`` that is fit; returns what ``release`` is to be told."""
        self.count += 1
        known = self._lingering.pop(entry, None)
        if known is not None:
            return known
        held = self._held(entry)
        entry.segments.whole_leases += 1
        return held

    def release(self, entry: Entry, size: int, count: int) -> None:
        """A reader has left; ``give_back`` comes next, a little later."""
        self.count -= 1
        if entry.segments.whole_leases > 1:
            entry.segments.whole_leases -= 1
        else:
            self._lingering[entry] = size, count

    def held(self, entry: Entry) -> None:
        """It could not leave, because a descriptor of it is out that the books do not know: passed in an earlier life of this sidecar."""
        known = self._lingering.pop(entry, None)
        if known is not None:  # more of it was put back meanwhile
            self._free(entry, known)
        if not entry.segments.whole_leases:
            self._lingering[entry] = self._held(entry)
            entry.segments.whole_leases = 1

    def _held(self, entry: Entry) -> tuple[int, int]:
        size, count = self._size(entry), entry.segments.count
        if not entry.segments.whole_leases:
            self.bytes += size
            self.segments += count
        return size, count

    @property
    def lingering(self) -> int:
        """Shards that no reader has any more, and a map of one has."""
        return len(self._lingering)

    def give_back(self, entry: Entry) -> bool:
        """Give back an ``entry`` that lingers once no process holds a lock on its file; returns whether it did."""
        if entry not in self._lingering or entry.in_use.leaving or entry.stored.writing or entry.stored.lock.locked():
            return False  # or its file is being worked at, which wants the same lock
        if entry.stored.file is not None and entry.stored.file.is_held():
            return False
        self._free(entry, self._lingering.pop(entry))
        self._left(entry)
        return True

    def _free(self, entry: Entry, held: tuple[int, int]) -> None:
        entry.segments.whole_leases -= 1
        self.bytes -= held[0]
        self.segments -= held[1]

    def look_again(self) -> list[Entry]:
        """Once a second: those given back now. Some microseconds each, so not too many in one turn of the loop: the others come next."""
        looked = list(islice(self._lingering, LOOKED_AT))
        freed = [entry for entry in looked if self.give_back(entry)]
        for entry in looked:
            if entry in self._lingering:
                self._lingering[entry] = self._lingering.pop(entry)
        return freed

    @contextmanager
    def leasing(self, entry: Entry) -> Iterator[None]:
        """Lease all of ``entry``, for the length of the ``with``. Raises ``UseHttp``."""
        self.fit(entry)
        held = self.lease(entry)
        try:
            yield
        finally:
            self.release(entry, *held)
            self.give_back(entry)

    def is_ready(self, entry: Entry) -> bool:
        """Whether ``descriptor`` may be asked for now, with nothing to wait for."""
        return entry.stored.file is not None and not entry.segments.unverified and not self._store.index_writer.unsettled(entry.key)

    async def readied(self, entry: Entry) -> None:
        """Return when it is: what another boot stored is verified, all of it claimed on the disk. Raises ``UseHttp``."""
        with _on_disk():
            if entry.stored.file is None:
                await self._segment_reader.stored(entry)
            if entry.segments.unverified:
                await self._verified(entry)
            if self._store.index_writer.unsettled(entry.key):
                await self._store.index_writer.committed()

    def descriptor(self, entry: Entry) -> int:
        """An ``entry`` that is ready, open for reading only, with the kernel's lease on it. Raises ``UseHttp``."""
        self.fit(entry)
        if not self.is_ready(entry) or entry.stored.file is None:
            raise UseHttp("disk", "its file was closed while it was made ready")
        try:
            descriptor = entry.stored.file.lend(entry.version.length or 0)
        except CacheError as error:
            raise _use_http(error) from error
        self._read(entry)
        return descriptor

    async def _verified(self, entry: Entry) -> None:
        for index in sorted(entry.segments.unverified):
            if index + 1 < entry.segments.count:
                self._segment_reader.foresee(entry, index + 1)  # the disk has the next one while we wait for this
            if not await self._segment_reader.trusted(entry, index):
                raise UseHttp("incomplete", f"segment {index} is not what was stored")

    def _read(self, entry: Entry) -> None:
        """From now on its reader may have read any of it, and so counts as having read all."""
        entry.segments.unread.clear()

    def _left(self, entry: Entry) -> None:
        if len(self._room.read_ahead):  # the reader leaves the entry too, and then the eviction queue puts the entry in its place
            for index in range(entry.segments.count):
                if index not in entry.segments.leases and index not in entry.segments.unread:
                    self._room.read_ahead.end(entry.key, index)

    @staticmethod
    def _size(entry: Entry) -> int:
        return entry.segments.layout.stored_bytes(entry.segments.sums, entry.version.length)


@contextmanager
def _on_disk() -> Iterator[None]:
    """What goes wrong with the cache's disk is a reason to use HTTP, which has its ways around it."""
    try:
        yield
    except UseHttp:
        raise
    except CacheError as error:
        raise _use_http(error) from error


def _use_http(error: CacheError) -> UseHttp:
    if isinstance(error, DiskFailed):
        return UseHttp("disk", f"its file cannot be given out ({error.errno_name})")
    return UseHttp("disk", "the cache disk does not answer")
