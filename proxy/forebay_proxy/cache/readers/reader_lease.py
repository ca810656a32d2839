"""What one reader holds of a shard version (the segments it leases, the flight it is aboard), where it is, and what is told of it.

Not thread-safe: the event loop's only."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from forebay_proxy.cache.readers.chunk_reader import SegmentSource
from forebay_proxy.cache.readers.reader_parts import ReaderParts
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.shard import Shard
from forebay_proxy.telemetry.waits import Wait
from forebay_proxy.transfer.flights import Flight
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ReaderLease", "ReaderPlace", "ReaderTally"]


@dataclass(slots=True)
class ReaderTally:
    """What is told of one reading: to the client, the log and the status page."""

    outcome: RequestOutcome = RequestOutcome.HIT
    hit_bytes: int = 0
    waited_s: float = 0.0  # over all waits that have ended, its opening's among them
    wait: Wait | None = None  # for bytes, right now
    epoch: int | None = None  # of its reader's plan, when it opened

    def passes_by(self, flight: Flight) -> None:
        """Bytes of ``flight``, which are not stored, are this reading's."""
        self.outcome = RequestOutcome.RELAYED if flight.takeoff.relay else RequestOutcome.BYPASS


@dataclass(slots=True)
class ReaderPlace:
    """Where a reader is in its shard, and how it got there."""

    segment: int = -1  # -1: it has yet to look where the bytes are
    source: SegmentSource = SegmentSource.SHARED
    segments_read: int = 0
    began_at: int | None = None  # the first segment it entered
    private_attempts: int = 0
    handed_at: float | None = None  # since when the client has been busy with the last chunk

    def arrive(self, segment: int) -> None:
        """The reader is in ``segment`` now."""
        if self.began_at is None:
            self.began_at = segment
        if self.segment != -1:
            self.segments_read += 1
        self.segment = segment


class ReaderLease:
    """A reader's lease: its position, and the window before it."""

    def __init__(
        self, parts: ReaderParts, entry: Entry, shard: Shard, reader: ReaderName | None, passenger: object, *, sparse: bool = False
    ) -> None:
        """``passenger``: as whom it boards flights. ``sparse``: of segments that are not here no more is wanted than is read."""
        self.sparse = sparse
        self.flight: Flight | None = None
        self.asked_to = -1  # the highest segment asked for
        self._parts = parts
        self._entry = entry
        self._shard = shard
        self._reader = reader
        self._passenger = passenger
        self._leased: set[int] = set()
        self._aboard = ExitStack()

    def __repr__(self) -> str:
        return f"<ReaderLease of {self._entry.name}: segments {sorted(self._leased)}, aboard {self.flight!r}>"

    def lease(self, index: int) -> None:
        if index not in self._leased:
            self._leased.add(index)
            self._parts.leases.lease(self._entry, index)

    def arrive(self, index: int) -> None:
        """The reader is in segment ``index`` now: those before it go back."""
        self.lease(index)
        for passed in [held for held in self._leased if held < index]:
            self._release(passed)

    def _release(self, index: int) -> None:
        self._leased.discard(index)
        self._parts.leases.release(self._entry, index)

    def board(self, flight: Flight, position: int) -> None:
        """Follow ``flight`` from ``position``, which is needed now."""
        self._parts.segment_flights.hurry(self._entry, flight, 0.0)
        self.flight = flight
        self._aboard.enter_context(flight.aboard(self._passenger, position))

    def moved(self, position: int) -> None:
        """The reader has read up to ``position``."""
        if self.flight is not None:
            self.flight.passengers.moved(self._passenger, position)

    def leave_flight(self) -> None:
        self.flight = None
        self._aboard.close()

    def coming(self, index: int, position: int, end: int | None, *, opened_here: bool) -> Flight:
        """The flight that brings segment ``index``, from ``position`` on; ``end`` (exclusive) of what is wanted, None: not known."""
        flights, flight = self._parts.segment_flights, self.in_the_air(index, opened_here=opened_here)
        if flight is None and self.sparse and end is not None:
            first, size = self._entry.segments.span(index)
            flight = flights.relay(self._entry, position, min(end, first + size), self._shard)
        return flight or flights.launch(self._entry, index, self._shard, 0.0, self._reader)

    def in_the_air(self, index: int, *, opened_here: bool) -> Flight | None:
        """The flight that brings segment ``index`` already; counted where another reader asked for it. ``opened_here``: nobody else did."""
        flight = self._parts.segment_flights.find(self._entry, index)
        if flight is not None and not opened_here and index > self.asked_to:
            self._parts.segment_flights.boarded()
        return flight

    def ask_ahead(self, index: int, last: int) -> None:
        """Have the segments behind ``index`` come, up to ``last`` or to where there is no room for them."""
        if self.sparse:
            return
        for ahead in range(index + 1, last + 1):
            if self._entry.segments.has(ahead):
                self._parts.segment_reader.foresee(self._entry, ahead)
            elif (flight := self._parts.segment_flights.find(self._entry, ahead)) is not None:
                self._parts.segment_flights.hurry(self._entry, flight, float(ahead - index))
            elif not self._parts.segment_flights.launch_ahead(self._entry, ahead, self._shard, float(ahead - index), self._reader):
                return
            self.lease(ahead)
            self.asked_to = ahead

    def give_up(self) -> None:
        """Everything goes back, the flights fly on; nothing is asked for any more."""
        self.leave_flight()
        self.asked_to = -1
        for index in list(self._leased):
            self._release(index)
