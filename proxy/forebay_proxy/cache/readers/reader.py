"""One reader inside one shard: asks for segments a little ahead of its position, and gives their bytes in order.

Each step finds the bytes at the position wherever they are (``SegmentSource`` has the table): stored -> from the file; in the air -> behind
the flight's watermark, from the file or the memory window; missing -> a flight takes off. A reader that falls out of a bypass window, or
whose flight met a failing disk, goes on with a fetch of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Protocol, cast

from forebay_proxy.cache.readers.chunk_reader import (
    ChunkReader,
    RepeatCheck,
    SegmentSource,
    foreseen_outcome,
    source_in_flight,
    source_of_segment,
)
from forebay_proxy.cache.readers.file_stretch import FIRST_BYTES, LEAST_BYTES, MOST_BYTES, FileStretch
from forebay_proxy.cache.readers.reader_lease import ReaderLease, ReaderPlace, ReaderTally
from forebay_proxy.cache.readers.reader_parts import ReaderParts
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import CacheError, DigestDiffers, OriginError, ShardChanged, bare
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.segments import read_ahead_breadth
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["REST_S", "ShardReader", "ShardReaderHost"]

# A reader that has taken no byte for this long holds nothing any more: a trainer stopped in a debugger, or by a checkpoint of half an hour,
# must not keep room from those who train. Nor is the reader cut off: when it goes on, its segments are still here, or fetched anew.
# Shorter would take the window from readers that are only slow: at 1 MiB a minute there is nothing left to protect.
REST_S = 60.0
PRIVATE_ATTEMPTS = 5  # fetches of its own without a byte of progress before a reader gives up


class ReaderWaits(Protocol):
    """Notes when a reader waits."""

    def waiting(self, reading: ShardReader) -> AbstractContextManager[None]: ...


class ShardReaderHost(Protocol):
    """The cache, as a reader sees it."""

    @property
    def parts(self) -> ReaderParts: ...

    @property
    def readers(self) -> ReaderWaits: ...

    def breadth(self, entry: Entry, bypassing: bool) -> int: ...

    async def move(self, reading: ShardReader) -> None:
        """Put a reader that was given nothing yet into the shard as it is fetched once more."""
        ...

    def read_segment(self, entry: Entry, index: int) -> None:
        """A reader has begun a stored segment."""
        ...


class ShardReader:
    """A reader's right to bytes: its position and the window before it are leased until it leaves."""

    def __init__(
        self, host: ShardReaderHost, entry: Entry, shard: Shard, reader: ReaderName | None, *, opened_here: bool, sparse: bool = False
    ) -> None:
        """``opened_here``: the origin was first asked on behalf of this very reader. ``sparse``: as ``ReaderLease`` has it."""
        self._opened_here = opened_here
        self.shard = shard
        self.reader = reader
        self.entry = entry
        self.tally = ReaderTally()
        self.position = 0
        self._host = host
        self._end: int | None = 0
        self._place = ReaderPlace()
        self.chunk_reader = ChunkReader(host.parts, entry)
        self._repeats = RepeatCheck(host.parts.gate, entry)
        self.lease = ReaderLease(host.parts, entry, shard, reader, self, sparse=sparse)

    def __repr__(self) -> str:
        return f"<ShardReader {self.entry.name} at {self.position} of {self._end}, {self.tally.outcome.value}>"

    async def begin(self, first: int, last: int | None) -> RequestOutcome:
        """Ask for ``first`` to ``last`` (inclusive; None: to the end) and wait until the first byte is readable.

        The outcome is as known now; a bypass further on makes it ``BYPASS`` in the end. Raises ``ShardError``.
        """
        self.position = first
        length = self.entry.shown_version.length
        self._end = length if last is None else last + 1 if length is None else min(length, last + 1)
        if length is not None and first >= length:
            return self.tally.outcome
        index = self._index_of(first)
        alone = self._opened_here or self.entry.segments.has(index) or self._host.parts.segment_flights.find(self.entry, index) is None
        self.tally.outcome = foreseen_outcome(self.entry, first, self._end, joins=not alone)
        while True:
            try:
                await self._reach()
                return self.tally.outcome
            except CacheError as error:
                self._go_alone(error)
            except DigestDiffers as error:
                if not error.retryable:
                    raise
                await self._host.move(self)  # it has given nobody a byte yet: the second fetch may do

    def chunks(self) -> AsyncIterator[bytes | memoryview]:
        """The bytes of the range, in order; a chunk is used up when the next is asked for.

        Ends normally only at the range's or the shard's proven end; raises ``ShardError``.
        """
        return cast(AsyncIterator[bytes | memoryview], self.pieces(lambda: False))

    async def pieces(self, stretches: Callable[[], bool]) -> AsyncIterator[bytes | memoryview | FileStretch]:
        """As ``chunks``. While ``stretches``, what lies in the file may come as one, never first; what was not sent of it comes next."""
        copied = FIRST_BYTES if stretches() else MOST_BYTES
        while self._end is None or self.position < self._end:
            try:
                if not await self._reach():
                    break
                data = await self._next(copied)
                stretch = data if isinstance(data, FileStretch) else None
                if not isinstance(data, FileStretch) and self._repeats.add(self._place.segment, self.position, data):
                    self.chunk_reader.check()
                if self._repeats and self._end is not None and self.position + len(data) >= self._end:
                    await self._compared()
            except CacheError as error:
                self._go_alone(error)
                continue
            if stretch is None:
                self._moved(len(data))
            else:
                self._place.handed_at = time.monotonic()
            yield data
            self._place.handed_at = None
            copied = stretch.copied if stretch is not None else 0
            if not copied and not stretches():
                copied = MOST_BYTES
        await self._compared()
        if self.position == self.entry.shown_version.length:  # of a shard whose length was not known only the end itself can be kept back
            await self._pass_seal(self._index_of(max(0, self.position - 1)))

    async def _reach(self) -> bool:
        """Make the byte at the position readable; False at the end of a shard whose length was not known."""
        while True:
            self.chunk_reader.check()
            if self._settled():  # also when the last bytes came from the store, or end where a segment does
                return False
            index = self._index_of(self.position)
            await self._enter(index)
            if await self._comes():
                await self._pass_seal(index)  # last of all: the digest is known no later than the first byte
                return True
            if self._settled():
                return False
            self._place.segment = -1  # the flight has landed: look again where the bytes are

    def _settled(self) -> bool:
        """The shard turned out to end here."""
        length = self.entry.shown_version.length
        if length is not None:
            self._end = length if self._end is None else min(self._end, length)
        return self._end is not None and self.position >= self._end

    async def _comes(self) -> bool:
        """Wait for the byte at the position where it is; False if the flight ended without it."""
        flight = self.lease.flight
        if flight is None:
            return True
        if flight.error is not None:
            raise bare(flight.error)
        if flight.position > self.position:
            return True
        with self._host.readers.waiting(self):
            return await flight.grown_beyond(self.position)

    def _moved(self, count: int) -> None:
        """So many bytes are the client's."""
        self.position += count
        if self._place.source is SegmentSource.STORE:
            self.tally.hit_bytes += count
        self.lease.moved(self.position)
        self._place.private_attempts = 0
        self._place.handed_at = time.monotonic()

    async def _next(self, copied: int) -> bytes | memoryview | FileStretch:
        """Readable bytes at the position, within one segment: at most one unit, and ``copied`` of a file; 0: they may be a stretch."""
        index, flight = self._place.segment, self.lease.flight
        end = self.chunk_reader.end_of(index, self._end)
        self._repeats.expect(index, flight)
        if not copied and not self._repeats:  # what is to be compared, we must see
            last = end if flight is None else min(end, flight.on_disk.end)
            if last - self.position >= LEAST_BYTES:
                return FileStretch(self.chunk_reader, self._place, flight, self.position, last, self._moved, goes_on=flight is None)
        if flight is None or flight.in_file(self.position):
            return await self.chunk_reader.from_file(index, self.position, min(end, self.position + (copied or MOST_BYTES)), flight)
        if flight.bypass:
            self.tally.passes_by(flight)
        return self.chunk_reader.from_window(flight, self.position, end)

    async def _pass_seal(self, index: int) -> None:
        """The last segment is nobody's before the whole shard has the digest its origin names."""
        if self.entry.trust.digest_state is not None and self._host.parts.gate.must_wait(self.entry, index):
            with self._host.readers.waiting(self):
                await self._host.parts.gate.passed(self.entry, index)
        self.chunk_reader.check()

    async def _compared(self) -> None:
        """Keep the last bytes until what was read from memory, of segments that had been here before, proves to be the same."""
        if self._repeats:
            with self._host.readers.waiting(self):
                await self._repeats.finish()
            self.chunk_reader.check()

    # Where the bytes come from

    async def _enter(self, index: int) -> None:
        """Be in segment ``index``: know where its bytes come from, ask for the ones after it, give back the ones before."""
        if index == self._place.segment:
            return
        if source_in_flight(self.entry, self.position, self.lease.flight) is not SegmentSource.SAME_FLIGHT:
            self.lease.leave_flight()
            self.lease.arrive(index)  # segments behind the reader may leave for the one it needs now
            source = source_in_flight(self.entry, self.position, None)
            if source is None:
                if self.entry.segments.has(index) and not await self._host.parts.segment_reader.trusted(self.entry, index):
                    self.tally.outcome = RequestOutcome.PARTIAL if self.tally.outcome is RequestOutcome.HIT else self.tally.outcome
                source = source_of_segment(self.entry, index)
            self._turn_to(source, index)
        self.lease.arrive(index)
        self._place.arrive(index)
        self._ask_ahead(index)

    def _turn_to(self, source: SegmentSource, index: int) -> None:
        """Take what follows from ``source``."""
        self._place.source = source
        if source is SegmentSource.STORE:
            self._host.read_segment(self.entry, index)
            return
        if source is SegmentSource.PRIVATE:
            flight = self._host.parts.segment_flights.launch_alone(self.entry, self.position, self.shard)
        elif source is SegmentSource.ONE_BODY:
            assert self.entry.in_use.stream is not None
            flight = self.entry.in_use.stream
        else:
            flight = self.lease.coming(index, self.position, self._end, opened_here=self._opened_here)
        self.lease.board(flight, self.position)
        if flight.bypass:
            self.tally.passes_by(flight)

    def _go_alone(self, error: CacheError) -> None:
        """The shared flight cannot serve this reader any further: fetch the rest of the segment for it alone."""
        self._place.private_attempts += 1
        if self._place.private_attempts > PRIVATE_ATTEMPTS:
            raise OriginError(self.entry.name, f"no byte beyond {self.position} arrived in {PRIVATE_ATTEMPTS} attempts") from error
        self.lease.leave_flight()
        self._turn_to(SegmentSource.PRIVATE, self._index_of(self.position))
        self.tally.outcome = RequestOutcome.BYPASS

    def _ask_ahead(self, index: int) -> None:
        if not self.entry.ranged or self._end is None:
            return
        flight = self.lease.flight
        breadth = read_ahead_breadth(
            self.entry.segments, self._place.segments_read, lambda: self._host.breadth(self.entry, flight is not None and flight.bypass)
        )
        self.lease.ask_ahead(index, min(self._index_of(self._end - 1), index + breadth - 1))

    def _index_of(self, position: int) -> int:
        return self.entry.segments.layout.index_of(position)

    # What others ask of it, or tell it

    @property
    def entered(self) -> tuple[int, int] | None:
        """The first and the last segment that this reader has been in; None before its first segment."""
        if self._place.began_at is None:
            return None
        return self._place.began_at, max(self._place.began_at, self._place.segment, self._index_of(max(0, self.position - 1)))

    def has_all(self) -> None:
        """A descriptor of the whole shard is this reader's: all of it counts as read, from the store, at once."""
        length, last = self.entry.shown_version.length or 0, self.entry.last_index or 0
        self._place.began_at, self._place.segment = 0, last
        self.position = self._end = self.tally.hit_bytes = length

    def ask_again(self) -> None:
        """Ask for the next segment of this shard once more, as there may be room now: the reader needs it before any other shard."""
        last = -1 if self._end is None else self._index_of(self._end - 1)
        if self._place.segment >= 0 and self.lease.asked_to <= self._place.segment < last:
            self._ask_ahead(self._place.segment)

    def rests(self, now: float) -> bool:
        """Whether the client has taken nothing for ``REST_S`` (``now`` is monotonic); then all it holds goes back until it goes on."""
        if self._place.handed_at is None or now - self._place.handed_at < REST_S:
            return False
        self.lease.give_up()
        self._place.segment = -1  # the next step looks again where the bytes are
        return True

    def moved_to(self, entry: Entry, *, opened_here: bool) -> None:
        """Begin again in another version of the entry; raises ``ShardChanged`` where that is not what was asked for."""
        if entry.version.identity != self.entry.version.identity or entry.version.length != self.entry.version.length:
            raise ShardChanged(entry.name, "the origin has another version now")
        self.lease.give_up()
        self.lease = ReaderLease(self._host.parts, entry, self.shard, self.reader, self, sparse=self.lease.sparse)
        self.entry, self._opened_here = entry, opened_here
        self.chunk_reader, self._repeats = ChunkReader(self._host.parts, entry), RepeatCheck(self._host.parts.gate, entry)
        self._place.segment = -1
