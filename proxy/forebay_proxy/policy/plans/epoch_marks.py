"""Which of a set's shards were read in which of the last epochs: nine bytes a shard, however long its name. Pure.

A name is kept as 64 bits of its hash: of a million names two share one in fewer than one of ten million runs, and then one of them is
taken for read an epoch too early, which costs one fetch at worst. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

__all__ = ["EpochMarks"]

# A new name moves what stands behind it: of a small set all, some kilobytes; a large one is parted so that it is no more for a million.
# Not before, because each part takes two hundred bytes, and some data sets have a folder for every hundred shards.
_FEW = 4096
_BUCKETS = 256  # a power of two
_SHIFTED = [bytes((mark << by) & 255 for mark in range(256)) for by in range(9)]


class EpochMarks:
    """Eight bits a name: bit n says that it was read n epochs before the present one. Names never seen have none."""

    def __init__(self) -> None:
        self._buckets = [(array("q"), bytearray())]  # hashes in order, and the marks of each
        self._mask = 0  # the bits of a hash that say in which bucket it is
        self._count = 0

    def __len__(self) -> int:
        """How many names have been seen."""
        return self._count

    def __contains__(self, name: str) -> bool:
        hashed = hash(name)
        hashes, _ = self._buckets[hashed & self._mask]
        place = bisect_left(hashes, hashed)
        return place < len(hashes) and hashes[place] == hashed

    def __getitem__(self, name: str) -> int:
        hashed = hash(name)
        hashes, bits = self._buckets[hashed & self._mask]
        place = bisect_left(hashes, hashed)
        return bits[place] if place < len(hashes) and hashes[place] == hashed else 0

    def slot(self, name: str) -> tuple[bytearray, int]:
        """Where the marks of ``name`` are, which is seen by that; until the next new name."""
        hashed = hash(name)
        hashes, bits = self._buckets[hashed & self._mask]
        place = bisect_left(hashes, hashed)
        if place == len(hashes) or hashes[place] != hashed:
            if self._count == _FEW:
                self._part()
                hashes, bits = self._buckets[hashed & self._mask]
                place = bisect_left(hashes, hashed)
            hashes.insert(place, hashed)
            bits.insert(place, 0)
            self._count += 1
        return bits, place

    def add(self, name: str, bit: int) -> bool:
        """Note that ``name`` was read ``bit`` epochs ago; whether that is news."""
        bits, place = self.slot(name)
        news = not bits[place] & (1 << bit)
        bits[place] |= 1 << bit
        return news

    def pass_by(self, epochs: int) -> None:
        """So many epochs later: what was the present one is past. Takes 0.3 ms for half a million names."""
        table = _SHIFTED[min(epochs, 8)]
        for _, bits in self._buckets:
            bits[:] = bits.translate(table)

    def _part(self) -> None:
        """Once in the life of a set, and 2 ms."""
        ((hashes, bits),) = self._buckets
        self._buckets, self._mask = [(array("q"), bytearray()) for _ in range(_BUCKETS)], _BUCKETS - 1
        for hashed, mark in zip(hashes, bits, strict=True):  # in order, so each part is in order too
            own, marks = self._buckets[hashed & self._mask]
            own.append(hashed)
            marks.append(mark)
