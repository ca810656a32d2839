"""A reader's next bytes, out of the file or the memory that holds them: copied into a buffer of its own, or sent from the file.

What lies in the file need not come through a buffer: a ``FileStretch`` is sent from there, turn by turn. What must be true of a chunk once
it has been read must be true of a stretch when it is sent, and nothing comes between the look and the sending. A reader gives stretches
between its chunks. The first bytes of a body are a chunk, because as long as no header is out, what the disk does not give can still come
from elsewhere; so are a few bytes whenever the socket is full, with which the transport waits for room; and so is what is not in memory,
which a thread reads.

Segments that were hashed when they were here before may come again, and be read before they have landed: they are the same bytes, or an
error (``RepeatCheck``).
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

MOST_BYTES = 2**20  # copied in one turn of the loop, while the others wait
# Sent in one turn: half a millisecond. Fewer cost more looks and turns a byte; more, and the first byte of 64 readers comes a third later.
TURN_BYTES = 2 * 2**20
LEAST_BYTES = 64 * 1024  # fewer are copied as fast as looked for
FIRST_BYTES = 64 * 1024
NUDGE_BYTES = 16 * 1024  # as ``body_writer`` leaves with the transport


@dataclass(frozen=True, slots=True)
class ReaderParts:
    """What every reader works with: where bytes are read, the fetches that bring those that are missing, and what it holds meanwhile."""

    segment_reader: SegmentReader
    segment_fetches: SegmentFetches
    digest_check: DigestCheck
    room: SpaceManager
    buffers: BufferBudget
    limiters: Limiters


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

    async def read(self, index: int, position: int, end: int, fetch: Fetch | None) -> memoryview | bytes:
        """Bytes of segment ``index`` from ``position``, before ``end``; ``fetch`` brings them, or None: they are stored.

        Raises ``FellBehind`` where the file lost them meanwhile, the fetch's error, and what ``check`` raises.
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
            raise bare(fetch.error)  # its bytes are being given back: what was read may be holes
        if fetch is not None and fetch.place is not self._entry.stored.file:
            raise FellBehind("the directory was removed, and with it the file that holds these bytes")
        self.check()
        landed = fetch is None or index in fetch.stored
        if segments.departures != departures or (landed and not segments.has(index)):
            raise FellBehind("the segment was found wrong, and left, while it was read")
        self._given.add(index)
        return data

    def send_now(self, index: int, position: int, end: int, fetch: Fetch | None, sock: int) -> int | None:
        """How many bytes of a segment from ``position``, before ``end``, the socket took from the file. ``fetch``: as ``read``.

        None: they are to be read, and that says why. What leaves the file after this look was taken out of use by the loop before, so
        nothing of it is sent. Raises ConnectionError.
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
    """Bytes of one segment which lie in the file, sent turn by turn. Not thread-safe: the event loop's only."""

    __slots__ = ("_chunk_reader", "_fetch", "_index", "_inside", "_moved", "copied", "end", "goes_on", "position")

    def __init__(
        self, chunk_reader: ChunkReader, index: int, fetch: Fetch | None, position: int, end: int, *, moved: Callable[[int], None],
        inside: Callable[[], bool], goes_on: bool,
    ) -> None:  # fmt: skip
        """``position`` to ``end`` of segment ``index``; ``moved`` is told what was sent, ``inside`` says whether the reader is in the
        segment still. ``goes_on``: the rest of the segment is here too.
        """
        self.position = position
        self.end = end
        self.goes_on = goes_on
        self.copied = 0  # set where no more can be sent now: how many of the bytes that come next are to be copied, at most
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
        """Have the socket take what it takes at once, a turn's worth at most; whether all of that was taken. Raises ConnectionError."""
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
        """Of what has come ``most`` bytes, and one unit, at most."""
        size = min(most, self._unit_bytes)
        taken, self._piece = self._piece[:size], self._piece[size:]
        return taken

    async def aclose(self) -> None:
        await self._pieces.aclose()


class RepeatCheck:
    """One reader's part of the comparison; ``digest_check`` knows the sums from before. A difference makes the entry's ``fault``."""

    def __init__(self, digest_check: DigestCheck, entry: Entry) -> None:
        self._digest_check = digest_check
        self._entry = entry
        self._uncompared: dict[int, Fetch | None] = {}  # None: they are not stored, and only a sum made here can be compared
        self._summed = -1, xxhash.xxh3_64()  # the segment of them that is being read, if from its start, and the sum of its bytes so far

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
        """Sum up ``data`` of segment ``index``, which is passed through from ``position`` on; at its end the sum is compared.

        What is passed through nobody else has whole.
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
        """Wait until what was not summed up here has landed, and so been compared; or until it will not land."""
        for index, fetch in self._uncompared.items():
            if fetch is not None:
                await self._digest_check.compared(self._entry, index, fetch)
        self._uncompared.clear()
