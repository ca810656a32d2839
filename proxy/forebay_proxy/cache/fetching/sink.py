"""Writes a fetch's bytes: segment by segment into the shard's file, or into memory if there is no room.

Room is made before the bytes are requested (``ready``). Bytes are written as they arrive, and can be read then. A segment counts as stored
only when all of it is on the disk, with its checksum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from forebay_proxy.cache.fetching.segment_storage import SegmentStorage
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import Slice
from forebay_proxy.core.errors import CacheFull, DiskFailed
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.transfer.buffers import MemorySegment, MemorySegments
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.transfer.limiter import WAITED
from forebay_proxy.wire.tar.first_bytes import LOOK_BYTES, is_named_tar, why_no_tar

__all__ = ["Sink"]


@dataclass(slots=True)
class OpenSegment:
    """The segment that is being written: its grant and its place in the file."""

    index: int
    first: int
    end: int
    grant: Grant[Slice]
    file: ShardFile
    hasher: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)


class Sink:
    """Takes one fetch's bytes in order; ``close`` gives back unused room. Not thread-safe: used on the event loop alone."""

    def __init__(self, storage: SegmentStorage, memory: MemorySegments, entry: Entry, fetch: Fetch, grant: Grant[Slice] | None) -> None:
        """``grant``: room for all of the fetch; None: it goes into memory."""
        self._storage = storage
        self._memory_segments = memory
        self._entry = entry
        self._fetch = fetch
        self._grant = grant  # until its victims are removed
        self._grants: list[Grant[Slice]] = []  # then one for each segment still to come, in order
        self._segment: OpenSegment | None = None
        self._memory: MemorySegment | None = None
        self._hasher = xxhash.xxh3_64()  # of the bytes in memory
        looks = fetch.first == 0 and entry.trust.no_tar is None and is_named_tar(entry.name) and not entry.version.encoding
        self._beginning: bytes | None = b"" if looks else None  # the first bytes, which show whether it is a tar; None: not needed
        fetch.bypass = grant is None

    def __repr__(self) -> str:
        return f"<Sink of {self._fetch!r}{', in memory' if self._fetch.bypass else ''}>"

    async def ready(self) -> None:
        """Have a place for the next byte before it is requested. Raises ``CacheFull``, ``DiskFailed``."""
        if self._segment is None and self._memory is None and self._fetch.position < self._fetch.end:
            await self._open(self._entry.segments.layout.index_of(self._fetch.position))

    async def _open(self, index: int) -> None:
        fetch, (first, size) = self._fetch, self._entry.segments.span(index)
        if not fetch.bypass:
            grant = await self._room(is_part=fetch.end > first + size)
            file = await self._storage.prepare(self._entry, index, grant)  # without a file it has given the grant back
            if file is not None:
                self._segment = OpenSegment(index, first, first + size, grant, file)
                fetch.place = file
                return
            if (fetch.need >= WAITED and not fetch.subscribers) or fetch.end > first + size:
                raise CacheFull("no place on the disk, and nobody waits for it, or it is part of a body that is kept whole or not at all")
            fetch.bypass = True
        self._storage.digest_check.hash_ready(self._entry)  # bytes that are not stored may make the digest impossible to compare
        fetch.place = self._memory = self._memory_segments.take(first, fetch.kept)

    async def _room(self, *, is_part: bool) -> Grant[Slice]:
        """The grant of the next segment; ``is_part``: the fetch has more segments."""
        grant, self._grant = self._grant, None
        if grant is not None:
            self._grants = await self._storage.parted(self._entry, grant) if is_part else [grant]
        return self._grants.pop(0)

    async def put(self, piece: bytes | memoryview) -> None:
        """Take the next bytes; waits for the disk. Raises ``CacheFull``, ``DiskFailed``."""
        if self._beginning is not None:
            self._look(self._beginning + bytes(piece[: LOOK_BYTES - len(self._beginning)]))
        while piece:
            await self.ready()
            piece = await self._write(piece)

    async def _write(self, piece: bytes | memoryview) -> bytes | memoryview:
        """Write the bytes that belong to the open segment; returns the rest."""
        fetch, segment, at = self._fetch, self._segment, self._fetch.position
        if segment is None:
            assert self._memory is not None, "ready() opened no place"
            self._memory.write(at, piece)
            self._hasher.update(piece)
            if at + len(piece) == fetch.end:
                index = self._entry.segments.layout.index_of(fetch.first)
                self._storage.segment_passed(self._entry, index, self._hasher.intdigest(), fetch)
            fetch.advanced(at + len(piece))
            return b""
        here, rest = (piece, b"") if len(piece) <= segment.end - at else (piece[: segment.end - at], piece[segment.end - at :])
        await segment.file.append(at, here, segment.hasher, probe=at == segment.first)
        if self._entry.stored.file is not segment.file:
            raise DiskFailed("write", "ENOENT", f"the file of shard {self._entry.name} was given up meanwhile")
        if at + len(here) == segment.end:  # before its readers go on: a segment that is read to its end is stored
            self._segment = None
            fetch.stored.add(segment.index)
            self._storage.segment_stored(self._entry, segment.index, segment.hasher.intdigest(), segment.grant, fetch)
        fetch.advanced(at + len(here))
        return rest

    def _look(self, beginning: bytes) -> None:
        """Check the first bytes before a reader gets the last of them: a reader of a short page may be gone afterwards."""
        self._beginning = beginning
        if len(beginning) == LOOK_BYTES or len(beginning) >= self._fetch.end:
            self._entry.trust.no_tar, self._beginning = why_no_tar(beginning), None

    def close(self) -> None:
        """Give back the room of incomplete segments. No reader reads their bytes any more: their fetch has failed."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self._storage.give_back(self._entry, segment.index, segment.grant)
        for grant in (*self._grants, *([] if self._grant is None else [self._grant])):
            self._storage.give_back(self._entry, None, grant)
