"""A reader's other way into a shard: a complete shard is lent whole, as a descriptor of its file.

The version is found as for any reader, and a client with a descriptor is a reader like any other until its lease ends. ``FdLeases`` knows
which shards may be lent, and how much of the cache they hold.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

from forebay_proxy.cache.fd_lease import FdLease, FdLeases
from forebay_proxy.cache.readers.active_readers import ActiveReaders
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["FdLender"]


class LendingHost(Protocol):
    """What is the same for every reader, by HTTP or by descriptor."""

    async def find(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> tuple[Entry, bool, float]: ...

    def reading(self, entry: Entry, shard: Shard, reader: ReaderName | None, *, opened_here: bool) -> ShardReader: ...

    def note_opening(self, entry: Entry, shard: Shard, reader: ReaderName | None, want: RangeRequest | None) -> None: ...


class FdLender:
    """Lends shards, and hears how each lease goes on: passed, ended, settled, counted. Not thread-safe: the event loop's only."""

    def __init__(
        self, *, host: LendingHost, leases: FdLeases, readers: ActiveReaders, room: SpaceManager, resolver: VersionResolver
    ) -> None:
        self.leases = leases
        self._host = host
        self._readers = readers
        self._room = room
        self._resolver = resolver

    def __repr__(self) -> str:
        return f"<FdLender {self.leases!r}>"

    def lend(self, shard: Shard, reader: ReaderName | None) -> FdLease | None:
        """A shard that is complete here, with a descriptor of it; None: something must be waited for first (``lend_when_ready``).

        The caller tells the ``FdLease`` when it was passed on and when it ended. Raises ``ShardError``, and ``UseHttp`` where
        ``ShardCache.open`` is the way.
        """
        job = reader.job if reader else ""
        with nullcontext() if job else self._resolver.freshness.bursts.inside(shard.group):
            entry = self._resolver.ready(shard, job)
        if entry is None or self._room.entries.get(entry.key) is not entry or not self.leases.is_ready(entry):
            self.leases.fit(self._resolver.versions.current.get(shard.name))  # before the origin is asked whether it changed
            return None
        return self._lease(entry, shard, reader)

    async def lend_when_ready(self, shard: Shard, reader: ReaderName | None) -> FdLease:
        """As ``lend``, after everything it needs: waits for the origin, and until what another boot stored is verified."""
        self.leases.fit(self._resolver.versions.current.get(shard.name))
        entry, _, _ = await self._host.find(shard, reader, None)
        with self._readers.inside(self._host.reading(entry, shard, reader, opened_here=False)), self.leases.leasing(entry):
            await self.leases.readied(entry)
        return self._lease(entry, shard, reader)

    def _lease(self, entry: Entry, shard: Shard, reader: ReaderName | None) -> FdLease:
        descriptor = self.leases.descriptor(entry)
        reading = self._host.reading(entry, shard, reader, opened_here=False)
        self._readers.enter(reading)
        reading.has_all()
        return FdLease(reading, descriptor, *self.leases.lease(entry), self)

    def note_passed(self, fd_lease: FdLease) -> None:
        """A client has the descriptor: only this is an opening."""
        self._host.note_opening(fd_lease.reading.entry, fd_lease.reading.shard, fd_lease.reading.reader, None)

    def take_back(self, fd_lease: FdLease) -> None:
        """The lease is over; what the kernel still holds lingers in the books."""
        self.leases.release(fd_lease.reading.entry, fd_lease.size, fd_lease.segments)
        self._readers.leave(fd_lease.reading)

    def release_lease(self, fd_lease: FdLease) -> None:
        """What the lease kept may leave, unless a map of it is left."""
        self.leases.give_back(fd_lease.reading.entry)
        self._room.left(fd_lease.reading.entry)

    def look_again(self) -> None:
        """Once a second: what maps that outlived their lease held until now may leave."""
        for entry in self.leases.look_again():
            self._room.left(entry)
