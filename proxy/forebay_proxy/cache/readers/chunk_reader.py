"""Where a reader's next bytes come from, and those bytes: out of the file into a buffer of its own, or out of a flight's window.

There are five sources. Which one it is, is decided without I/O:

| source | when: the first line that holds | what the reader does |
|---|---|---|
| ``SAME_FLIGHT`` | one body of many segments, which it follows, brings this segment too | goes on aboard it |
| ``ONE_BODY`` | the body cannot be asked for twice, flies, and has the position | boards it, for what is stored too: it waits for readers |
| ``PRIVATE`` | that body has gone past the position 0 and kept nothing of it | asks for a body of its own |
| ``PRIVATE`` | the segment on the disk is doubtful: found wrong or not to be read now, and the disk does not let go of it | the same |
| ``STORE`` | the segment is stored | reads the file |
| ``SHARED`` | the segment is missing | boards the flight that brings it, or has one take off |

Segments that were hashed when they were here before may come again, and be read before they have landed: they are the same bytes, or an
error (``RepeatCheck``).

What lies in the file need not come through a buffer: a ``FileStretch`` is sent from there. What must be true of a chunk once it has been
read must be true of a stretch when it is sent, and nothing comes between the look and the sending.
"""

from __future__ import annotations

from enum import Enum

import xxhash

from forebay_proxy.cache.integrity.digest_gate import DigestGate
from forebay_proxy.cache.readers.reader_parts import ReaderParts
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import FellBehind, ShardError, WrongBytes, bare
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.transfer.flights import Flight

__all__ = ["ChunkReader", "RepeatCheck", "SegmentSource", "foreseen_outcome", "source_in_flight", "source_of_segment"]


class ChunkReader:
    """Gives chunks of at most one unit, within one segment. A chunk is used up when the next is asked for."""

    def __init__(self, parts: ReaderParts, entry: Entry) -> None:
        self._parts = parts
        self._entry = entry
        self._buffer = bytearray()
        self._given: set[int] = set()  # segments of which bytes from the file were given
        self._fault: ShardError | None = None

    def __repr__(self) -> str:
        return f"<ChunkReader of {self._entry.name}: gave of segments {sorted(self._given)}>"

    def check(self) -> None:
        """Raises why the reader must not go on."""
        fault = self._fault or self._entry.in_use.fault
        if fault is not None:
            raise bare(fault)

    def found_wrong(self, index: int) -> None:
        """A stored segment is wrong: a reader that was given bytes of it must not go on."""
        if index in self._given:
            first, size = self._entry.segments.span(index)
            cause = f"bytes {first} to {first + size - 1} were found wrong on the cache disk after some of them had been sent"
            self._fault = WrongBytes(self._entry.name, cause, next_step="read it again from its start: they are fetched anew")

    def end_of(self, index: int, wanted_end: int | None) -> int:
        """Where segment ``index`` ends, or what is wanted of it (exclusive; None: all)."""
        first, size = self._entry.segments.span(index)
        return first + size if wanted_end is None else min(first + size, wanted_end)

    def from_window(self, flight: Flight, position: int, end: int) -> memoryview:
        """Bytes from ``position``, before ``end``, which the window of ``flight`` has."""
        view = flight.window.read(position)
        assert view is not None, "below the watermark is in the window"
        return view[: min(end - position, self._unit_bytes)]

    async def from_file(self, index: int, position: int, end: int, flight: Flight | None) -> memoryview | bytes:
        """Bytes of segment ``index`` from ``position``, before ``end``; ``flight`` wrote them, or None: they are stored.

        Raises ``FellBehind`` where the file lost them meanwhile, the flight's error, and what ``check`` raises.
        """
        if flight is not None:
            end = min(end, flight.on_disk.end)
        segments = self._entry.segments
        departures = segments.departures
        data = await self._parts.segment_reader.read(self._entry, position, self._place(end - position))
        if flight is not None and flight.error is not None:
            raise bare(flight.error)  # its bytes are being given back: what was read may be holes
        if flight is not None and flight.on_disk.file is not self._entry.stored.file:
            raise FellBehind("the directory was removed, and with it the file that holds these bytes")
        self.check()
        landed = flight is None or index in flight.on_disk.segments
        if segments.departures != departures or (landed and not segments.has(index)):
            raise FellBehind("the segment was found wrong, and left, while it was read")
        self._given.add(index)
        return data

    def send_now(self, index: int, position: int, end: int, flight: Flight | None, sock: int) -> int | None:
        """How many bytes of a segment from ``position``, before ``end``, the socket took from the file. ``flight``: as ``from_file``.

        None: they are to be read, and that says why. What leaves the file after this look was taken out of use by the loop before, so
        nothing of it is sent. Raises ConnectionError.
        """
        entry, segments = self._entry, self._entry.segments
        if self._fault is not None or entry.in_use.fault is not None:
            return None
        if flight is not None and (flight.error is not None or flight.on_disk.file is not entry.stored.file or end > flight.on_disk.end):
            return None
        if (flight is None or index in flight.on_disk.segments) and (not segments.has(index) or index in segments.unverified):
            return None
        sent = self._parts.segment_reader.send_now(entry, position, end - position, sock)
        if sent:
            self._given.add(index)
        return sent

    @property
    def _unit_bytes(self) -> int:
        return self._parts.buffers.readers.unit_bytes

    def _place(self, size: int) -> memoryview:
        """At most ``size`` bytes of the buffer."""
        size = min(size, self._unit_bytes)
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]


