"""Complete shards that are given out as descriptors: which may be, how much of the cache they hold, and the opening of one.

A descriptor is a lease on a whole shard, in our books for as long as its connection stays open, and in the kernel's (``flock``) until the
last map of it is gone. Whoever has one reads without us. So only what nobody can prove wrong any more is given out: all segments here,
verified, compared with the origin's digest where it names one, and claimed on the disk (after a kill nothing of it is fetched anew).

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from forebay_proxy.entry import Entry
from forebay_proxy.errors import CacheError, DiskFailed
from forebay_proxy.reading import Reading
from forebay_proxy.room import Room
from forebay_proxy.segments import stored_bytes
from forebay_proxy.shelf import Shelf
from forebay_proxy.store import Store

__all__ = ["Lending", "Lent", "UseHttp"]


class UseHttp(CacheError):
    """Not by descriptor, now or at all. ``reason``: incomplete, encoded, digest, half, disk."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Books(Protocol):
    def note_passed(self, lent: Lent) -> None: ...

    def take_back(self, lent: Lent) -> None: ...

    def settle(self, lent: Lent) -> None: ...

    def count(self, lent: Lent) -> None: ...


@dataclass(slots=True, eq=False)
class Lent:
    """A shard that is out. ``descriptor`` is the caller's, to be passed on and closed; ``end`` ends the lease in our books."""

    reading: Reading
    descriptor: int
    size: int  # bytes and segments it holds, as it was counted: what leaves meanwhile, because it is wrong, is counted to the end
    segments: int
    began: int  # the moment of ``Optimal``
    _books: _Books
    asked_at: float = 0.0  # on the door's clock
    answered_s: float = 0.0  # from then on

    def passed(self) -> None:
        """It has reached a client: only this is an opening. It may be told a little later, as ``count``."""
        self._books.note_passed(self)

    def end(self) -> None:
        """Nothing is leased by it any more. Once; ``settle`` comes next, a little later."""
        self._books.take_back(self)

    def settle(self) -> None:
        """What its end means to others: the order in which shards leave. Whoever waits for an answer is answered first."""
        self._books.settle(self)

    def count(self) -> None:
        """What this reading cost, in the order of their ends."""
        self._books.count(self)


class Lending:
    """The books of descriptors' leases. ``bytes`` and ``segments`` are those of the shards out now, each counted once."""

    def __init__(self, room: Room, shelf: Shelf, store: Store) -> None:
        self.count = 0  # leases
        self.bytes = 0
        self.segments = 0
        self._room = room
        self._shelf = shelf
        self._store = store

    def __repr__(self) -> str:
        return f"<Lending {self.count} descriptors, {self.bytes} bytes>"

    def fit(self, entry: Entry | None) -> Entry:
        """``entry`` if it may be given out as far as is known without asking anybody. Raises ``UseHttp``."""
        if entry is None or entry.stale or not entry.segments.complete or not entry.version.length:
            raise UseHttp("incomplete", "the shard is not complete here")
        if entry.version.encoding:
            raise UseHttp("encoded", f"the shard has the encoding {entry.version.encoding[:40]}, which only HTTP can name")
        if entry.sealed or entry.fault is not None:
            raise UseHttp("digest", "the shard is still being compared with its digest")
        size, half = self._size(entry), self._room.ledger.capacity_bytes // 2
        if not entry.segments.whole_leases and self.bytes + size > half:
            raise UseHttp("half", f"descriptors hold {self.bytes} bytes, this shard has {size}, and half of the cache is {half}")
        return entry

    def lease(self, entry: Entry) -> tuple[int, int]:
        """Lease all of an ``entry`` that is fit; returns what ``release`` is to be told."""
        segments, size = entry.segments, self._size(entry)
        count = len(segments.sums)
        if not segments.whole_leases:
            self.bytes += size
            self.segments += count
        segments.whole_leases += 1
        self.count += 1
        return size, count

    def release(self, entry: Entry, size: int, count: int) -> None:
        self.count -= 1
        entry.segments.whole_leases -= 1
        if not entry.segments.whole_leases:
            self.bytes -= size
            self.segments -= count
            self._left(entry)

    @contextmanager
    def leasing(self, entry: Entry) -> Iterator[None]:
        """Lease all of ``entry``, for the length of the ``with``. Raises ``UseHttp``."""
        self.fit(entry)
        held = self.lease(entry)
        try:
            yield
        finally:
            self.release(entry, *held)

    def is_ready(self, entry: Entry) -> bool:
        """Whether ``descriptor`` may be asked for now, with nothing to wait for."""
        return entry.file is not None and not entry.segments.unverified and not self._store.claims.unsettled(entry.key)

    async def readied(self, entry: Entry) -> None:
        """Return when it is: what another boot stored is verified, all of it claimed on the disk. Raises ``UseHttp``."""
        with _on_disk():
            if entry.file is None:
                await self._shelf.stored(entry)
            if entry.segments.unverified:
                await self._verified(entry)
            if self._store.claims.unsettled(entry.key):
                await self._store.claims.committed()

    def descriptor(self, entry: Entry) -> int:
        """An ``entry`` that is ready, open for reading only, with the kernel's lease on it. Raises ``UseHttp``."""
        self.fit(entry)
        if not self.is_ready(entry) or entry.file is None:
            raise UseHttp("disk", "its file was closed while it was made ready")
        try:
            descriptor = entry.file.lend(entry.version.length or 0)
        except CacheError as error:
            raise _use_http(error) from error
        self._read(entry)
        return descriptor

    async def _verified(self, entry: Entry) -> None:
        for index in sorted(entry.segments.unverified):
            if index + 1 < len(entry.segments.sums):
                self._shelf.foresee(entry, index + 1)  # the disk has the next one while we wait for this
            if not await self._shelf.trusted(entry, index):
                raise UseHttp("incomplete", f"segment {index} is not what was stored")

    def _read(self, entry: Entry) -> None:
        """From now on its reader may have read any of it, and so counts as having read all."""
        entry.segments.unread.clear()
        if len(self._room.displacers):
            for index in range(len(entry.segments.sums)):
                self._room.displacers.hit(entry.key, index)

    def _left(self, entry: Entry) -> None:
        if len(self._room.displacers):  # whoever had it leaves the entry too, and that is when it is put in its place
            for index in range(len(entry.segments.sums)):
                if index not in entry.segments.leases and index not in entry.segments.unread:
                    self._room.displacers.read(entry.key, index)

    @staticmethod
    def _size(entry: Entry) -> int:
        return stored_bytes(entry.segments.sums, entry.version.length)


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
