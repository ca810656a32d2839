"""ShardCache: finds, fetches, stores and serves shards. Requests enter by ``open``, prefetch by ``SegmentFetches.ensure``.

``open`` finds the version: a stored and fresh one, or by an *opening*, the first ranged GET, shared by all readers that ask. Its body is
the first segment. Then ``open`` checks that the credential may read, and returns a ``ShardReader``. The reader asks for segments. A missing
one becomes a *fetch*: the ledger grants room, the limiter grants a slot, ``Fetcher`` gets the bytes, a ``Sink`` writes them, and
``segment_stored`` marks the segment as stored. Without room, the same fetch goes into memory.

Freshness: a shard name means immutable bytes. A job compares a stored version with the origin at its first opening, unless this process
fetched the bytes in the same job. Readers without a job compare at the first opening of a burst, and after a minute.

Everything here runs on one event loop and needs no locks; between two awaits the ledger's invariant holds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext

from forebay_proxy.cache.fd_lender import FdLender
from forebay_proxy.cache.readers.active_readers import ActiveReaders
from forebay_proxy.cache.readers.chunk_reader import ReaderParts
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import EntryRetired, SegmentSpoilt
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import ShardOpened
from forebay_proxy.core.http_range import RangeRequest, Suffix
from forebay_proxy.core.shard import ByteRange, Shard, SparseRange
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store
from forebay_proxy.telemetry.waits import OPENING
from forebay_proxy.transfer.fetches import FetchTable
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ShardCache"]


class ShardCache:
    """Finds, fetches, stores and serves shards."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        reclaimer: Reclaimer,
        disk: DiskHealth,
        plans: PlanRegistry,
        fetches: FetchTable,
        resolver: VersionResolver,
        parts: ReaderParts,
        readers: ActiveReaders,
        store: Store,
        events: Events,
    ) -> None:
        self.room = room
        self.reclaimer = reclaimer
        self.disk = disk
        self.plans = plans
        self.fetches = fetches
        self.parts = parts
        self.readers = readers
        self.waiting = readers.waiting
        self.fd_lender = FdLender(
            host=self, readers=readers, room=room, resolver=resolver, segment_reader=parts.segment_reader, store=store
        )  # fmt: skip
        self._resolver = resolver
        self._events = events

    def __repr__(self) -> str:
        running, readers = len(self.fetches), len(self.readers)
        return f"<ShardCache {len(self.room.entries)} shards, {self.room.ledger!r}, {running} fetches, {readers} readers>"

    # Opening

    @asynccontextmanager
    async def open(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> AsyncIterator[ShardReader]:
        """Open the shard for a reader, within the ``async with``. Waits for the origin if the version must be learned or compared.

        Raises ``ShardError``.
        """
        with nullcontext() if reader and reader.job else self._resolver.versions.bursts.inside(shard.group):
            if isinstance(want, SparseRange) and any(self.plans.mentions(shard.name)):
                want = ByteRange(want.first, want.last)  # prefetch fetches it anyway, whole
            entry, opened_here, waited_s = await self.find(shard, reader, want, head=head)
            reading = self.reading(entry, shard, reader, opened_here=opened_here, sparse=isinstance(want, SparseRange))
            reading.waited_s = waited_s
            with self.readers.inside(reading):
                if not head:
                    self.note_opening(entry, shard, reader, want)
                with self.parts.buffers.readers.held():
                    async with aclosing(reading):
                        yield reading

    async def find(
        self, shard: Shard, reader: ReaderName | None, want: RangeRequest | None, *, head: bool = False
    ) -> tuple[Entry, bool, float]:
        """Find the version to read.

        Returns its entry, whether this call began the opening, and the seconds that ``reader`` waited for the origin.

        Raises ``ShardError``.
        """
        job = reader.job if reader else ""
        waited_s, opened_here, entry = 0.0, False, self._resolver.ready(shard, job)
        if entry is None:
            with self.readers.waits.waiting(reader, shard.name, shard.origin, OPENING) as wait:
                known = self.parts.segment_fetches.announced(reader)
                entry, opened_here = await self._resolver.entry(shard, job, want, head=head, reader=known)
            waited_s = wait.seconds
        entry = self.room.entries.setdefault(entry.key, entry)  # forgotten since its opening ended: always one entry per key
        return entry, opened_here, waited_s

    def reading(self, entry: Entry, shard: Shard, reader: ReaderName | None, *, opened_here: bool, sparse: bool = False) -> ShardReader:
        """A reader of the shard. Its epoch is the plan's before this opening, because the opening may move the plan to the next one."""
        reading = ShardReader(self, entry, shard, reader, opened_here=opened_here, sparse=sparse)
        plan = self.plans.get(reader) if reader else None
        reading.epoch = plan.epoch if plan else None
        return reading

    async def move(self, reading: ShardReader) -> None:
        """Move ``reading`` to the version that the origin has now; waits for its opening.

        The old version may leave then. Raises ``ShardError``.
        """
        job = reading.reader.job if reading.reader else ""
        entry, opened_here = await self._resolver.entry(reading.shard, job)
        entry = self.room.entries.setdefault(entry.key, entry)
        before = reading.entry
        await reading.aclose()
        reading.moved_to(entry, opened_here=opened_here)
        entry.in_use.readers += 1
        before.in_use.readers -= 1
        self.room.left(before)

    def spoilt(self, fact: SegmentSpoilt) -> None:
        """A stored segment is wrong: readers that were given bytes of it are cut off, and the version is opened again."""
        entry = fact.entry
        self._resolver.faults.spoilt(entry.name, by_origin=False)
        entry.trust.remade = self._resolver.faults.count(entry.name)
        for reading in self.readers:
            if reading.entry is entry:
                reading.chunk_reader.found_wrong(fact.index)

    def note_opening(self, entry: Entry, shard: Shard, reader: ReaderName | None, want: RangeRequest | None) -> None:
        """Tell the plans that ``reader`` opened the shard. A range that begins after the first byte only shows that the reader is alive."""
        goes_on = isinstance(want, Suffix) or (want is not None and want.first > 0)  # a resumed stream, or a part of a shard
        if goes_on and reader is not None:
            self.plans.heard(reader)
        how = "" if goes_on else self.plans.opened(shard, reader)
        if how not in ("", "no-plan") and reader is not None:
            self._events.emit(ShardOpened(reader, how))
        self.room.candidates.touch(entry)
        self.room.changed()

    def forget(self, fact: EntryRetired) -> None:
        """Forget a version of which nothing is left."""
        entry = fact.entry
        self._resolver.versions.forget(entry)
        if entry.name not in self._resolver.versions.current:
            self.plans.forget(entry.name)

    # For readers

    def ask_inside(self) -> None:
        """Let readers with a plan request the next segments of their shards again, before any shard further ahead is fetched."""
        for reading in self.readers:
            if self.parts.segment_fetches.announced(reading.reader) is not None:  # the others were refused because nothing at all may leave
                reading.ask_again()

    def breadth(self, entry: Entry, bypassing: bool) -> int:
        """How many ranges of one reader may be fetched at once, 1 to 16.

        That is as many as the origin's rate is worth, and at most an equal part of the grantable segments.
        """
        if bypassing:
            return 1
        segment_bytes = self.room.layout.segment_bytes
        leased = max(0, self.leased_segments - len(self.fetches)) * segment_bytes
        grantable = self.room.ledger.grantable_bytes(leased) // segment_bytes
        lent = self.fd_lender.count  # a reader with a descriptor fetches nothing
        active = max(1, len(self.readers) - self.readers.resting - lent)
        return max(1, min(self.parts.limiters.of(entry.origin).connection_rate.ranges, grantable // active))

    def length_of(self, name: str) -> int | None:
        """Length in bytes of the shard's current version; None while it is unknown."""
        entry = self._resolver.versions.current.get(name)
        return None if entry is None else entry.version.length

    @property
    def leased_segments(self) -> int:
        """Segments leased by readers and by lent descriptors."""
        return self.room.leased_segments + self.fd_lender.segments
