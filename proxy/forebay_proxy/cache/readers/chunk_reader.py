"""A reader's next bytes, from the file or memory that holds them: copied into a buffer of its own, or sent from the file.

Bytes in the file need no buffer: a ``FileStretch`` is sent from there in several calls. The checks for a chunk come after its read. For a
stretch they come right before the send, and nothing runs in between. A chunk is used instead in three cases. The first bytes of a body are
a chunk: until the header is sent, bytes that the disk does not give can still come from the origin. If the socket is full, a small chunk
lets the transport wait for room. If bytes are not in memory, a thread reads them into a chunk.

Segments that were hashed before may be fetched again, and be read before they are stored. Their bytes must be the same, otherwise the
reader gets an error (``RepeatCheck``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import xxhash

from forebay_proxy.cache.fetching.segment_fetches import SegmentFetches
from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.errors import FellBehind, ShardError, WrongBytes, bare
from forebay_proxy.transfer.buffers import BufferBudget, MemorySegment
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.transfer.limiter import Limiters

__all__ = ["FIRST_BYTES", "LEAST_BYTES", "MOST_BYTES", "TURN_BYTES", "Alone", "ChunkReader", "FileStretch", "ReaderParts", "RepeatCheck"]

MOST_BYTES = 2**20  # copied per call on the event loop, while other tasks wait
# Sent per call: half a millisecond. Less means more calls per byte; with more, the first byte of 64 readers comes a third later.
TURN_BYTES = 2 * 2**20
LEAST_BYTES = 64 * 1024  # fewer are copied as fast as checked
FIRST_BYTES = 64 * 1024
NUDGE_BYTES = 16 * 1024  # as much as ``body_writer`` gives to the transport


@dataclass(frozen=True, slots=True)
class ReaderParts:
    """The parts that all readers share: reading, fetches, checks, room, buffers and limiters."""

    segment_reader: SegmentReader
    segment_fetches: SegmentFetches
    digest_check: DigestCheck
    room: SpaceManager
    buffers: BufferBudget
    limiters: Limiters


class ChunkReader:
    """Returns chunks of at most one unit, within one segment. A chunk is valid until the next is read."""

    def __init__(self, parts: ReaderParts, entry: Entry) -> None:
        self._parts = parts
        self._entry = entry
        self._buffer = bytearray()
        self._given: set[int] = set()  # segments of which bytes from the file were given out
        self._fault: ShardError | None = None

    def __repr__(self) -> str:
        return f"<ChunkReader of {self._entry.name}: gave of segments {sorted(self._given)}>"

    def check(self) -> None:
        """Raises the error if the reader must not go on."""
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
        """The end (exclusive) of segment ``index``, or of the wanted range if that is earlier; ``wanted_end`` None: all is wanted."""
        first, size = self._entry.segments.span(index)
        return first + size if wanted_end is None else min(first + size, wanted_end)

    async def read(self, index: int, position: int, end: int, fetch: Fetch | None) -> memoryview | bytes:
        """Bytes of segment ``index`` from ``position``, before ``end``. ``fetch`` brings them; None: they are stored.

        Raises ``FellBehind`` if the file lost them meanwhile, the fetch's error, and the errors of ``check``.
        """
        if fetch is not None and isinstance(fetch.place, MemorySegment):
            buffer = self._place(min(end, fetch.position) - position)
            fetch.place.read(position, buffer)
            self.check()
            return buffer
        if fetch is not None:
            end = min(end, fetch.position)
        segments = self._entry.segments
        departures = segments.departures
        data = await self._parts.segment_reader.read(self._entry, position, self._place(end - position))
        if fetch is not None and fetch.error is not None:
            raise bare(fetch.error)  # its room is being given back: the bytes read may be holes
        if fetch is not None and fetch.place is not self._entry.stored.file:
            raise FellBehind("the directory was removed, and with it the file that holds these bytes")
        self.check()
        landed = fetch is None or index in fetch.stored
        if segments.departures != departures or (landed and not segments.has(index)):
            raise FellBehind("the segment was found wrong, and left, while it was read")
        self._given.add(index)
        return data

    def send_now(self, index: int, position: int, end: int, fetch: Fetch | None, sock: int) -> int | None:
        """How many bytes of a segment from ``position``, before ``end``, the socket took from the file. ``fetch``: as in ``read``.

        None: read them instead, which reports errors. Segments are taken out of use on the event loop before their bytes are removed, so
        the checks here cannot be overtaken. Raises ConnectionError.
        """
        entry, segments = self._entry, self._entry.segments
        if self._fault is not None or entry.in_use.fault is not None:
            return None
        if fetch is not None and (fetch.error is not None or fetch.place is not entry.stored.file or end > fetch.position):
            return None
        if (fetch is None or index in fetch.stored) and (not segments.has(index) or index in segments.unverified):
            return None
        sent = self._parts.segment_reader.send_now(entry, position, end - position, sock)
        if sent:
            self._given.add(index)
        return sent

    def _place(self, size: int) -> memoryview:
        """At most ``size`` bytes of the buffer."""
        size = min(size, self._parts.buffers.readers.unit_bytes)
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]


class FileStretch:
    """Bytes of one segment in the file, sent in several calls. Not thread-safe: used on the event loop alone."""

    __slots__ = ("_chunk_reader", "_fetch", "_index", "_inside", "_moved", "copied", "end", "goes_on", "position")

    def __init__(
        self, chunk_reader: ChunkReader, index: int, fetch: Fetch | None, position: int, end: int, *, moved: Callable[[int], None],
        inside: Callable[[], bool], goes_on: bool,
    ) -> None:  # fmt: skip
        """The bytes ``position`` to ``end`` of segment ``index``.

        ``moved`` is called with the number of bytes sent. ``inside`` says whether the reader is still in the segment. ``goes_on``: the rest
        of the segment is stored too.
        """
        self.position = position
        self.end = end
        self.goes_on = goes_on
        self.copied = 0  # set if no more can be sent now: the maximum number of the next bytes to copy
        self._chunk_reader = chunk_reader
        self._index = index
        self._inside = inside
        self._fetch = fetch
        self._moved = moved

    def __repr__(self) -> str:
        return f"<FileStretch {self.position}-{self.end}>"

    def __len__(self) -> int:
        """How many bytes are left to send."""
        return self.end - self.position

    def send(self, sock: int) -> bool:
        """Send what the socket takes, ``TURN_BYTES`` at most. Returns whether it took all of that. Raises ConnectionError."""
        end, sent = min(self.end, self.position + TURN_BYTES), None
        if self._inside():  # else the reader has rested since, and holds nothing
            sent = self._chunk_reader.send_now(self._index, self.position, end, self._fetch, sock)
        if sent:
            self.position += sent
            self._moved(sent)
        if self.position < end:
            self.copied = MOST_BYTES if sent is None else NUDGE_BYTES
        return not self.copied


class Alone:
    """The bytes of one reader's own body, piece by piece."""

    def __init__(self, pieces: AsyncGenerator[bytes | memoryview], unit_bytes: int, end: int | None) -> None:
        self._pieces = pieces
        self._unit_bytes = unit_bytes
        self._end = end
        self._piece: bytes | memoryview = b""

    @property
    def ready(self) -> bool:
        return len(self._piece) > 0

    def goes_on_at(self, position: int) -> bool:
        """Whether it brings the byte at ``position``, which comes next."""
        return self._end is None or position < self._end

    async def comes(self) -> bool:
        """Wait for the next piece; False at the end. Raises ``ShardError``."""
        self._piece = await anext(self._pieces, b"")
        return self.ready

    def take(self, most: int) -> bytes | memoryview:
        """At most ``most`` of the bytes that have come, and at most one unit."""
        size = min(most, self._unit_bytes)
        taken, self._piece = self._piece[:size], self._piece[size:]
        return taken

    async def aclose(self) -> None:
        await self._pieces.aclose()


