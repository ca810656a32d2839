"""A window of memory over the newest bytes of a flight. Pure.

Every flight has one: what arrived is read from it until it is written, so the fastest reader waits for the origin and never for the disk.
Where no disk room could be granted (a bypass) it is all there is: it moves with its fastest reader. A slower one may fall out of it and
then goes on with a fetch of its own; only the fastest (so also a reader alone) makes the fetch wait. Pieces are shared between readers,
never copied.
"""

from __future__ import annotations

from collections import deque

from forebay_proxy.core.errors import FellBehind

__all__ = ["MemoryWindow"]


class MemoryWindow:
    """Bytes ``start`` to ``end`` of a shard, in the pieces they came in. Not thread-safe: the event loop's only."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._pieces: deque[bytes | memoryview] = deque()

    def __repr__(self) -> str:
        return f"<MemoryWindow {self.start}-{self.end}>"

    def __len__(self) -> int:
        return self.end - self.start

    def room(self, size: int, capacity_bytes: int, fastest: int) -> bool:
        """Whether ``size`` bytes more fit, once what the ``fastest`` reader has passed is dropped; an empty window takes anything."""
        while self._pieces and len(self) + size > capacity_bytes and self.start + len(self._pieces[0]) <= fastest:
            self.start += len(self._pieces.popleft())
        return not self._pieces or len(self) + size <= capacity_bytes

    def drop(self, end: int) -> None:
        """The bytes below ``end`` are on the disk."""
        while self._pieces and self.start + len(self._pieces[0]) <= end:
            self.start += len(self._pieces.popleft())

    def append(self, piece: bytes | memoryview) -> None:
        self._pieces.append(piece)
        self.end += len(piece)

    def read(self, position: int) -> memoryview | None:
        """The bytes at ``position`` as far as their piece goes; None at the end of the window.

        Raises ``FellBehind`` for a position the window has moved past.
        """
        if position >= self.end:
            return None
        if position < self.start:
            raise FellBehind(f"the window has moved on to {self.start}, the reader is at {position}")
        offset = self.start
        for piece in self._pieces:
            if position < offset + len(piece):
                return memoryview(piece)[position - offset :]
            offset += len(piece)
        raise AssertionError("a window's pieces fill it")
