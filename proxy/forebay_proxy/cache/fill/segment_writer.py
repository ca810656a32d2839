"""Where a flight's bytes go: segment by segment onto the disk, or through a memory window when no room can be granted.

Room is asked for before the bytes are (``ready``). What arrives is readable at once, from memory, and is written a unit at a time, while
the next unit comes; a segment is stored only when all of it is on the disk with its checksum. One write at a time: a body that waited for
each came a third slower from an origin that is near, since a hop to a thread and back costs as much as the bytes do (measured on loopback).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
from forebay_proxy.transfer.flights import Abandoned, Flight
from forebay_proxy.transfer.limiter import DEMAND
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


class SegmentWriter:
    """Takes one flight's bytes in order. Ends with ``finish_writing``, then ``close``, which gives back what did not become a segment."""

    def __init__(self, fill: WriterFill, buffers: BufferBudget, entry: Entry, flight: Flight, grant: Grant[Slice] | None = None) -> None:
        self._fill = fill
        self._buffers = buffers
        self._entry = entry
        self._flight = flight
        self._grant = grant
        self._file: ShardFile | None = None
        self._hasher = xxhash.xxh3_64()
        self._index = -1
        self._segment_end = flight.first
        self._pieces: list[bytes | memoryview] = []  # arrived, not yet handed to the disk
        self._pending_bytes = 0  # of them
        self._write: asyncio.Future[None] | None = None  # of what was handed to it last, if nobody has waited for that yet
        self._write_bytes = 0
        self._holds_window = False
        looks = flight.first == 0 and entry.trust.no_tar is None and is_named_tar(entry.name) and not entry.version.encoding
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
        if self._file is None and not self.bypassing and not self.complete:
            await self._open(self._entry.segments.layout.index_of(self.received))

    async def _open(self, index: int) -> None:
        grant, self._grant = self._grant, None
        if grant is None:
            grant = self._fill.grants.along(self._entry, index, self._flight)
        file = None if grant is None else await self._fill.prepare(self._entry, index, grant)
        if file is None:
            if self._flight.need >= DEMAND and not self._flight.aboard_count:
                raise Abandoned("no place on the disk for what nobody waits for")
            self.bypassing = self._flight.bypass = True
            self._fill.passes_by(self._entry)
            return
        self._grant, self._file, self._index = grant, file, index
        self._flight.file = file
        first, size = self._entry.segments.span(index)
        self._segment_end = first + size
        self._hasher.reset()

    async def put(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes; waits for the disk, or (bypassing) for the fastest reader."""
        if self._beginning is not None:
            self._look(self._beginning + bytes(chunk[: LOOK_BYTES - len(self._beginning)]), self._flight.end)
        while chunk:
            await self.ready()
            if self.bypassing:
                await self._pass_by(chunk)
                return
            part, chunk = _split(chunk, self._segment_end - self.received)
            self._pieces.append(part)
            self._pending_bytes += len(part)
            self._flight.arrived(part)
            if self._flight.position >= self._segment_end:
                await self.flush()
            elif self._pending_bytes >= self._buffers.fetches.unit_bytes:
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
            self._flight.keep(_held(share, window))
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
        if self._file is not None and self._flight.stored_end >= self._segment_end:
            self._land()

    async def _begin_write(self) -> None:
        """Hand what is pending to the disk, which has taken all that came before."""
        await self._written()
        if not self._pieces:
            return
        assert self._file is not None
        pieces, self._pieces = self._pieces, []
        self._write_bytes, self._pending_bytes = self._pending_bytes, 0
        self._write = asyncio.ensure_future(self._file.write_pieces(self._flight.stored_end, pieces, self._hasher))

    async def _written(self) -> None:
        """Wait for the write that goes on."""
        write, self._write = self._write, None
        if write is None:
            return
        await write  # a cancellation is the write's too, and it ends before we do
        if self._entry.stored.file is not self._file:
            raise DiskFailed("write", "ENOENT", f"the file of shard {self._entry.name} was given up meanwhile")
        self._flight.written(self._flight.stored_end + self._write_bytes)

    def _land(self) -> None:
        assert self._grant is not None
        grant, self._grant, self._file = self._grant, None, None
        self._flight.stored.add(self._index)
        self._fill.segment_stored(self._entry, self._index, self._hasher.intdigest(), grant, self._flight)

    async def finish(self, length: int) -> None:
        """The body ended properly at ``length``, which was not known before."""
        if self._beginning is not None:
            self._look(self._beginning, length)
        self._entry.set_length(length)
        self._flight.end = length
        await self._written()
        if self._file is not None and self._grant is not None:
            self._fill.cutting(self._grant)
            await self._file.set_length(length)
            self._fill.fit(self._entry, self._grant, self._entry.segments.bytes_of(self._index))
            if self.received <= self._entry.segments.span(self._index)[0]:
                self._give_back()  # the body ended where this segment would have begun
        self._segment_end = min(self._segment_end, length)
        await self.flush()
        self._fill.length_known(self._entry)

    async def finish_writing(self) -> None:
        """Wait for the write that is still under way when its flight ends. Its result does not matter any more."""
        write, self._write = self._write, None
        if write is not None:
            with suppress(DiskFailed):
                await to_its_end(write)

    def close(self) -> None:
        """Give back what did not become a segment. What was already written of it is below the watermark of a flight that failed."""
        self._pieces.clear()
        self._give_back()

    def _give_back(self) -> None:
        grant, self._grant = self._grant, None
        opened, self._file = self._file is not None, None
        if grant is not None:
            self._fill.give_back(self._entry, self._index if opened else None, grant)


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
