"""A data set that costs no disk: how long each shard is, and bytes of which any segment can be told by its first and last 16. Pure.

Every segment begins and ends with a stamp (number of the shard, of the segment); between them lies a part of one shared buffer. So the
origin sends slices of memory it already has, and a reader knows with two comparisons a segment that it got the bytes it asked for.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

__all__ = ["SEGMENT_BYTES", "STAMP_BYTES", "FarSet"]

SEGMENT_BYTES = 8 * 2**20  # the product's own; a test compares them
STAMP_BYTES = 16
_STAMP = struct.Struct(">II8s")
_FILLER = memoryview(random.Random(7).randbytes(2**20) * 8)


@dataclass(frozen=True)
class FarSet:
    """``count`` shards of one to three segments; the last segment of each is between half and whole. The same seed, the same set."""

    count: int
    seed: int
    most_segments: int = 3
    lengths: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        whole = [1 + number % self.most_segments for number in range(self.count)]
        rng.shuffle(whole)
        sizes = (count * SEGMENT_BYTES - rng.randrange(0, SEGMENT_BYTES // 2, 4096) for count in whole)
        object.__setattr__(self, "lengths", tuple(sizes))

    @cached_property
    def bytes(self) -> int:
        return sum(self.lengths)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(f"shard-{number:05d}.tar" for number in range(self.count))

    @property
    def pattern(self) -> str:
        """All names in one brace pattern."""
        return f"shard-{{00000..{self.count - 1:05d}}}.tar"

    def segments(self, number: int) -> int:
        return -(-self.lengths[number] // SEGMENT_BYTES)

    def size(self, number: int, index: int) -> int:
        """Bytes of one segment."""
        return min(SEGMENT_BYTES, self.lengths[number] - index * SEGMENT_BYTES)

    def part(self, number: int, first: int, end: int) -> Iterator[memoryview]:
        """Bytes ``first`` to ``end`` (exclusive) of a shard, in pieces."""
        while first < end:
            index, offset = divmod(first, SEGMENT_BYTES)
            piece = self._piece(number, index, offset, min(end - index * SEGMENT_BYTES, self.size(number, index)))
            yield piece
            first += len(piece)

    def _piece(self, number: int, index: int, offset: int, end: int) -> memoryview:
        size = self.size(number, index)
        if offset < STAMP_BYTES:
            return memoryview(stamp(number, index))[offset : min(end, STAMP_BYTES)]
        if offset < size - STAMP_BYTES:
            return _FILLER[offset : min(end, size - STAMP_BYTES)]
        return memoryview(stamp(number, index))[offset - size + STAMP_BYTES : end - size + STAMP_BYTES]


def stamp(number: int, index: int) -> bytes:
    """What a segment begins and ends with."""
    return _STAMP.pack(number, index, b"farshard")
