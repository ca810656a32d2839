"""Bytes of bodies in memory: the buffers that readers are served from, and the segments that cannot be stored.

A segment for which no room on the disk is granted (a bypass) lands in a *memory segment* instead. There are eight, 64 MiB in all with the
usual segments. Whoever finds all of them taken has a body of its own: to wait for one would be to wait for other readers, and for other
origins. Readers have their buffers from a share of their own: were both one pool, a hundred
stopped readers would hold it all and every fetch would stop with them. Within the share there is no queue: the unit shrinks instead, from
1 MiB (what one system call moves well) down to 16 KiB.

A memory segment is memory of this process and no file (memfd): it is used again for other bytes, and pages of a file that were handed to a
socket belong to that socket until its client has read them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from forebay_proxy.core.errors import CacheFull

__all__ = ["MEMORY_SEGMENTS", "BufferBudget", "MemorySegment", "MemorySegments", "Share"]

MEMORY_SEGMENTS = 8
# Of them, from the start on: to touch new memory costs more than to receive into it, and two readers in turns need no third. Taken with the
# first bypass, a sidecar within a memory limit would meet that limit hours after its start.
KEPT_SEGMENTS = 2
READERS_BYTES = 32 * 2**20
MAX_UNIT_BYTES = 2**20
MIN_UNIT_BYTES = 16 * 2**10  # below which the calls cost more than the bytes; 2,000 stopped readers fit


class MemorySegment:
    """Bytes of one segment of a shard, from ``first`` on."""

    def __init__(self, buffer: mmap.mmap, first: int) -> None:
        self._first = first
        self._buffer = buffer

    def __repr__(self) -> str:
        return f"<MemorySegment from {self._first}>"

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Put ``data`` at ``offset`` of the shard."""
        at = offset - self._first
        memoryview(self._buffer)[at : at + len(data)] = data

    def read(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with what begins at ``offset`` of the shard: a copy, as a reader that is stuck may keep it for longer."""
        at = offset - self._first
        buffer[:] = memoryview(self._buffer)[at : at + len(buffer)]


class MemorySegments:
    """The memory of all bypasses. Not thread-safe: the event loop's only."""

    def __init__(self, segment_bytes: int, count: int = MEMORY_SEGMENTS) -> None:
        self._segment_bytes = segment_bytes
        self._unused = [_memory(segment_bytes, mmap.MAP_POPULATE) for _ in range(KEPT_SEGMENTS)]
        self._count = count
        self.taken = 0

    def __repr__(self) -> str:
        return f"<MemorySegments, {self.taken} taken>"

    def take(self, first: int, until: ExitStack) -> MemorySegment:
        """Memory for the segment that begins at ``first``, until ``until`` is closed. Raises ``CacheFull`` where all is taken."""
        if self.taken >= self._count:
            raise CacheFull(f"{self.taken} segments that could not be stored are in memory, which is all that may be")
        buffer = self._unused.pop() if self._unused else _memory(self._segment_bytes)
        self.taken += 1
        until.callback(self._give_back, buffer)
        return MemorySegment(buffer, first)

    def _give_back(self, buffer: mmap.mmap) -> None:
        self.taken -= 1
        if len(self._unused) < KEPT_SEGMENTS:
            self._unused.append(buffer)


def _memory(size_bytes: int, flags: int = 0) -> mmap.mmap:
    """Memory that goes back to the system as soon as nobody holds it; malloc would keep some of it."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)


class Share:
    """Memory that its holders part evenly. Not thread-safe: the event loop's only."""

    def __init__(self, total_bytes: int = READERS_BYTES, smallest_bytes: int = MIN_UNIT_BYTES, largest_bytes: int = MAX_UNIT_BYTES) -> None:
        self._total = total_bytes
        self._smallest = smallest_bytes
        self._largest = largest_bytes
        self.holders = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """One more holder for the length of the ``with``."""
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1

    @property
    def unit_bytes(self) -> int:
        """What each holder may use now: an even part."""
        return max(self._smallest, min(self._largest, self._total // max(1, self.holders)))


class BufferBudget:
    """What this process holds of bodies: what comes of them, buffers of readers, and memory segments."""

    def __init__(self, segment_bytes: int) -> None:
        self.readers = Share()
        # What of each body waits in this process to be written.
        self.bodies = Share(READERS_BYTES // 2, smallest_bytes=128 * 2**10, largest_bytes=2 * MAX_UNIT_BYTES)
        self.memory = MemorySegments(segment_bytes)
