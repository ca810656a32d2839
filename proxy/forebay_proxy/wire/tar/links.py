"""Hard and symbolic links of an archive: whose bytes they stand for. Pure, stdlib only.

A link has no data of its own, and webdataset leaves it out in silence. Here it has the bytes of the earlier member that it points to. The
reader of samples and their index share the rule, so that both count alike.
"""

from __future__ import annotations

from typing import Callable, Dict, Optional, Tuple

from forebay_proxy.wire.tar.members import Member, Walk, plain_path

__all__ = ["Links", "links_before"]

Place = Tuple[int, int]  # offset and size of data

_MOST_BYTES = 64 << 20  # of names with their places: some 200,000 members; what comes behind is no target of a link
_PLACE_BYTES = 256  # of one, beside its name
_AHEAD_BYTES = 1 << 20  # read at once, for the headers in it


class Links:
    """Where the members of one archive lie, so far."""

    def __init__(self) -> None:
        self._places: Dict[str, Place] = {}
        self._left_bytes = _MOST_BYTES

    def note(self, name: str, offset: int, size: int) -> None:
        """One regular file. A later one of the same name counts, as when the archive is unpacked."""
        name = plain_path(name)
        if name not in self._places:
            self._left_bytes -= _PLACE_BYTES + len(name)
            if self._left_bytes < 0:
                return
        self._places[name] = offset, size

    def place(self, member: Member) -> Optional[Place]:
        """Where the bytes of ``member`` lie, a regular file or a link, which is noted; None where it points to no earlier file."""
        found = (member.offset, member.size) if member.regular else self._places.get(member.target)
        if found is not None:
            self.note(member.name, *found)
        return found


def links_before(read: Callable[[int, int], bytes], at: int) -> Links:
    """Those of the members before byte ``at``, which was walked to already; ``read(offset, n)`` reads them again."""
    links, walk, here = Links(), Walk(_Pieces(read, at)), 0
    while here < at:
        member = walk.member(here)
        if member is None:
            break
        if member.regular or member.target:
            links.place(member)
        here = member.end
    return links


class _Pieces:
    """``read`` up to byte ``end``, a piece at a time."""

    def __init__(self, read: Callable[[int, int], bytes], end: int) -> None:
        self._read, self._end = read, end
        self._at, self._piece = 0, b""

    def __call__(self, offset: int, size: int) -> bytes:
        begin = offset - self._at
        if not 0 <= begin <= begin + size <= len(self._piece):
            self._at, self._piece, begin = offset, self._read(offset, min(max(size, _AHEAD_BYTES), self._end - offset)), 0
        return self._piece[begin : begin + size]
