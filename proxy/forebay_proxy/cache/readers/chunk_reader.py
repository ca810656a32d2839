"""Readable bytes of one shard for one reader: from the file into a buffer of its own, or out of a flight's window."""

from __future__ import annotations

from forebay_proxy.cache.readers.reader_host import ReaderHost
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import FellBehind, ShardError, WrongBytes, bare
from forebay_proxy.core.segments import segment_span
from forebay_proxy.transfer.flights import Flight

__all__ = ["ChunkReader"]


class ChunkReader:
    """Gives chunks of at most one unit, within one segment. A chunk is used up when the next is asked for."""

    def __init__(self, host: ReaderHost, entry: Entry) -> None:
        self._host = host
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
        """A stored segment is wrong: whoever was given bytes of it must not go on."""
        if index in self._given:
            first, size = segment_span(index, self._entry.shown_version.length)
            cause = f"bytes {first} to {first + size - 1} were found wrong on the cache disk after some of them had been sent"
            self._fault = WrongBytes(self._entry.name, cause, next_step="read it again from its start: they are fetched anew")

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
            end = min(end, flight.stored_end)
        segments = self._entry.segments
        departures = segments.departures
        data = await self._host.segment_reader.read(self._entry, position, self._place(end - position))
        if flight is not None and flight.error is not None:
            raise bare(flight.error)  # its bytes are being given back: what was read may be holes
        if flight is not None and flight.file is not self._entry.stored.file:
            raise FellBehind("the directory was removed, and with it the file that holds these bytes")
        self.check()
        landed = flight is None or index in flight.stored
        if segments.departures != departures or (landed and not segments.has(index)):
            raise FellBehind("the segment was found wrong, and left, while it was read")
        self._given.add(index)
        return data

    @property
    def _unit_bytes(self) -> int:
        return self._host.buffers.readers.unit_bytes

    def _place(self, size: int) -> memoryview:
        """At most ``size`` bytes of the buffer."""
        size = min(size, self._unit_bytes)
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]
