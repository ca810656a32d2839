"""The bytes of an archive under a window that only moves forward, over one buffer that is used again.

Positions are the archive's own. ``buffer`` holds its bytes from ``base`` to ``end``, and slicing it gives ``bytes``: it is an anonymous map
(a ``bytearray`` would give ``bytearray``s, fresh ``bytes`` for each chunk would cost a second copy).
"""

from __future__ import annotations

import mmap
from typing import Any, Callable, Optional

__all__ = ["Flowing", "WindowedReader", "window_over"]

CHUNK_BYTES = 256 * 1024  # what a ShardStream receives at a time
BUFFER_BYTES = 512 * 1024  # two chunks: stays in the processor's cache; grows only for a member that is larger

Into = Callable[[memoryview], Optional[int]]
Lone = Callable[[int, int], Optional[bytes]]


class Flowing:
    """An archive that comes piece by piece from byte ``at`` on: ``into(room)`` fills some of ``room``, says how many bytes; 0 at the end.

    ``skip(to)`` goes forward without reading where that can be, and says where the next piece begins. ``lone(at, size)`` gives bytes past
    the buffer where that can be, else None.
    """

    def __init__(self, into: Into, at: int = 0, skip: Optional[Callable[[int], int]] = None, lone: Optional[Lone] = None) -> None:
        self._into = into
        self._skip = skip
        self.lone = lone
        self.buffer = _anonymous(BUFFER_BYTES)
        self.base = at
        self.end = at

    def more(self, keep: int, need: int) -> bool:
        """Forget what lies before ``keep``, read on until ``need`` bytes from there are here. False: nothing more came, it ended."""
        self._forget(keep)
        came = False
        while self.end - keep < need or not came:
            if self.end - self.base == len(self.buffer):
                self._grow()
            with memoryview(self.buffer) as whole, whole[self.end - self.base :] as room:
                got = self._into(room[: max(keep - self.end, 0)] if self.end < keep else room)
            if not got:
                break
            came = True
            self.end += got
            if self.end <= keep:
                self.base = self.end
        return came

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at``, fewer only at the end. What lies before ``at`` is forgotten where more had to come."""
        if at + size > self.end:
            self.more(at, size)
        return self.buffer[at - self.base : min(at + size, self.end) - self.base] if at < self.end else b""

    def _forget(self, keep: int) -> None:
        if keep < self.end:
            self.buffer.move(0, keep - self.base, self.end - keep)
            self.base = keep
        else:
            if keep > self.end and self._skip is not None:
                self.end = self._skip(keep)
            self.base = self.end

    def _grow(self) -> None:
        """Twice the room; as bytes come, never because a header claims a size."""
        larger = _anonymous(2 * len(self.buffer))
        larger[: len(self.buffer)] = self.buffer[:]
        self.buffer = larger


class WindowedReader:
    """A ``read(size)`` as an ``into``; it may give more than it was asked for."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._rest = memoryview(b"")

    def __call__(self, room: memoryview) -> int:
        if not self._rest:
            self._rest = memoryview(self._read(CHUNK_BYTES))
        got = min(len(room), len(self._rest))
        room[:got] = self._rest[:got]
        self._rest = self._rest[got:]
        return got


def window_over(stream: Any) -> Flowing:
    """A window over what an opener gave: anything with ``read``."""
    return Flowing(getattr(stream, "readinto1", None) or WindowedReader(stream.read), 0, getattr(stream, "skip", None))


def _anonymous(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
