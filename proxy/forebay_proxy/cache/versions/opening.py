"""One opening of a shard: asks until the origin answers, tells its waiting readers, and stores the body of the answer.

The state machine, in the order of its methods: reserve room for a segment, as large as those of its group mostly are -> ask -> (cannot be
asked in pieces: ask for the whole) -> the version is known, its waiting readers go on -> the room becomes what the header says -> the body
is stored by the first flight -> broken: the flight resumes as any other would.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from forebay_proxy.cache.fill.fetcher import UNWANTED_BUDGET_S, Fetcher
from forebay_proxy.cache.fill.relays import Relays
from forebay_proxy.cache.fill.segment_writer import SegmentWriter, WriterFill
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.cache.versions.versions import Versions
from forebay_proxy.core.errors import CacheFull, RangeNotSatisfiable, ShardError
from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import ByteRange, Pin, Shard, SparseRange, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.flights import Flight, Flights, error_for_readers
from forebay_proxy.transfer.limiter import DEMAND, Slot
from forebay_proxy.transfer.single_flight import Urgency

__all__ = ["FirstSegmentSizes", "Opening", "OpeningFill", "OpeningParts"]

LEARNED_MOST = 4096  # groups and origins whose shards' sizes are remembered
RECENT = 9  # sizes of each: what comes now and then among others, larger or smaller, decides nothing


class OpeningFill(WriterFill, Protocol):
    """What an opening needs of the cache."""

    @property
    def relays(self) -> Relays: ...

    def outdated(self, entry: Entry) -> None: ...

    def begun(self, entry: Entry, shard: Shard) -> None:
        """A flight of ``entry`` takes off."""
        ...

    async def run_flight(self, entry: Entry, flight: Flight, writer: SegmentWriter, filling: Awaitable[None]) -> None: ...


@dataclass(frozen=True, slots=True)
class OpeningParts:
    """What every opening works with."""

    fetcher: Fetcher
    buffers: BufferBudget
    flights: Flights
    room: SpaceManager
    versions: Versions
    sizes: FirstSegmentSizes
    clock: Callable[[], float]


class Opening:
    """One run of it; ``known`` is resolved as soon as the version is."""

    def __init__(
        self,
        parts: OpeningParts,
        fill: OpeningFill,
        shard: Shard,
        job: str,
        want: RangeRequest | None,
        *,
        head: bool,
        needed: Urgency,
        known: asyncio.Future[Entry],
    ) -> None:
        self.entry: Entry | None = None
        self.seconds = 0.0
        self._parts = parts
        self._fill = fill
        self._shard = shard
        self._job = job
        self._head = head
        self._needed = needed
        self._known = known
        layout = parts.room.layout
        part = fill.relays.part(shard.name, want, layout) if isinstance(want, SparseRange) and not head else None
        self._asked: ByteRange | None = part or (ByteRange(0, 0) if head else _first_range(want, layout))
        self._retry_budget = parts.fetcher.retry_budget(shard.origin)
        self._started = parts.clock()

    async def run(self) -> None:
        """Ask until the version is known and its first body has landed. Raises ``ShardError``, and ahead of need ``CacheFull``."""
        while not self._known.done():
            try:
                await self._attempt()
            except RangeNotSatisfiable as error:
                if self._known.done():
                    raise
                self._beyond(error)
            except ShardError as error:
                if self._known.done():
                    raise
                await self._again(error)

    def _beyond(self, error: RangeNotSatisfiable) -> None:
        """The origin answered 416: the range lies beyond the shard's end, or the shard is empty.

        Another range is asked for, as one reader's range must not fail the other readers of this opening. A shard counts as empty only when
        all of it was asked for and no byte came: a 416 may be a mistake of a proxy on the way, and would end a stream of samples without an
        error.
        """
        if self._asked is None:
            raise error
        self._asked = _first_range(None, self._parts.room.layout) if self._asked.first else None

    async def _again(self, error: ShardError) -> None:
        if self._needed.waiting and self._needed.need < DEMAND:
            self._retry_budget.wanted()
        else:  # who asks ahead of need waits too, but can do without
            self._retry_budget.shorten(UNWANTED_BUDGET_S)
        await self._parts.fetcher.again(self._shard, error, self._retry_budget)

    async def _attempt(self) -> None:
        grant = None
        try:
            if not self._head and not isinstance(self._asked, SparseRange):
                grant = await self._fill.grants.opening(self._needed, self._parts.sizes.guess(self._shard))
            if grant is None and self._needed.need >= DEMAND:
                raise CacheFull("no room to open it ahead of need")  # the bytes would pass through memory, and no reader would want them
            async with AsyncExitStack() as held:
                asking = self._parts.fetcher.ask(self._shard, self._asked, Pin(), self._needed, self._retry_budget)
                body, slot = await held.enter_async_context(asking)
                if self._asked is not None and not self._head and _must_be_whole(body, self._parts.room.layout):
                    self._asked = None
                    return
                relay = self._relay(body)
                if isinstance(self._asked, SparseRange) and relay is None:
                    self._asked = _first_range(self._asked, self._parts.room.layout)
                    return
                entry = self._admit(body.version, ranged=body.ranged)
                flight = self._flight(entry, body, relay)
                if flight is None:
                    self._resolve()
                else:
                    given, grant = grant, None
                    fitted = None if given is None else self._fitted(given, entry, flight)
                    if fitted is None and self._needed.need >= DEMAND:
                        raise CacheFull("no room for its first segment ahead of need")
                    writer = SegmentWriter(self._fill, self._parts.buffers, entry, flight, fitted)
                    if relay is None:
                        self._note(entry, flight)
                    flight.bypass = writer.bypassing = fitted is None
                    await self._fly(entry, flight, writer, held, body, slot)
        finally:
            self._parts.room.read_ahead.end(*self._needed.place)
            if grant is not None:
                assert self.entry is None or not grant.closed
                self._fill.give_back(None, None, grant)

    def _fitted(self, grant: Grant[Slice], entry: Entry, flight: Flight) -> Grant[Slice] | None:
        """The room that was guessed becomes what the header says, before any of the body is taken; None: there is not so much."""
        size = entry.segments.bytes_of(entry.segments.layout.index_of(flight.first))
        self._parts.sizes.learn(self._shard, size)
        if size > grant.bytes:
            return self._fill.grants.larger(self._needed, grant, size)
        self._parts.room.ledger.shrink(grant, size)
        return grant

    def _note(self, entry: Entry, flight: Flight) -> None:
        """A segment that was granted ahead of need is unread until a reader reads this very segment."""
        index = entry.segments.layout.index_of(flight.first)
        self._parts.room.read_ahead.move(self._needed.place, entry.key, index, entry.segments.bytes_of(index))

    def _admit(self, version: Version, *, ranged: bool) -> Entry:
        """The version is known: everybody who waits goes on."""
        self.entry = entry = self._parts.versions.admit(self._shard, self._job, version, self._fill.outdated, ranged=ranged)
        self.seconds = self._parts.clock() - self._started
        if self._head or version.length == 0:
            self._resolve()
        self._retry_budget = self._parts.fetcher.retry_budget(
            self._shard.origin
        )  # it has answered: from now on it is worth the full budget
        return entry

    def _resolve(self) -> None:
        assert self.entry is not None
        if not self._known.done():
            self._known.set_result(self.entry)

    def _relay(self, body: OriginBody) -> Flight | None:
        """The flight of the part of a segment that was asked for; None where all of it is to come."""
        if not isinstance(self._asked, SparseRange) or not body.ranged:
            return None
        return self._fill.relays.opened(self._shard.name, self._asked, self._parts.room.layout, body.version, self._parts.clock())

    def _flight(self, entry: Entry, body: OriginBody, relay: Flight | None) -> Flight | None:
        """The flight that lands this body; None where that is not needed."""
        if self._head or entry.version.length == 0:
            return None
        if not entry.ranged:
            if entry.segments.complete or entry.in_use.streaming:
                return None
            once, ahead_for = not entry.version.identity, self._needed.reader
            return Flight(0, entry.version.length, self._needed.need, self._parts.clock(), once=once, ahead_for=ahead_for)
        index = entry.segments.layout.index_of(body.first)
        if entry.segments.has(index) or self._parts.flights.find(entry.key, index) is not None:
            return None
        first, size = entry.segments.span(index)
        return relay or Flight(first, first + size, self._needed.need, self._parts.clock())

    async def _fly(self, entry: Entry, flight: Flight, writer: SegmentWriter, held: AsyncExitStack, body: OriginBody, slot: Slot) -> None:
        index = entry.segments.layout.index_of(flight.first) if entry.ranged else -1
        if not entry.ranged:
            entry.in_use.stream = flight
        if flight.takeoff.relay:
            self._fill.relays.begun(entry.key, flight)
        else:
            self._fill.begun(entry, self._shard)
            self._parts.flights.post(entry.key, index, flight)
        entry.in_use.flying += 1
        self._resolve()
        error: BaseException | None = None
        try:
            await self._fill.run_flight(entry, flight, writer, self._bring(entry, flight, writer, held, body, slot))
        except BaseException as failed:
            error = error_for_readers(failed)
            raise
        finally:
            self._parts.flights.land(flight, error, entry.key, index)

    async def _bring(self, entry: Entry, flight: Flight, writer: SegmentWriter, held: AsyncExitStack, body: OriginBody, slot: Slot) -> None:
        fetcher = self._parts.fetcher
        try:
            async with held.pop_all():  # connection and slot go back before any pause
                await writer.ready()
                await fetcher.pour(entry, flight, self._shard, writer, body, slot)
            return
        except ShardError as error:
            await writer.flush()
            if writer.complete:
                return
            await fetcher.resume(entry, flight, self._shard, writer, error, self._retry_budget)
        await fetcher.fill(entry, flight, self._shard, writer, self._retry_budget)


def _must_be_whole(body: OriginBody, layout: SegmentLayout) -> bool:
    """A ranged answer of a shard that cannot be asked in pieces: nothing says where it ends, or which version it is of."""
    if not body.ranged:
        return False
    length = body.version.length
    return length is None or (not body.version.identity and length > layout.segment_bytes)


def _first_range(want: RangeRequest | None, layout: SegmentLayout) -> ByteRange:
    """The segment of the client's first byte; for a suffix, whose place is not known yet, the first one."""
    first, size = layout.span(layout.index_of(want.first) if isinstance(want, ByteRange) else 0, None)
    return ByteRange(first, first + size - 1)


