"""What lies ahead of one reader: how many bytes of its future are here or on their way. Pure."""

from __future__ import annotations

__all__ = ["ReaderLead"]


class ReaderLead:
    """Bytes that cursors have passed, by index into the reader's plan. Not thread-safe."""

    def __init__(self) -> None:
        self.passed: dict[int, int] = {}  # plan index -> bytes of it that a cursor has passed
        self.bytes = 0  # the sum of them
        self._guesses: dict[int, int] = {}  # plan index -> of what is counted, how many bytes nobody knows
        self._furthest = -1  # no index beyond it is in ``passed``

    def __repr__(self) -> str:
        return f"<ReaderLead {self.bytes} bytes of {len(self.passed)} shards>"

    def count(self, index: int, size: int) -> None:
        """A cursor passed ``size`` bytes of the shard at ``index``."""
        self.passed[index] = self.passed.get(index, 0) + size
        self.bytes += size
        self._furthest = max(self._furthest, index)

    def uncount(self, index: int) -> None:
        """The shard at ``index`` is looked at anew, or was read."""
        self.bytes -= self.passed.pop(index, 0)
        self._guesses.pop(index, None)

    def guessed(self, index: int, size: int) -> None:
        """So many bytes of what is counted of the shard at ``index`` are a guess: no lead that others could be compared with."""
        self._guesses[index] = size

    def drop_between(self, before: int, position: int) -> None:
        """The reader went on from ``before`` to ``position``: what lies behind it is no lead any more."""
        for index in range(before, position) if position - before < len(self.passed) else list(self.passed):
            if index < position:
                self.uncount(index)

    def bytes_before(self, index: int) -> int:
        """How many bytes the reader needs before the shard at ``index``, what is counted of that one included."""
        if index >= self._furthest:
            return self.bytes
        return sum(size for passed, size in self.passed.items() if passed <= index)

    def known_before(self, index: int, inside_bytes: int) -> int:
        """The same with ``inside_bytes`` of the shard the reader is in, and without what is a guess; 0 at least."""
        size = inside_bytes + self.bytes_before(index)
        return max(0, size - sum(self._guesses.values())) if self._guesses else size
