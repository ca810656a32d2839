"""The top level of a file, walked with few reads: headers are read, what lies between them is not.

The first read is of 64 bytes: ftyp and the header of the next one or two boxes. Either that is moov, and the second read is all of it; or
it is mdat, and the second read is what comes after mdat, all of it where that is little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable

from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.mp4.boxes import HEADER_BYTES, Box, BoxCount, header_of, name_of

__all__ = ["BoxFile", "BoxPlace", "ReadAt"]

ReadAt = Callable[[int, int], bytes]  # (offset, size) -> exactly these bytes, or fewer at the end of the file

PLACE_COST = 4  # of a box of the top level, in boxes inside another
HEAD_BYTES = 64
TAIL_BYTES = 1 << 20  # behind mdat: moov of an hour, and not worth a second read
STEP_BYTES = 64 << 10  # at most, of what is read to see what is there
MAX_INDEX_BYTES = 256 << 20  # of all boxes that are read whole: 30 bytes a sample, so more samples than an index may have


@dataclass(frozen=True)
class BoxPlace:
    """Where a box of the top level lies: ``at`` its first byte, ``header`` and ``size`` in bytes, the header counted in both."""

    kind: bytes
    at: int
    header: int
    size: int

    @property
    def end(self) -> int:
        return self.at + self.size


class BoxFile:
    """A file's top level."""

    def __init__(self, read: ReadAt, length: int, count: BoxCount) -> None:
        self.length = length
        self.count = count
        self._read = read
        self._window, self._begin = memoryview(b""), 0
        self._loaded = 0
        self._mdat_seen = False

    def begin(self) -> bytes:
        """Its first eight bytes. Raises ``CorruptVideo`` for a file that has not even one box."""
        if self.length < HEADER_BYTES:
            raise CorruptVideo(f"it has {self.length} bytes")
        return bytes(self._header(0)[:8])

    def payload(self, place: BoxPlace, size: int) -> memoryview:
        """The first ``size`` bytes of a box's payload, fewer where it has fewer."""
        at, size = place.at + place.header, min(size, place.size - place.header)
        if not self._holds(at, size):
            self._fill(at, size)
        return self._window[at - self._begin :][:size]

    def places(self) -> Iterator[BoxPlace]:
        """Each box in turn; its payload is not read. Raises ``CorruptVideo`` for one that ends beyond the file."""
        at = 0
        while at < self.length:
            self.count.spend(PLACE_COST)
            header = self._header(at)
            kind, header_bytes, size = header_of(header, at, self.length - at)
            yield BoxPlace(kind, at, header_bytes, size)
            self._mdat_seen |= kind == b"mdat"
            at += size

    def load(self, place: BoxPlace) -> Box:
        """A box with its payload. Raises ``CorruptVideo`` for more than an index can be."""
        self._loaded += place.size
        if self._loaded > MAX_INDEX_BYTES:
            raise CorruptVideo(f"box {name_of(place.kind)} at byte {place.at} has {place.size} bytes: more than an index has")
        if not self._holds(place.at, place.size):
            self._fill(place.at, min(place.size + HEADER_BYTES, self.length - place.at))  # and the header that follows
        begin = place.at - self._begin
        return Box(place.kind, place.at, self._window[begin + place.header : begin + place.size])

    def _header(self, at: int) -> memoryview:
        wanted = min(HEADER_BYTES, self.length - at)
        if not self._holds(at, wanted):
            self._fill(at, min(self._step(at), self.length - at))
        return self._window[at - self._begin :][:wanted]

    def _step(self, at: int) -> int:
        """How much to read for the header at ``at``."""
        if self._mdat_seen and self.length - at <= TAIL_BYTES:
            return TAIL_BYTES
        end = self._begin + len(self._window)
        if end > 0 and at <= end:  # the last read held nothing but boxes, and they go on
            return min(2 * len(self._window), STEP_BYTES)
        return HEAD_BYTES

    def _holds(self, at: int, size: int) -> bool:
        return self._begin <= at and at + size <= self._begin + len(self._window)

    def _fill(self, at: int, size: int) -> None:
        data = self._read(at, size)
        if len(data) != size:
            raise CorruptVideo(f"{len(data)} bytes came from byte {at} where {size} must be: it has fewer than the {self.length} it should")
        self._window, self._begin = memoryview(data), at
