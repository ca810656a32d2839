"""Where a flight's bytes go: segment by segment onto the disk, or through a memory window when no room can be granted.

Room is asked for before the bytes are (``ready``). What arrives is readable at once, from memory, and is written a unit at a time, while
the next unit comes; a segment is stored only when all of it is on the disk with its checksum. One write at a time: a body that waited for
each came a third slower from an origin that is near, since a hop to a thread and back costs as much as the bytes do (measured on loopback).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

import xxhash

from forebay_proxy.cache.fill.segment_grants import SegmentGrants
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import Slice
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.tasks import to_its_end
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.transfer.buffers import BufferBudget, MemoryWindow, Share
from forebay_proxy.transfer.flights import Flight
from forebay_proxy.transfer.limiter import DEMAND
from forebay_proxy.transfer.passengers import Abandoned
from forebay_proxy.wire.tar.first_bytes import LOOK_BYTES, is_named_tar, why_no_tar

__all__ = ["SegmentWriter", "WriterFill"]


class WriterFill(Protocol):
    """What a segment writer needs of the cache."""

    @property
    def grants(self) -> SegmentGrants: ...

    async def prepare(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile | None:
        """Empty what the grant's victims hold and allocate the segment; None (grant given back): bypass."""
        ...

    def segment_stored(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice], flight: Flight) -> None: ...

    def digests_offered(self, entry: Entry, offered: tuple[Digest, ...]) -> None:
        """An answer carried digests of the whole shard."""
        ...

    def passes_by(self, entry: Entry) -> None:
        """Bytes of the shard go through memory from now on, and nowhere else."""
        ...

    def cutting(self, grant: Grant[Slice]) -> None:
        """The segment turns out smaller than its grant, and its file is about to be cut to that."""
        ...

    def fit(self, entry: Entry, grant: Grant[Slice], size: int) -> None:
        """It is cut."""
        ...

    def length_known(self, entry: Entry) -> None:
        """The shard's length became known, and all of it has landed."""
        ...

    def give_back(self, entry: Entry | None, index: int | None, grant: Grant[Slice]) -> None:
        """A grant that did not become a segment; ``index`` None: nothing of it was ever allocated."""
        ...


@dataclass(slots=True)
class OpenSegment:
    """The segment that is being written: its room, and its place in the file."""

    index: int
    end: int
    grant: Grant[Slice]
    file: ShardFile
    hasher: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)


class PendingWrite:
    """What has arrived and is not on the disk: the pieces of the next write, and the write that goes on, one at a time."""

    def __init__(self) -> None:
        self.bytes = 0  # of the pieces
        self._pieces: list[bytes | memoryview] = []
        self._write: asyncio.Future[None] | None = None  # nobody has waited for it yet
        self._write_bytes = 0

    def add(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece)
        self.bytes += len(piece)

    def begin(self, segment: OpenSegment, position: int) -> None:
        """Hand the pieces to the disk; the write before has ended."""
        pieces, self._pieces = self._pieces, []
        self._write_bytes, self.bytes = self.bytes, 0
        self._write = asyncio.ensure_future(segment.file.write_pieces(position, pieces, segment.hasher))

    async def done(self) -> int:
        """Wait for the write that goes on; returns its bytes, 0 where there is none. Raises what it raises, once."""
        write, self._write = self._write, None
        if write is None:
            return 0
        await write  # a cancellation is the write's too, and it ends before we do
        return self._write_bytes

    async def given_up(self) -> None:
        """Wait for the write that goes on, whatever comes of it."""
        write, self._write = self._write, None
        if write is not None:
            with suppress(DiskFailed):
                await to_its_end(write)

    def clear(self) -> None:
        self._pieces.clear()
        self.bytes = 0