class FirstSegmentSizes:
    """How long a first segment may be before anybody knows: as the last ones of its group mostly were; of an unknown group, of its origin.

    A whole segment each would have thousands of tiny shards leave for one of them. A guess that is too small costs little: the room grows
    as soon as the header names the length. Not thread-safe: the event loop's only.
    """

    def __init__(self, segment_bytes: int) -> None:
        """``segment_bytes``: what is guessed of an origin nothing is known of."""
        self._segment_bytes = segment_bytes
        self._recent: OrderedDict[str, deque[int]] = OrderedDict()  # group or origin -> bytes, longest unopened first

    def __len__(self) -> int:
        return len(self._recent)

    def guess(self, shard: Shard) -> int:
        """How many bytes to reserve for a first segment of unknown length."""
        recent = self._recent.get(shard.group) or self._recent.get(shard.origin)
        return sorted(recent)[(len(recent) - 1) // 2] if recent else self._segment_bytes

    def learn(self, shard: Shard, size: int) -> None:
        """The first segment of ``shard`` has ``size`` bytes."""
        for place in (shard.group, shard.origin):
            self._recent.setdefault(place, deque(maxlen=RECENT)).append(size)
            self._recent.move_to_end(place)
        while len(self._recent) > LEARNED_MOST:
            self._recent.popitem(last=False)