class RepeatCheck:
    """One reader's part of the comparison; ``gate`` compares with the sums from before. A difference makes the entry's ``fault``."""

    def __init__(self, gate: DigestGate, entry: Entry) -> None:
        self._gate = gate
        self._entry = entry
        self._uncompared: dict[int, Flight] = {}
        self._summed = -1, xxhash.xxh3_64()  # the segment of them that is being read, if from its start, and the sum of its bytes so far

    def __repr__(self) -> str:
        return f"<RepeatCheck of {self._entry.name}: segments {sorted(self._uncompared)}>"

    def __bool__(self) -> bool:
        """Whether the reader was given bytes that are not compared yet."""
        return bool(self._uncompared)

    def expect(self, index: int, flight: Flight | None) -> None:
        """The reader is about to read segment ``index``, which ``flight`` (None: the disk) brings."""
        if flight is not None and index not in flight.on_disk.segments and self._entry.trust.was_hashed(index):
            self._uncompared[index] = flight

    def add(self, index: int, position: int, data: bytes | memoryview) -> bool:
        """Sum up ``data`` of segment ``index``, read at ``position``; whether that was its end, and the sum was compared.

        What only passes through memory nobody else has whole.
        """
        if index not in self._uncompared:
            return False
        first, size = self._entry.segments.span(index)
        if position == first:
            self._summed = index, xxhash.xxh3_64()
        of, hasher = self._summed
        if of != index:
            return False  # read from its middle on
        hasher.update(data)
        if position + len(data) != first + size:
            return False
        del self._uncompared[index]
        self._gate.came_again(self._entry, index, hasher.intdigest())
        return True

    async def finish(self) -> None:
        """Wait until what was not summed up here has landed, and so been compared; or until it will not land."""
        for index, flight in self._uncompared.items():
            await self._gate.compared(self._entry, index, flight)
        self._uncompared.clear()


class SegmentSource(Enum):
    """Where the bytes of one segment come from, for one reader."""

    SAME_FLIGHT = "same flight"
    ONE_BODY = "one body"
    PRIVATE = "private"
    STORE = "store"
    SHARED = "shared"


def source_in_flight(entry: Entry, position: int, aboard: Flight | None) -> SegmentSource | None:
    """The first three lines of the table, which need no look at the disk; None: one of the others. ``aboard``: what the reader follows."""
    if aboard is not None and not entry.ranged and aboard.error is None and (aboard.position > position or not aboard.done):
        return SegmentSource.SAME_FLIGHT
    stream = entry.in_use.stream
    if stream is None or not stream.takeoff.once or stream.done:
        return None
    if stream.reaches(position):
        return SegmentSource.ONE_BODY
    return None if position else SegmentSource.PRIVATE


def source_of_segment(entry: Entry, index: int) -> SegmentSource:
    """The last three lines, of a segment that was verified if it is stored."""
    if index in entry.segments.unverified:
        return SegmentSource.PRIVATE
    return SegmentSource.STORE if entry.segments.has(index) else SegmentSource.SHARED


def foreseen_outcome(entry: Entry, position: int, end: int | None, *, joins: bool) -> RequestOutcome:
    """What the segments from ``position`` to ``end`` (exclusive; None: not known) say before anything is asked for.

    ``joins``: a flight that others asked for brings the first of them.
    """
    layout = entry.segments.layout
    first = layout.index_of(position)
    last = first if end is None else layout.index_of(end - 1)
    stored = entry.segments.sums.count_within(first, last + 1)
    if stored == last + 1 - first and end is not None:
        return RequestOutcome.HIT
    if stored:
        return RequestOutcome.PARTIAL
    return RequestOutcome.COLLAPSED if joins else RequestOutcome.MISS
