"""A file of a sample that is not read before it is asked for, and then in parts."""

from __future__ import annotations

from typing import Callable

__all__ = ["MemberBytes"]


class MemberBytes:
    """``size`` bytes from ``offset`` of a shard, of which ``read`` gives bytes. It ends with its shard."""

    def __init__(self, read: Callable[[int, int], bytes], offset: int, size: int) -> None:
        self.size = size
        self._read, self._offset = read, offset

    def __repr__(self) -> str:
        return f"<MemberBytes {self.size} from byte {self._offset}>"

    def read(self, at: int, size: int) -> bytes:
        """``size`` bytes from ``at`` of the member, fewer only at its end. Raises what reading the shard raises."""
        size = min(size, self.size - at)
        return self._read(self._offset + at, size) if size > 0 else b""
