"""ShardCache: the one owner of state. ``open`` and ``SegmentFlights.ensure`` are the only doors; request and prefetch go by one path.

A request, down once: ``open`` finds the version (stored and fresh, or by an *opening*: the single-flighted first ranged GET, whose body is
already the first segment), checks that this credential may read it, and gives a ``ShardReader``. The reading asks for segments; a missing
one becomes a *flight*: room is granted by the ledger, the limiter gives it its turn, ``Fetcher`` brings it, ``SegmentWriter`` writes it,
and ``landed`` makes it stored. Where no room can be granted the same flight goes through memory.

Freshness: a shard name means immutable bytes. A stored version is compared with the origin at its first opening in a job; bytes this
process fetched itself in that job are not compared again. Who names no job: at the first opening of a burst of them, and after a minute.

Everything here runs on one event loop and needs no locks; between two awaits the ledger's invariant holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

from forebay_proxy.cache.fd_lease import FdLease, FdLeases
from forebay_proxy.cache.fetcher import Fetcher
from forebay_proxy.cache.fill import Fill
from forebay_proxy.cache.reader import ShardReader
from forebay_proxy.cache.resident.digest_check import DigestCheck
from forebay_proxy.cache.resident.digest_gate import DigestGate
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import CacheChanged, EntryRetired, NameForgotten, ReaderResumed, SegmentSpoilt
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.segment_check import SegmentCheck
from forebay_proxy.cache.resident.segment_leases import SegmentLeases
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.resolver import VersionResolver
from forebay_proxy.cache.segment_flights import SegmentFlights
from forebay_proxy.cache.tar_check import TarCheck
from forebay_proxy.core import events
from forebay_proxy.core.errors import ShardChanged
from forebay_proxy.core.events import Events
from forebay_proxy.core.http_range import RangeRequest, Suffix
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.facts import NextUseChanged
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store
from forebay_proxy.telemetry.optimum import OptimumMeter
from forebay_proxy.telemetry.waits import OPENING, READING, Waits
from forebay_proxy.transfer.buffer_budget import BufferBudget
from forebay_proxy.transfer.flights import Flights
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ShardCache"]


class ShardCache:
    """Finds, fetches, keeps and serves shards."""

    def __init__(
        self,
        *,
        store: Store,
        room: SpaceManager,
        reclaimer: Reclaimer,
        leases: SegmentLeases,
        segment_reader: SegmentReader,
        segment_check: SegmentCheck,
        disk: DiskHealth,
        plans: PlanRegistry,
        flights: Flights,
        resolver: VersionResolver,
        fetcher: Fetcher,
        buffers: BufferBudget,
        events: Events,
        clock: Callable[[], float],
        gate: DigestGate,
        digest_check: DigestCheck,
        fill: Fill,
        segment_flights: SegmentFlights,
    ) -> None:
        self.buffers = buffers
        self.room = room
        self.reclaimer = reclaimer
        self.plans = plans
        self.flights = flights
        self.readings: set[ShardReader] = set()
        self.waits = Waits(events, clock)
        self.optimum = OptimumMeter(lambda: room.ledger.capacity_bytes)
        self.disk = disk
        self.segment_reader = segment_reader
        self.segment_check = segment_check
        self.leases = leases
        self.tar_check = TarCheck(segment_reader, events)
        self.fd_leases = FdLeases(room, segment_reader, store)
        self.gate = gate
        self.digest_check = digest_check
        self.fill = fill
        self.segment_flights = segment_flights
        self._resolver = resolver
        self._fetcher = fetcher
        self._events = events
        self._resting = 0

    def __repr__(self) -> str:
        air, readers = len(self.flights), len(self.readings)
        return f"<ShardCache {len(self.room.entries)} shards, {self.room.ledger!r}, {air} in flight, {readers} readers>"

    # The doors

    @asynccontextmanager
    async def open(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> AsyncIterator[ShardReader]:
        """A reader's way into a shard, for the length of the ``async with``. Raises ``ShardError``."""
        with nullcontext() if reader and reader.job else self._resolver.freshness.bursts.inside(shard.group):
            entry, opened_here, waited_s = await self._entry(shard, reader, want, head=head)
            reading = self._reading(entry, shard, reader, opened_here=opened_here)
            reading.waited_s = waited_s
            with self._inside(reading):
                if not head:
                    self._note_opening(entry, shard, reader, want)
                with self.buffers.readers.held():
                    yield reading

    def lend(self, shard: Shard, reader: ReaderName | None) -> FdLease | None:
        """The same way into a shard that is complete here, with a descriptor of it; None: something must be waited for first.

        The caller tells the ``FdLease`` when it was passed on and when it ended. Raises ``ShardError``, and ``UseHttp`` where ``open`` is
        the way.
        """
        job = reader.job if reader else ""
        with nullcontext() if job else self._resolver.freshness.bursts.inside(shard.group):
            entry = self._resolver.ready(shard, job)
        if entry is None or self.room.entries.get(entry.key) is not entry or not self.fd_leases.is_ready(entry):
            self.fd_leases.fit(self._resolver.versions.current.get(shard.name))  # before the origin is asked whether it changed
            return None
        return self._lend(entry, shard, reader)

    async def lend_when_ready(self, shard: Shard, reader: ReaderName | None) -> FdLease:
        """As ``lend``, after everything it needs: the origin is asked, what another boot stored is verified."""
        self.fd_leases.fit(self._resolver.versions.current.get(shard.name))
        entry, _, _ = await self._entry(shard, reader, None)
        with self._inside(ShardReader(self, entry, shard, reader, opened_here=False)), self.fd_leases.leasing(entry):
            await self.fd_leases.readied(entry)
        return self._lend(entry, shard, reader)

    async def _entry(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> tuple[Entry, bool, float]:
        """The version to read, whether its opening was begun here, and how many seconds ``reader`` waited for the origin's answer."""
        job = reader.job if reader else ""
        waited_s, opened_here, entry = 0.0, False, self._resolver.ready(shard, job)
        if entry is None:
            with self.waits.waiting(reader, shard.name, shard.origin, OPENING) as wait:
                entry, opened_here = await self._resolver.entry(shard, job, want, head=head, reader=self.segment_flights.announced(reader))
            waited_s = wait.seconds
        entry = self.room.entries.setdefault(entry.key, entry)  # forgotten between its opening's end and here: one entry a key, always
        return entry, opened_here, waited_s

    def _lend(self, entry: Entry, shard: Shard, reader: ReaderName | None) -> FdLease:
        descriptor = self.fd_leases.descriptor(entry)
        reading = self._reading(entry, shard, reader, opened_here=False)
        entry.in_use.readers += 1
        self.readings.add(reading)
        reading.has_all()
        return FdLease(reading, descriptor, *self.fd_leases.lease(entry), self.optimum.moment, self)

    def note_passed(self, fd_lease: FdLease) -> None:
        self._note_opening(fd_lease.reading.entry, fd_lease.reading.shard, fd_lease.reading.reader, None)

    def take_back(self, fd_lease: FdLease) -> None:
        self.fd_leases.release(fd_lease.reading.entry, fd_lease.size, fd_lease.segments)
        self._step_out(fd_lease.reading)

    def release_lease(self, fd_lease: FdLease) -> None:
        self.fd_leases.look(fd_lease.reading.entry)
        self.fill.left(fd_lease.reading.entry)

    def look_at_descriptors(self) -> None:
        """Once a second: what maps that outlived their lease held until now may leave."""
        for entry in self.fd_leases.look_again():
            self.fill.left(entry)

    def count(self, fd_lease: FdLease) -> None:
        self._count_reading(fd_lease.reading, fd_lease.began)

    def _reading(self, entry: Entry, shard: Shard, reader: ReaderName | None, *, opened_here: bool) -> ShardReader:
        """A reader of the shard. Its epoch is the plan's before this opening: the opening itself may move the plan to the next one."""
        reading = ShardReader(self, entry, shard, reader, opened_here=opened_here)
        plan = self.plans.get(reader) if reader else None
        reading.epoch = plan.epoch if plan else None
        return reading

    @contextmanager
    def _inside(self, reading: ShardReader) -> Iterator[ShardReader]:
        """``reading`` is inside its shard, for the length of the ``with``."""
        reading.entry.in_use.readers += 1
        self.readings.add(reading)
        began = self.optimum.moment
        try:
            yield reading
        except ShardChanged:
            self.fill.outdated(reading.entry)
            raise
        finally:
            self._step_out(reading)
            self.fill.left(reading.entry)
            self._count_reading(reading, began)

    def _step_out(self, reading: ShardReader) -> None:
        self.tar_check.ended(reading)
        self.readings.discard(reading)
        reading.entry.in_use.readers -= 1
        reading.close()

    def _count_reading(self, reading: ShardReader, began: int) -> None:
        """What this reading would have cost the best schedule there is."""
        entered, entry = reading.entered, reading.entry
        if entered is not None:
            self._events.emit(events.OptimalBytes(self.optimum.read(entry.key, *entered, entry.version.length, began)))

    async def move(self, reading: ShardReader) -> None:
        job = reading.reader.job if reading.reader else ""
        entry, opened_here = await self._resolver.entry(reading.shard, job)
        entry = self.room.entries.setdefault(entry.key, entry)
        before = reading.entry
        reading.moved_to(entry, opened_here=opened_here)
        entry.in_use.readers += 1
        before.in_use.readers -= 1
        self.fill.left(before)

    def spoilt(self, fact: SegmentSpoilt) -> None:
        """A stored segment is wrong, and may have been read so."""
        entry = fact.entry
        self._resolver.suspects.spoilt(entry.name, by_origin=False)
        entry.trust.remade = self._resolver.suspects.count(entry.name)
        for reading in self.readings:
            if reading.entry is entry:
                reading.found_wrong(fact.index)

    def _note_opening(self, entry: Entry, shard: Shard, reader: ReaderName | None, want: RangeRequest | None) -> None:
        goes_on = isinstance(want, Suffix) or (want is not None and want.first > 0)  # a broken stream resumed, or a part of a shard
        if goes_on and reader is not None:
            self.plans.heard(reader)
        how = "" if goes_on else self.plans.opened(shard, reader)
        if how not in ("", "no-plan") and reader is not None:
            self._events.emit(events.ShardOpened(reader, how))
        self.room.touch(entry)
        self._events.emit(CacheChanged())

    def forget(self, fact: EntryRetired) -> None:
        """Nothing of this version is left."""
        entry = fact.entry
        self._resolver.versions.forget(entry)
        if entry.name not in self._resolver.versions.current:
            self.plans.forget(entry.name)
            self._events.emit(NameForgotten(entry.name))

    def reorder(self, fact: NextUseChanged) -> None:
        """Plans say that these shards are used at another time than before."""
        for name in fact.names:
            entry = self._resolver.versions.current.get(name)
            if entry is not None:
                self.room.touch(entry)

    # What a reading needs

    def ask_inside(self) -> None:
        """Ask again for what readers with a plan need next of the shards they are in, before anything further ahead is looked at."""
        for reading in self.readings:
            if self.segment_flights.announced(reading.reader) is not None:  # the others were refused because nothing at all may leave
                reading.ask_again()

    def breadth(self, entry: Entry, bypassing: bool) -> int:
        """How many ranges of one reader may be in the air now: what the origin's pace makes worth it, an even part of the room."""
        if bypassing:
            return 1
        leased = max(0, self.leased_segments - len(self.flights)) * SEGMENT_BYTES
        grantable = self.room.ledger.grantable_bytes(leased) // SEGMENT_BYTES
        active = max(1, len(self.readings) - self._resting - self.fd_leases.count)  # who has a descriptor asks for nothing
        return max(1, min(self._fetcher.ranges(entry.origin), grantable // active))

    def let_rest(self, now: float) -> int:
        """Once a second: readers whose client is stuck give back what they hold (``now`` is monotonic); how many they are."""
        self._resting = sum(reading.rests(now) for reading in self.readings)
        return self._resting

    def read_segment(self, entry: Entry, index: int) -> None:
        self.room.prefetch_debts.hit(entry.key, index)
        entry.segments.unread.discard(index)

    @contextmanager
    def waiting(self, reading: ShardReader) -> Iterator[None]:
        """``reading`` waits for bytes, for the length of the ``with``."""
        try:
            with self.waits.waiting(reading.reader, reading.entry.name, reading.entry.origin, READING) as reading.wait:
                yield
        finally:
            if reading.wait is not None:
                reading.waited_s, reading.wait = reading.waited_s + reading.wait.seconds, None
            self._events.emit(ReaderResumed(reading.reader))

    def is_reading(self, reader: ReaderName) -> bool:
        """Whether ``reader`` is inside a shard now, or waits to be let in."""
        return any(wait.reader == reader for wait in self.waits) or any(reading.reader == reader for reading in self.readings)

    def length_of(self, name: str) -> int | None:
        """Bytes of the version in use of the shard of this name; None where none is known."""
        entry = self._resolver.versions.current.get(name)
        return None if entry is None else entry.version.length

    @property
    def leased_segments(self) -> int:
        return self.leases.count + self.fd_leases.segments
