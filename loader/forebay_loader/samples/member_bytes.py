"""A file of a sample that is not read before it is asked for, and then in parts."""

from __future__ import annotations

from typing import Optional, Protocol, Sequence, Tuple

from forebay_loader.stream.sparse_reads import SEGMENT_BYTES, SPANS_AT_ONCE, are_sparse

__all__ = ["MemberBytes"]


class ReadShard(Protocol):
    """Gives ``size`` bytes from ``at`` of a shard; ``sparse``: little is wanted of what lies around them."""

    def __call__(self, at: int, size: int, *, sparse: bool = False) -> bytes: ...


class MemberBytes:
    """``size`` bytes from ``offset`` of a shard, of which ``read`` gives bytes. It ends with its shard.

    A file that is smaller than a segment has neighbours in it, which the same epoch mostly wants as well: there the segment is best fetched
    once, whole. Of a larger one only what is wanted is asked for, where that is little.
    """

    def __init__(self, read: ReadShard, offset: int, size: int, here: bool = False) -> None:
        """``here``: all of the shard is, as a file."""
        self.size = size
        self._read, self._offset = read, offset
        self._here = here
        self._sparse: Optional[bool] = None  # of what was said to be read next; None: nothing was

    def __repr__(self) -> str:
        return f"<MemberBytes {self.size} from byte {self._offset}>"

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` of the member, fewer only at its end. Raises what reading the shard raises."""
        size = min(size, self.size - at)
        if size <= 0:
            return b""
        sparse = self._lie_sparse([(at, at + size)]) if self._sparse is None else self._sparse
        return self._read(self._offset + at, size, sparse=sparse)

    def expect(self, spans: Sequence[Tuple[int, int]]) -> int:
        """``spans`` of the member, each (offset, end), ascending, are read next, and no others before it is told anew. How many of them to
        ask for at a time."""
        self._sparse = self._lie_sparse(spans)
        return 1 if self._here else SPANS_AT_ONCE

    def _lie_sparse(self, spans: Sequence[Tuple[int, int]]) -> bool:
        return self.size >= SEGMENT_BYTES and are_sparse(spans, self.size)
