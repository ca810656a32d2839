"""ShardCache: the one owner of state. ``open`` and ``ensure`` are the only doors; a request and a prefetch walk the same path.

A request, down once: ``open`` finds the version (stored and fresh, or by an *opening*: the single-flighted first ranged GET, whose body
is already the first segment), checks that this credential may read it, and gives a ``Reading``. The reading asks for segments; a missing
one becomes a *flight*: room is granted by the ledger, the limiter gives it its turn, ``Fetcher`` brings it, ``Landing`` writes it, and
``landed`` makes it stored. Where no room can be granted the same flight goes through memory.

Freshness: a shard name means immutable bytes. A stored version is compared with the origin at its first opening in a job; bytes this
process fetched itself in that job are not compared again.

Everything here runs on one event loop and needs no locks; between two awaits the ledger's invariant holds.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from forebay_proxy import events
from forebay_proxy.buffers import Buffers
from forebay_proxy.chores import Chores
from forebay_proxy.diskhealth import DiskHealth
from forebay_proxy.entry import Entry
from forebay_proxy.errors import CacheError, CacheFull, DiskFailed, ShardChanged
from forebay_proxy.events import Events
from forebay_proxy.fetch import Fetcher
from forebay_proxy.flights import Flight, Flights, told
from forebay_proxy.http_range import RangeRequest, Suffix
from forebay_proxy.landing import Landing
from forebay_proxy.ledger import Grant
from forebay_proxy.limiter import DEMAND
from forebay_proxy.openings import Openings
from forebay_proxy.plan import Plans
from forebay_proxy.reading import MOST_BREADTH, Reading
from forebay_proxy.room import Room, Slice
from forebay_proxy.segments import SEGMENT_BYTES, index_of, segment_span
from forebay_proxy.shard import Shard
from forebay_proxy.shardfile import ShardFile
from forebay_proxy.store import Store
from forebay_proxy.wire.plan import ReaderName

__all__ = ["ShardCache"]

log = logging.getLogger("forebay")


class ShardCache:
    """Finds, fetches, keeps and serves shards."""

    def __init__(
        self,
        *,
        store: Store,
        room: Room,
        plans: Plans,
        flights: Flights,
        openings: Openings,
        fetcher: Fetcher,
        buffers: Buffers,
        events: Events,
        chores: Chores,
        clock: Callable[[], float],
    ) -> None:
        self.buffers = buffers
        self.room = room
        self.plans = plans
        self.flights = flights
        self.readings: set[Reading] = set()
        self.landed_signal: Callable[[], None] = lambda: None  # the prefetcher listens: something landed, or a reader moved
        self.waited_signal: Callable[[ReaderName | None], None] = lambda reader: None
        self.disk = DiskHealth(clock, events)
        self._store = store
        self._openings = openings
        self._chores = chores
        self._fetcher = fetcher
        self._events = events
        self._clock = clock
        self._leased_segments = 0
        openings.ground = self
        room.spawn = chores.spawn
        room.retired = self._forget
        plans.changed = self._moved
        room.failed = store.claims.on_failure = self.disk.failed

    def __repr__(self) -> str:
        air, readers = len(self.flights), len(self.readings)
        return f"<ShardCache {len(self.room.entries)} shards, {self.room.ledger!r}, {air} in flight, {readers} readers>"

    # The doors

    @asynccontextmanager
    async def open(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> AsyncIterator[Reading]:
        """A reader's way into a shard, for the length of the ``async with``. Raises ``ShardError``."""
        job = reader.job if reader else ""
        entry, opened_here = await self._openings.entry(shard, job, want, head=head)
        entry = self.room.entries.setdefault(entry.key, entry)  # forgotten between its opening's end and here: one entry a key, always
        reading = Reading(self, entry, shard, reader, opened_here=opened_here)
        entry.readers += 1
        self.readings.add(reading)
        if not head:
            self._note_opening(entry, shard, reader, want)
        try:
            with self.buffers.readers.held():
                yield reading
        except ShardChanged:
            self.outdated(entry)
            raise
        finally:
            self.readings.discard(reading)
            entry.readers -= 1
            reading.close()
            self._left(entry)

    def _note_opening(self, entry: Entry, shard: Shard, reader: ReaderName | None, want: RangeRequest | None) -> None:
        goes_on = isinstance(want, Suffix) or (want is not None and want.first > 0)  # a broken stream resumed, or a part of a shard
        if goes_on and reader is not None:
            self.plans.heard(reader)
        how = "" if goes_on else self.plans.opened(shard, reader)
        if how in ("skipped", "unplanned") and reader is not None:
            self._events.emit(events.PlanChanged(reader.job, how))
        self.room.touch(entry)
        self.landed_signal()

    def _left(self, entry: Entry) -> None:
        if entry.stale and entry.idle and entry.segments.stored_count:
            self._chores.spawn(self._drop(entry), "drop")
        self.room.touch(entry)
        self.room.retire(entry)
        self.landed_signal()

    def _forget(self, entry: Entry) -> None:
        self._openings.forget(entry)
        if entry.name not in self._openings.current:
            self.plans.forget(entry.name)

    def _moved(self, names: Iterable[str]) -> None:
        """Plans say that these shards are used at another time than before."""
        for name in names:
            entry = self._openings.current.get(name)
            if entry is not None:
                self.room.touch(entry)

    async def _drop(self, entry: Entry) -> None:
        await self.room.evict(entry)

    def outdated(self, entry: Entry) -> None:
        """The origin has another version now: this one serves who is inside, and leaves."""
        if not entry.stale:
            entry.stale = True
            self._openings.forget(entry)
            self.room.claim(entry)
            self.room.touch(entry)
            self._left(entry)

    def ensure(self, entry: Entry, index: int, shard: Shard, *, need: float, need_at: float | None, reader: object) -> Flight | None:
        """Prefetch's door: a flight for segment ``index``, None if it is here or in the air. Raises ``CacheFull``."""
        if entry.segments.has(index) or self.flight_of(entry, index) is not None:
            return None
        if not entry.ranged or self.room.entries.setdefault(entry.key, entry) is not entry:
            raise CacheFull("this version cannot be completed any more")
        if not self.disk.usable:
            raise CacheFull("the cache disk is failing")
        grant = self.room.reserve_ahead(entry.segments.bytes_of(index), need_at, reader)
        if self.room.displacing(grant):
            self.room.note_displacer(entry, index, reader)
        flight = self._flight(entry, index, need)
        self._fly(entry, flight, shard, index, grant)
        return flight

    # What a reading needs

    def flight_of(self, entry: Entry, index: int) -> Flight | None:
        if entry.stream is not None and not entry.stream.done:
            return entry.stream
        return self.flights.find(entry.key, index)

    def launch(self, entry: Entry, index: int, shard: Shard, need: float) -> Flight:
        """A flight for a segment a reader needs now."""
        if not entry.ranged:
            return self.private_flight(entry, segment_span(index, entry.version.length)[0], shard)
        flight = self._flight(entry, index, need)
        grant = self.grant(entry, index, flight)
        flight.bypass = grant is None
        self._fly(entry, flight, shard, index, grant)
        return flight

    def launch_ahead(self, entry: Entry, index: int, shard: Shard, need: float) -> bool:
        flight = self._flight(entry, index, need)
        grant = self.grant(entry, index, flight)
        if grant is None:
            return False
        self._fly(entry, flight, shard, index, grant)
        return True

    def private_flight(self, entry: Entry, position: int, shard: Shard) -> Flight:
        """A fetch for one reader alone, through memory, from ``position`` to the end of its segment (or of the shard, without Range)."""
        index = position // SEGMENT_BYTES
        first, size = segment_span(index, entry.version.length)
        flight = Flight(position, first + size if entry.ranged else entry.version.length, 0.0, self._clock())
        flight.bypass = True
        self._events.emit(events.Refetched(entry.origin, (flight.end or position) - position))
        self._fly(entry, flight, shard, -1, None)
        return flight

    def _flight(self, entry: Entry, index: int, need: float) -> Flight:
        first, size = segment_span(index, entry.version.length)
        return Flight(first, first + size, need, self._clock())

    def _fly(self, entry: Entry, flight: Flight, shard: Shard, index: int, grant: Grant[Slice] | None) -> None:
        entry.flying += 1
        way = self._way(entry, flight, shard, grant)
        if index < 0:
            self.flights.take_off(flight, way)
        else:
            self.flights.take_off(flight, way, entry.key, index)

    async def _way(self, entry: Entry, flight: Flight, shard: Shard, grant: Grant[Slice] | None) -> None:
        landing = Landing(self, self.buffers, entry, flight, grant)
        landing.bypassing = flight.bypass
        await self.flown(entry, flight, landing, self._fetcher.fill(entry, flight, shard, landing))

    async def flown(self, entry: Entry, flight: Flight, landing: Landing, filling: Awaitable[None]) -> None:
        """Run ``filling``; whatever happens, nothing of the landing stays behind."""
        try:
            await filling
        except BaseException as error:
            flight.error = told(error)  # before its bytes are given back: nobody may read them from now on
            if isinstance(error, ShardChanged):
                self.outdated(entry)
            if isinstance(error, DiskFailed):
                self.disk.failed(error)
            raise
        finally:
            landing.close()
            entry.flying -= 1
            if not entry.segments.has(index_of(flight.first)):
                self.room.settle_displacer(entry, index_of(flight.first))
            if not entry.ranged and flight is entry.stream and not entry.segments.complete:
                self.outdated(entry)  # part of a body that cannot be asked in pieces is of use to nobody who comes later
            self._left(entry)

    def breadth(self, bypassing: bool) -> int:
        """How many ranges of one reader may be in the air now: an even part of what could be granted."""
        if bypassing:
            return 1
        leased = max(0, self._leased_segments - len(self.flights)) * SEGMENT_BYTES
        grantable = self.room.ledger.grantable_bytes(leased) // SEGMENT_BYTES
        return max(1, min(MOST_BREADTH, grantable // max(1, len(self.readings))))

    async def file_bytes(self, entry: Entry, first: int, buffer: memoryview) -> bytes | memoryview:
        """As many bytes as ``buffer`` holds, from ``first`` on. Raises ``DiskFailed``.

        In ``buffer`` where they are in memory and the loop could read them, else from the disk, in a read thread.
        """
        try:
            file = entry.file or await self._opened(entry)
            return buffer if file.read_now(first, buffer) else await file.read(first, len(buffer))
        except DiskFailed as error:
            self.disk.failed(error)
            if entry.segments.has(index_of(first)):
                self._chores.spawn(self.room.discard(entry, index_of(first)), "discard")
            raise

    async def _opened(self, entry: Entry) -> ShardFile:
        async with entry.file_lock:
            if not entry.filed:
                raise DiskFailed("read", "ENOENT", f"the file of shard {entry.name} is gone")
            return await self.room.open_file(entry)

    async def trusted(self, entry: Entry, index: int) -> bool:
        """Verify a segment stored under another boot; a wrong one is removed."""
        if index not in entry.segments.unverified:
            return True
        first, size = segment_span(index, entry.version.length)
        try:
            found = await (await self._opened(entry)).digest(first, size)
        except DiskFailed as error:
            self.disk.failed(error)
            found = 0
        if index not in entry.segments.unverified:  # somebody else came to an end with it meanwhile
            return entry.segments.has(index)
        good = found == entry.segments.sums[index]
        if good:
            entry.segments.unverified.discard(index)
            self.room.claim(entry)
            return True
        log.warning("shard %s: segment %d is not what was stored before the last boot; it is fetched again", entry.name, index)
        self._events.emit(events.IntegrityFailed("recovery"))
        await self.room.discard(entry, index)
        return False

    def lease(self, entry: Entry, index: int) -> None:
        if index not in entry.segments.leases:
            self._leased_segments += 1
        entry.segments.lease(index)

    def release(self, entry: Entry, index: int) -> None:
        entry.segments.release(index)
        if index not in entry.segments.leases:
            self._leased_segments -= 1

    def read_segment(self, entry: Entry, index: int) -> None:
        entry.segments.unread.discard(index)
        self.room.settle_displacer(entry, index)
        self.landed_signal()

    def hurry(self, entry: Entry, flight: Flight, need: float) -> None:
        if need < flight.need:
            flight.need = need
            self._fetcher.hurried(entry.origin)

    def boarded(self) -> None:
        self._events.emit(events.FlightBoarded())

    def waited(self, reader: ReaderName | None, entry: Entry, seconds: float) -> None:
        self._events.emit(events.ReaderWaited(reader.job if reader else "", seconds))
        self.waited_signal(reader)

    # What a landing needs

    def grant(self, entry: Entry, index: int, flight: Flight) -> Grant[Slice] | None:
        if not self.disk.usable:
            self._events.emit(events.ReservationRefused("disk"))
            return None
        try:
            return self.room.reserve(entry.segments.bytes_of(index))
        except CacheFull:
            self._events.emit(events.ReservationRefused("no-room"))
            return None

    async def first_grant(self, need: float) -> Grant[Slice] | None:
        """Room for a first segment of unknown size, its victims removed; None: bypass."""
        if not self.disk.usable:
            self._events.emit(events.ReservationRefused("disk"))
            return None
        try:
            grant = self.room.reserve(SEGMENT_BYTES) if need < DEMAND else self.room.reserve_ahead(SEGMENT_BYTES, None, None)
            await self.room.clear(grant)
        except CacheFull:
            if need < DEMAND:
                self._events.emit(events.ReservationRefused("no-room"))
            return None
        return grant

    async def prepare(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile | None:
        """The entry's file with the segment allocated in it; None when the disk refuses, and then the grant is given back."""
        try:
            return await self.room.prepare(entry, index, grant)
        except DiskFailed as error:
            self.disk.failed(error)
            self._events.emit(events.ReservationRefused("disk"))
        except CacheError:  # full, or a file of an earlier life is still held by a passed descriptor
            self._events.emit(events.ReservationRefused("no-room"))
        return None

    def landed(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice], flight: Flight) -> None:
        """A segment is whole on the disk."""
        self.room.landed(entry, index, checksum, grant)
        self.disk.worked()
        if flight.aboard_count:
            entry.segments.unread.discard(index)
            self.room.settle_displacer(entry, index)
        prefetched = flight.need >= DEMAND
        size = segment_span(index, entry.version.length)[1]
        self._events.emit(events.SegmentLanded(entry.origin, size, self._clock() - flight.began_at, stored=True, prefetched=prefetched))
        self._sync_complete(entry)
        self.landed_signal()

    def _sync_complete(self, entry: Entry) -> None:
        if entry.segments.complete and entry.file is not None:
            self._chores.spawn(self._sync(entry, entry.file), "sync")

    async def _sync(self, entry: Entry, file: ShardFile) -> None:
        """One fdatasync a shard, after its last segment and off the readers' path."""
        if entry.file is not file:  # it left or was closed before its turn came
            return
        try:
            await file.sync()
        except DiskFailed as error:
            self.disk.failed(error)

    def fit(self, entry: Entry, grant: Grant[Slice], size: int) -> None:
        self.room.fit(entry, grant, size)

    def settled(self, entry: Entry) -> None:
        """The length became known with the end of the body: what is here may be claimed now."""
        self.room.claim(entry)
        self._sync_complete(entry)

    def give_back(self, entry: Entry | None, index: int | None, grant: Grant[Slice]) -> None:
        if entry is not None and index is not None:
            self.room.withdraw(entry, index)
        self._chores.spawn(self.room.abandon(entry, index, grant), "abandon")

    def is_reading(self, reader: ReaderName) -> bool:
        """Whether ``reader`` is inside a shard now."""
        return any(reading.reader == reader for reading in self.readings)

    @property
    def leased_segments(self) -> int:
        return self._leased_segments