class SegmentWriter:
    """Takes one flight's bytes in order. Ends with ``finish_writing``, then ``close``, which gives back what did not become a segment."""

    def __init__(self, fill: WriterFill, buffers: BufferBudget, entry: Entry, flight: Flight, grant: Grant[Slice] | None = None) -> None:
        self._fill = fill
        self._buffers = buffers
        self._entry = entry
        self._flight = flight
        self._granted = grant  # for the first segment, until that is opened
        self._segment: OpenSegment | None = None
        self._pending = PendingWrite()
        self._holds_window = False
        looks = flight.first == 0 and entry.trust.no_tar is None and is_named_tar(entry.name) and not entry.version.encoding
        looks = looks and not flight.takeoff.relay  # its end says nothing of the shard's
        self._beginning: bytes | None = b"" if looks else None  # what came of the bytes that tell a tar; None: nobody wants to know
        self.bypassing = False

    @property
    def received(self) -> int:
        """The offset of the next byte that this writer takes."""
        return self._flight.position

    @property
    def complete(self) -> bool:
        return self._flight.end is not None and self.received >= self._flight.end

    def digests_offered(self, offered: tuple[Digest, ...]) -> None:
        """The answer whose bytes come now names these digests of the whole shard."""
        self._fill.digests_offered(self._entry, offered)

    async def ready(self) -> None:
        """Have a place for the next byte before it is asked for."""
        if self._segment is None and not self.bypassing and not self.complete:
            await self._open(self._entry.segments.layout.index_of(self.received))

    async def _open(self, index: int) -> None:
        grant, self._granted = self._granted, None
        if grant is None:
            grant = self._fill.grants.along(self._entry, index, self._flight)
        file = None if grant is None else await self._fill.prepare(self._entry, index, grant)
        if grant is None or file is None:
            if self._flight.need >= DEMAND and not self._flight.passengers:
                raise Abandoned("no place on the disk for what nobody waits for")
            self.bypassing = self._flight.bypass = True
            self._fill.passes_by(self._entry)
            return
        first, size = self._entry.segments.span(index)
        self._segment = OpenSegment(index, first + size, grant, file)
        self._flight.on_disk.file = file

    async def put(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes; waits for the disk, or (bypassing) for the fastest reader."""
        if self._beginning is not None:
            self._look(self._beginning + bytes(chunk[: LOOK_BYTES - len(self._beginning)]), self._flight.end)
        while chunk:
            await self.ready()
            if self.bypassing:
                await self._pass_by(chunk)
                return
            segment = self._segment
            assert segment is not None, "bytes beyond the flight's end"
            part, chunk = _split(chunk, segment.end - self.received)
            self._pending.add(part)
            self._flight.arrived(part)
            if self._flight.position >= segment.end:
                await self.flush()
            elif self._pending.bytes >= self._buffers.fetches.unit_bytes:
                await self._begin_write()

    def _look(self, beginning: bytes, end: int | None) -> None:
        """Judge the first bytes before a reader is given the last of them: a reader of a short page may be gone at its end."""
        self._beginning = beginning
        if len(beginning) == LOOK_BYTES or (end is not None and len(beginning) >= end):
            self._entry.trust.no_tar, self._beginning = why_no_tar(beginning), None

    async def _pass_by(self, chunk: bytes | memoryview) -> None:
        share = self._buffers.windows
        window = self._flight.window
        if not self._holds_window:
            self._flight.passengers.keep(_held(share, window))
            self._holds_window = True
        while chunk:
            part, chunk = _split(chunk, share.piece_bytes)
            before = len(window)
            try:
                await self._flight.pass_by(part, lambda: share.allowance(len(window)))
            finally:
                share.held_bytes += len(window) - before

    async def flush(self) -> None:
        """Write what is pending, and land the segment if it is whole."""
        await self._begin_write()
        await self._written()
        if self._segment is not None and self._flight.on_disk.end >= self._segment.end:
            self._land(self._segment)

    async def _begin_write(self) -> None:
        """Hand what is pending to the disk, which has taken all that came before."""
        await self._written()
        if self._pending.bytes:
            assert self._segment is not None
            self._pending.begin(self._segment, self._flight.on_disk.end)

    async def _written(self) -> None:
        """Wait for the write that goes on."""
        count = await self._pending.done()
        if not count:
            return
        if self._segment is None or self._entry.stored.file is not self._segment.file:
            raise DiskFailed("write", "ENOENT", f"the file of shard {self._entry.name} was given up meanwhile")
        self._flight.written(self._flight.on_disk.end + count)

    def _land(self, segment: OpenSegment) -> None:
        self._segment = None
        self._flight.on_disk.segments.add(segment.index)
        self._fill.segment_stored(self._entry, segment.index, segment.hasher.intdigest(), segment.grant, self._flight)

    async def finish(self, length: int) -> None:
        """The body ended properly at ``length``, which was not known before."""
        if self._beginning is not None:
            self._look(self._beginning, length)
        self._entry.set_length(length)
        self._flight.end = length
        await self._written()
        if (segment := self._segment) is not None:
            self._fill.cutting(segment.grant)
            await segment.file.set_length(length)
            self._fill.fit(self._entry, segment.grant, self._entry.segments.bytes_of(segment.index))
            segment.end = min(segment.end, length)
            if self.received <= self._entry.segments.span(segment.index)[0]:
                self._give_back()  # the body ended where this segment would have begun
        await self.flush()
        self._fill.length_known(self._entry)

    async def finish_writing(self) -> None:
        """Wait for the write that is still under way when its flight ends. Its result does not matter any more."""
        await self._pending.given_up()

    def close(self) -> None:
        """Give back the room of bytes that became no segment. Those written already lie below the watermark of a flight that failed."""
        self._pending.clear()
        self._give_back()

    def _give_back(self) -> None:
        granted, self._granted = self._granted, None
        segment, self._segment = self._segment, None
        if segment is not None:
            self._fill.give_back(self._entry, segment.index, segment.grant)
        elif granted is not None:
            self._fill.give_back(self._entry, None, granted)


@contextmanager
def _held(share: Share, window: MemoryWindow) -> Iterator[None]:
    """A window's place in the budget, and what it holds of it."""
    share.held_bytes += len(window)
    with share.held():
        try:
            yield
        finally:
            share.held_bytes -= len(window)


def _split(chunk: bytes | memoryview, size: int) -> tuple[bytes | memoryview, bytes | memoryview]:
    if len(chunk) <= size:
        return chunk, b""
    view = memoryview(chunk)
    return view[:size], view[size:]
