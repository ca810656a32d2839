"""The checksums of the segments that are here: a table that costs by what is stored, not by how long the shard says it is. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

__all__ = ["Checksums"]


class Checksums:
    """segment -> checksum, 16 bytes each; 0 means "not here". In the order of the segments. Not thread-safe.

    A length is only what an origin says. A table as long as that would let a few crafted shards take the memory and the index.
    """

    __slots__ = ("_indices", "_values")

    def __init__(self, values: Iterable[int] = ()) -> None:
        """``values``: of segments 0, 1, 2 and so on."""
        here = [(index, value) for index, value in enumerate(values) if value]
        self._indices = array("Q", (index for index, _ in here))  # rising
        self._values = array("Q", (value for _, value in here))

    def __repr__(self) -> str:
        return f"<Checksums of {len(self)} segments>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checksums) and (self._indices, self._values) == (other._indices, other._values)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._indices)

    def _at(self, index: int) -> int:
        """Where ``index`` stands, or would stand."""
        if 0 <= index < len(self._indices) and self._indices[index] == index:
            return index  # all before it are here: mostly so
        return bisect_left(self._indices, index)

    def __contains__(self, index: int) -> bool:
        indices = self._indices
        if 0 <= index < len(indices) and indices[index] == index:
            return True  # as in ``_at``: this is asked for each piece that is read
        if not indices or index > indices[-1]:
            return False  # it is still to come
        at = bisect_left(indices, index)
        return at < len(indices) and indices[at] == index

    def __getitem__(self, index: int) -> int:
        at = self._at(index)
        return self._values[at] if at < len(self._indices) and self._indices[at] == index else 0

    def __setitem__(self, index: int, value: int) -> None:
        at = self._at(index)
        here = at < len(self._indices) and self._indices[at] == index
        if here and value:
            self._values[at] = value
        elif here:
            del self._indices[at], self._values[at]
        elif value:
            self._indices.insert(at, index)
            self._values.insert(at, value)

    def copy(self) -> Checksums:
        """One that changes apart from this."""
        other = Checksums()
        other._indices, other._values = self._indices[:], self._values[:]
        return other

    @property
    def first(self) -> int:
        """The first segment that is here; -1 for none."""
        return self._indices[0] if self._indices else -1

    @property
    def last(self) -> int:
        """The last segment that is here; -1 for none."""
        return self._indices[-1] if self._indices else -1

    def __iter__(self) -> Iterator[int]:
        """The segments that are here, in order. The table must not change meanwhile."""
        return iter(self._indices)

    def below(self, end: int) -> Iterator[int]:
        """The segments before ``end`` that are here, last first. The table may change meanwhile."""
        at = self._at(end)
        while at:
            at -= 1
            index = self._indices[at]
            yield index
            if at >= len(self._indices) or self._indices[at] != index:
                at = self._at(index)  # it left, or others did

    def count_within(self, first: int, end: int) -> int:
        """How many of the segments ``first`` to ``end`` (exclusive) are here."""
        return max(0, self._at(end) - self._at(first))

    def cut(self, end: int) -> None:
        """Nothing from segment ``end`` on is here."""
        at = self._at(end)
        del self._indices[at:], self._values[at:]

    def runs(self) -> Iterator[tuple[int, array[int]]]:
        """(first segment, checksums) of each run without a gap, in order."""
        begin, count = 0, len(self._indices)
        while begin < count:
            first = self._indices[begin]
            # The end of the run: from there on, more lies between two segments than between their places.
            low, high = begin + 1, count
            while low < high:
                middle = (low + high) // 2
                if self._indices[middle] - first == middle - begin:
                    low = middle + 1
                else:
                    high = middle
            yield first, self._values[begin:low]
            begin = low

    def extend(self, first: int, values: array[int]) -> None:
        """Add a run behind all that is here. Raises ``ValueError`` where it is empty, not behind, or has a 0."""
        if not values or first <= self.last or 0 in values:
            raise ValueError("no run of checksums")
        self._indices.extend(range(first, first + len(values)))
        self._values.extend(values)