class RepeatCheck:
    """One reader's part of comparing segments that come again; ``digest_check`` has the old sums.

    A difference sets the entry's ``fault``.
    """

    def __init__(self, digest_check: DigestCheck, entry: Entry) -> None:
        self._digest_check = digest_check
        self._entry = entry
        self._uncompared: dict[int, Fetch | None] = {}  # None: the segment is not stored, so its sum must be computed here
        self._summed = -1, xxhash.xxh3_64()  # the segment being summed, if read from its start, and its sum so far

    def __repr__(self) -> str:
        return f"<RepeatCheck of {self._entry.name}: segments {sorted(self._uncompared)}>"

    def __bool__(self) -> bool:
        """Whether the reader was given bytes that are not compared yet."""
        return bool(self._uncompared)

    def expect(self, index: int, fetch: Fetch | None, *, stored: bool) -> None:
        """The reader is about to read segment ``index``, which ``fetch`` brings; None: it is ``stored``, or passed through."""
        if not stored and (fetch is None or index not in fetch.stored) and self._entry.trust.was_hashed(index):
            self._uncompared[index] = fetch

    def add(self, index: int, position: int, data: bytes | memoryview) -> None:
        """Add ``data`` of segment ``index`` from ``position``, which is passed through. At the segment's end the sum is compared.

        Only this reader sees all bytes of a segment that is passed through.
        """
        if index not in self._uncompared:
            return
        first, size = self._entry.segments.span(index)
        if position == first:
            self._summed = index, xxhash.xxh3_64()
        of, hasher = self._summed
        if of != index:
            return  # read from its middle on
        hasher.update(data)
        if position + len(data) == first + size:
            del self._uncompared[index]
            self._digest_check.segment_stored(self._entry, index, hasher.intdigest())

    async def finish(self) -> None:
        """Wait until the segments not summed here are stored, and so compared, or until they will not be stored."""
        for index, fetch in self._uncompared.items():
            if fetch is not None:
                await self._digest_check.compared(self._entry, index, fetch)
        self._uncompared.clear()
