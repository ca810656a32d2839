"""Boxes (ISO/IEC 14496-12, 4.2): size, kind, fields and tables, each read only where the box has room for it; and a file's top level, found
with few reads.

No allocation follows from a field alone: a table's count is compared with the bytes that are there before an array is made of them, and
how many boxes of one clip are looked at is bounded. Nothing recurses: readers go down by names (moov, trak, mdia …), six boxes deep.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy
from numpy.typing import NDArray

from forebay_loader.videos.errors import CorruptVideo

__all__ = ["Box", "BoxCount", "BoxFile", "BoxPlace", "Counts", "ReadAt", "header_of"]

ReadAt = Callable[[int, int], bytes]  # (offset, size) -> exactly these bytes, or fewer at the end of the file

PLACE_COST = 4  # of a box of the top level, in boxes inside another
HEAD_BYTES = 64
TAIL_BYTES = 1 << 20  # behind mdat: moov of an hour, and not worth a second read
STEP_BYTES = 64 << 10  # at most, of what is read to see what is there
MAX_INDEX_BYTES = 256 << 20  # of all boxes that are read whole: 30 bytes a sample, so more samples than an index may have

HEADER_BYTES = 16  # of the longest: size, kind, 64-bit size
MAX_ROWS = 1 << 22  # of a table: as many as samples. Each becomes some dozens of bytes while it is read
MAX_BOXES = 1 << 23  # it takes some seconds to look at so many

Counts = NDArray[numpy.int64]

_SHORT = struct.Struct(">I4s")
_LONG = struct.Struct(">Q")


class BoxCount:
    """How many boxes of one clip may still be looked at."""

    def __init__(self, limit: int = MAX_BOXES) -> None:
        self.left = self._limit = limit

    def spend(self, boxes: int = 1) -> None:
        """Count one, or what takes as long as several. Raises ``CorruptVideo`` beyond the limit."""
        self.left -= boxes
        if self.left < 0:
            raise CorruptVideo(f"more boxes than {self._limit} of the smallest")


def header_of(data: memoryview, at: int, room: int) -> tuple[bytes, int, int]:
    """``(kind, bytes of the header, bytes of the box)`` of the box whose first bytes are ``data``; it lies at byte ``at`` of the clip, and
    ``room`` bytes from there are its parent's. Size 0 means all of them. Raises ``CorruptVideo`` where they do not suffice."""
    if len(data) < _SHORT.size:
        raise CorruptVideo(f"cut off in the header of the box at byte {at}")
    size, kind = _SHORT.unpack_from(data)
    header = _SHORT.size
    if size == 1:
        if len(data) < HEADER_BYTES:
            raise CorruptVideo(f"cut off in the header of the box at byte {at}")
        (size,), header = _LONG.unpack_from(data, _SHORT.size), HEADER_BYTES
    elif size == 0:
        size = room
    if not header <= size <= room:
        raise CorruptVideo(f"box {name_of(kind)} at byte {at} says it has {size} bytes; {room} are there")
    return kind, header, size


def name_of(kind: bytes) -> str:
    """A box's four bytes as a log can show them."""
    return kind.decode("latin-1") if kind.isalnum() else repr(kind)[2:-1]


@dataclass(frozen=True)
class Box:
    """One box: its kind, the byte of the clip where its header begins, and its payload."""

    kind: bytes
    at: int
    data: memoryview

    def __repr__(self) -> str:
        return f"<Box {name_of(self.kind)} at {self.at}, {len(self.data)} bytes>"

    @property
    def version(self) -> int:
        """Of a full box (4.2)."""
        return self.number(0, ">B")

    @property
    def flags(self) -> int:
        """Of a full box (4.2), 24 bits."""
        return self.number(0, ">I") & 0xFFFFFF

    def fields(self, place: int, form: str) -> tuple[Any, ...]:
        """What ``struct`` reads at byte ``place`` of the payload. Raises ``CorruptVideo`` where it ends before."""
        if place + struct.calcsize(form) > len(self.data):
            raise self.too_short(f"byte {place + struct.calcsize(form)}")
        return struct.unpack_from(form, self.data, place)

    def number(self, place: int, form: str = ">I") -> int:
        """The one integer there."""
        value: int = self.fields(place, form)[0]
        return value

    def rows(self, place: int, count: int, dtype: Any) -> NDArray[Any]:
        """``count`` rows of a table that begins at byte ``place``: a view, nothing is copied. Raises ``CorruptVideo`` where the box has no
        room for them, and for more than ``MAX_ROWS``, whatever room there is."""
        row = numpy.dtype(dtype)
        if not 0 <= count * row.itemsize <= len(self.data) - place:
            raise self.too_short(f"{count} rows of {row.itemsize} bytes from byte {place}")
        if count > MAX_ROWS:
            raise CorruptVideo(f"box {name_of(self.kind)} at byte {self.at} has {count} rows: more than {MAX_ROWS}")
        return numpy.frombuffer(self.data, row, count, place)

    def too_short(self, what: str) -> CorruptVideo:
        return CorruptVideo(f"box {name_of(self.kind)} at byte {self.at} has {len(self.data)} bytes of payload, too few for {what}")

    def children(self, kinds: Optional[frozenset[bytes]], count: BoxCount, skip: int = 0) -> Iterator[Box]:
        """Boxes inside of these kinds (None: of any), from byte ``skip`` of the payload. Less than a header's bytes at the end are nothing:
        QuickTime ends some lists with four zeros."""
        place, room = skip, len(self.data)
        while place + _SHORT.size <= room:
            count.spend()
            size, kind = _SHORT.unpack_from(self.data, place)
            header = _SHORT.size
            if not header <= size <= room - place:  # rare, or wrong
                at = self.at + place  # beside the payload's begin by the header, which is near enough for a message
                kind, header, size = header_of(self.data[place : place + HEADER_BYTES], at, room - place)
            if kinds is None or kind in kinds:
                yield Box(kind, self.at + place, self.data[place + header : place + size])
            place += size

    def only(self, kinds: frozenset[bytes], count: BoxCount, skip: int = 0) -> dict[bytes, Box]:
        """The children of these kinds, of each the one there is. Raises ``CorruptVideo`` for two of a kind: they contradict each other."""
        found: dict[bytes, Box] = {}
        for child in self.children(kinds, count, skip):
            if found.setdefault(child.kind, child) is not child:
                raise CorruptVideo(f"two boxes {name_of(child.kind)} in {name_of(self.kind)} at byte {self.at}")
        return found


def needed_box(found: dict[bytes, Box], kind: bytes, parent: Optional[bytes] = None) -> Box:
    """The box of this kind. Raises ``CorruptVideo`` without one."""
    if kind not in found:
        raise CorruptVideo(f"no box {name_of(kind)}{f' in {name_of(parent)}' if parent else ''}")
    return found[kind]


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
    """A file's top level: headers are read, what lies between them is not.

    The first read is of 64 bytes: ftyp and the header of the next one or two boxes. Either that is moov, and the second read is all of it;
    or it is mdat, and the second read is what comes after mdat, all of it where that is little.
    """

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
