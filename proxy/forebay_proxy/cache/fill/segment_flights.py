"""Flights of segments: finds the flight that brings a segment, and lets one take off where there is none.

Three parts ask for a segment in the same way: a reader that needs it now (its bytes always come, through memory if need be), a reader that
will need it next, and the prefetcher. The last two are refused where no room is granted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from forebay_proxy.cache.fill.fetcher import Fetcher
from forebay_proxy.cache.fill.fill import Fill
from forebay_proxy.cache.fill.segment_writer import SegmentWriter
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import FlightBoarded, Refetched
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.flights import Flight, Flights
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["SegmentFlights"]


class SegmentFlights:
    """Positions are in bytes of the shard; ``need`` is an urgency, the lower the sooner. Nothing here waits: a flight takes off by itself.

    Not thread-safe: the event loop's only.
    """

    def __init__(
        self,
        *,
        room: SpaceManager,
        disk: DiskHealth,
        plans: PlanRegistry,
        flights: Flights,
        fill: Fill,
        segment_reader: SegmentReader,
        fetcher: Fetcher,
        buffers: BufferBudget,
        events: Events,
        clock: Callable[[], float],
    ) -> None:
        self._room = room
        self._disk = disk
        self._plans = plans
        self._flights = flights
        self._fill = fill
        self._segment_reader = segment_reader
        self._fetcher = fetcher
        self._buffers = buffers
        self._events = events
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SegmentFlights {len(self._flights)} in the air>"

    def find(self, entry: Entry, index: int) -> Flight | None:
        """The flight that brings the segment, or the one body of an origin without Range; None: nothing does."""
        stream = entry.in_use.stream if entry.in_use.streaming else None
        flight = stream or self._flights.find(entry.key, index)
        if flight is not None and index in flight.on_disk.segments and not entry.segments.has(index):
            return None  # what it brought has left already (it may be waiting for the end of its body): there are holes below its watermark
        return flight

    def ensure(self, entry: Entry, index: int, shard: Shard, *, need: float, need_at: float | None, reader: Hashable) -> Flight | None:
        """Prefetch's door: a flight for segment ``index``, None if it is here or in the air. Raises ``CacheFull``.

        ``need_at`` is in monotonic seconds, None: not known.
        """
        if entry.segments.has(index):
            self._segment_reader.foresee(entry, index)
            return None
        if self.find(entry, index) is not None:
            return None
        if not entry.ranged or self._room.entries.setdefault(entry.key, entry) is not entry:
            raise CacheFull("this version cannot be completed any more")
        if not self._disk.usable:
            raise CacheFull("the cache disk is failing")
        grant = self._room.reserve_ahead(entry.segments.bytes_of(index), need_at, reader, (entry.key, index))
        flight = self._flight(entry, index, need)
        self._fly(entry, flight, shard, index, grant)
        return flight

    def launch(self, entry: Entry, index: int, shard: Shard, need: float, reader: ReaderName | None) -> Flight:
        """A flight for a missing segment that a reader needs now; bypasses when no room can be granted."""
        if not entry.ranged:
            return self.launch_alone(entry, entry.segments.span(index)[0], shard)
        flight = self._flight(entry, index, need)
        grant = self._fill.grants.demand(entry, index)
        flight.bypass = grant is None
        self._fly(entry, flight, shard, index, grant)
        return flight

    def launch_ahead(self, entry: Entry, index: int, shard: Shard, need: float, reader: ReaderName | None) -> bool:
        """The same for a segment beyond the reader's position; False where that would need a bypass."""
        flight = self._flight(entry, index, need)
        grants = self._fill.grants
        known = self.announced(reader) is not None
        grant = grants.inside(entry, index, reader) if known else grants.demand(entry, index)
        if grant is None:
            return False
        self._fly(entry, flight, shard, index, grant)
        return True

    def relay(self, entry: Entry, position: int, end: int, shard: Shard) -> Flight | None:
        """A fetch of ``position`` to ``end`` (exclusive, in one segment) and no more, through memory; None: all of the segment is worth it.

        A body that an opening began for these bytes is gone on with.
        """
        relays, index = self._fill.relays, entry.segments.layout.index_of(position)
        begun = relays.boarded(entry.key, position, end)
        if begun is not None:
            return begun
        # Without an identity nothing would tell that two parts are of one version.
        can = entry.ranged and bool(entry.version.identity)
        if not can or not relays.take(entry.name, index, end - position, entry.segments.span(index)[1]):
            return None
        flight = Flight(position, end, 0.0, self._clock(), relay=True)
        self._fly(entry, flight, shard, -1, None)
        return flight

    def launch_alone(self, entry: Entry, position: int, shard: Shard) -> Flight:
        """A fetch for one reader alone, through memory, from ``position`` to the end of its segment (or of the shard, without Range)."""
        first, size = entry.segments.span(entry.segments.layout.index_of(position))
        flight = Flight(position, first + size if entry.ranged else entry.version.length, 0.0, self._clock())
        flight.bypass = True
        self._events.emit(Refetched(entry.origin, (flight.end or position) - position))
        self._fly(entry, flight, shard, -1, None)
        return flight

    def announced(self, reader: ReaderName | None) -> ReaderName | None:
        """``reader`` if its future is known."""
        return reader if reader is not None and self._plans.get(reader) is not None else None

    def hurry(self, entry: Entry, flight: Flight, need: float) -> None:
        """A flight is needed as soon as ``need`` says, or sooner."""
        if need < flight.need:
            flight.need = need
            self._fetcher.hurried(entry.origin)

    def boarded(self) -> None:
        """A reader follows a flight that others asked for."""
        self._events.emit(FlightBoarded())

    def _flight(self, entry: Entry, index: int, need: float) -> Flight:
        first, size = entry.segments.span(index)
        return Flight(first, first + size, need, self._clock())

    def _fly(self, entry: Entry, flight: Flight, shard: Shard, index: int, grant: Grant[Slice] | None) -> None:
        entry.in_use.flying += 1
        if not flight.takeoff.relay:
            self._fill.begun(entry, shard)
        way = self._way(entry, flight, shard, grant)
        if index < 0:
            self._flights.take_off(flight, way)
        else:
            self._flights.take_off(flight, way, entry.key, index)

    async def _way(self, entry: Entry, flight: Flight, shard: Shard, grant: Grant[Slice] | None) -> None:
        writer = SegmentWriter(self._fill, self._buffers, entry, flight, grant)
        writer.bypassing = flight.bypass
        await self._fill.run_flight(entry, flight, writer, self._fetcher.fill(entry, flight, shard, writer))
