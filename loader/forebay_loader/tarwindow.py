"""The bytes of an archive under a window that only moves forward: over a map where there is one, else over one buffer that is used again.

Positions are the archive's own. ``buffer`` holds its bytes from ``base`` to ``end``, and slicing it gives ``bytes``: it is a map of the
file, or an anonymous one (a ``bytearray`` would give ``bytearray``s, fresh ``bytes`` for each chunk would cost a second copy).
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, Callable, Optional, Union

__all__ = ["Flowing", "Reading", "Whole", "Window", "window_over"]

CHUNK_BYTES = 256 * 1024  # what a ShardStream receives at a time
BUFFER_BYTES = 512 * 1024  # two chunks: stays in the processor's cache; grows only for a member that is larger
STEP_BYTES = 4 << 20  # of a map made present at a time: a quarter of the cost of one fault for each 64 KiB, and soon used
_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14

Into = Callable[[memoryview], Optional[int]]


class Whole:
    """A mapped archive, or one in memory. ``end`` is how far it was made present; ``read`` reaches all of it."""

    base = 0
    mapped = True

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.end = 0 if isinstance(buffer, mmap.mmap) else len(buffer)

    def more(self, keep: int, need: int) -> bool:
        """Make the next part present. False: there is none."""
        if self.end >= len(self.buffer):
            return False
        end = min(max(self.end + STEP_BYTES, keep + need), len(self.buffer))
        start = self.end - self.end % mmap.PAGESIZE
        with contextlib.suppress(OSError, ValueError):  # older kernels: the pages come one by one
            self.buffer.madvise(_POPULATE_READ, start, min(end - start, 2 * STEP_BYTES))
        self.end = end
        return True

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at``, fewer only at the end."""
        part: bytes = self.buffer[at : at + size]
        return part


class Flowing:
    """An archive that comes piece by piece: ``into(room)`` fills some of ``room`` and says how many bytes; 0 at the end."""

    mapped = False

    def __init__(self, into: Into) -> None:
        self._into = into
        self.buffer = _anonymous(BUFFER_BYTES)
        self.base = 0
        self.end = 0

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
            self.base = self.end

    def _grow(self) -> None:
        """Twice the room; as bytes come, never because a header claims a size."""
        larger = _anonymous(2 * len(self.buffer))
        larger[: len(self.buffer)] = self.buffer[:]
        self.buffer = larger


class Reading:
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


Window = Union[Whole, Flowing]


def window_over(stream: Any) -> Window:
    """A window over what an opener gave: something mapped (it has a ``view``), else anything with ``read``."""
    view = getattr(stream, "view", None)
    if isinstance(view, memoryview):
        return Whole(view.obj if isinstance(view.obj, mmap.mmap) and len(view) == len(view.obj) else view.tobytes())
    return Flowing(getattr(stream, "readinto1", None) or Reading(stream.read))


def _anonymous(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
