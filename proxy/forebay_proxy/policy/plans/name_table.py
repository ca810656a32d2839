"""Names as small numbers: a table of 64-bit hashes in arrays, 16 bytes a name and half a dozen of slack. Pure.

Numbers are dense, start at 1 and are used again after they were given back, so that whatever is known by number can live in arrays too.

*Linear hashing* (Litwin 1980): the table grows by one bucket at a time, when a name comes in. A dict was tried: of 585,270 names it takes
107 bytes each where this takes 16, and one insertion holds the event loop for 30 ms where the longest here takes 1 (``python
benchmarks/simple_forms.py names``). An entry of a plan then takes 181 bytes instead of 58, of the 150 that ``benchmarks/registration.py``
allows; it would be registered in two thirds of the processor time.

Two names with one hash would share a number. The hash is Python's own (SipHash under a key of this process: nobody outside can aim at
it), and among two million names one run in eight million meets one such pair. It would cost a wrong guess of need: the one is fetched
ahead where the other was meant. Never a wrong byte: what a reader gets goes by the name itself.
"""

from __future__ import annotations

from array import array

__all__ = ["NameTable"]

_FIRST_BUCKETS = 8


class NameTable:
    """Hash -> number. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._hashes = array("q", [0])  # by number; number 0 is nobody
        self._next = array("I", [0])  # by number: the next one in its bucket
        self._free = array("I")
        self._begin()

    def _begin(self) -> None:
        self._heads = array("I", [0]) * _FIRST_BUCKETS
        self._mask = _FIRST_BUCKETS - 1  # of the buckets that are not split yet in this round
        self._split = 0  # the bucket to be split next

    def __len__(self) -> int:
        return len(self._hashes) - 1 - len(self._free)

    def _bucket(self, hashed: int) -> int:
        bucket = hashed & self._mask
        return bucket if bucket >= self._split else hashed & (2 * self._mask + 1)

    def find(self, hashed: int) -> int:
        """The number of the name with this hash; 0 if it has none."""
        bucket = hashed & self._mask
        if bucket < self._split:
            bucket = hashed & (2 * self._mask + 1)
        number, hashes = self._heads[bucket], self._hashes
        while number and hashes[number] != hashed:
            number = self._next[number]
        return number

    def hash_of(self, number: int) -> int:
        return self._hashes[number]

    def add(self, hashed: int) -> int:
        """A number for a name that has none."""
        if self._free:
            number = self._free.pop()
            self._hashes[number] = hashed
        else:
            number = len(self._hashes)
            self._hashes.append(hashed)
            self._next.append(0)
        bucket = self._bucket(hashed)
        self._next[number], self._heads[bucket] = self._heads[bucket], number
        if len(self._hashes) > len(self._heads):
            self._grow()
        return number

    def _grow(self) -> None:
        """One bucket more: part of the bucket whose turn it is moves there."""
        number = self._heads[self._split]
        wide, beside = 2 * self._mask + 1, self._split + self._mask + 1
        self._heads[self._split] = 0
        self._heads.append(0)
        while number:
            after = self._next[number]
            bucket = self._hashes[number] & wide
            assert bucket in (self._split, beside)
            self._next[number], self._heads[bucket] = self._heads[bucket], number
            number = after
        self._split += 1
        if self._split > self._mask:
            self._mask, self._split = wide, 0

    def remove(self, number: int) -> None:
        """Give ``number`` back."""
        bucket = self._bucket(self._hashes[number])
        before, at = 0, self._heads[bucket]
        while at != number:
            before, at = at, self._next[at]
        if before:
            self._next[before] = self._next[number]
        else:
            self._heads[bucket] = self._next[number]
        self._next[number] = 0
        self._free.append(number)
        if not len(self):
            self._hashes, self._next, self._free = array("q", [0]), array("I", [0]), array("I")
            self._begin()
