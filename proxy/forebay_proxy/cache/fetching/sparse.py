"""Parts of segments that are asked for alone: exactly the range that a reader wants, passed through to it and not stored.

A reader that jumps about in a large object wants little of each segment, and says so (``SparseRange``). Whether the rest will be wanted
too, nobody knows: the next epoch may want other frames of the same clip. So a segment is rented until half of it was paid for, and bought
then: it is fetched whole, and stored, like any other. Whatever comes, origins send at most half a segment more than whole segments would
have cost; and where little is wanted, only that. The count is here and not with the readers, because workers, ranks and epochs share the
segments.
"""

from __future__ import annotations

from collections import OrderedDict

from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import SparseRange, Version

__all__ = ["SparseParts"]

MOST_SEGMENTS = 1 << 16  # whose count is kept: half a TiB of clips, some 10 MB. One that is forgotten is rented once more


class SparseParts:
    """How much of each segment was passed through. Sizes in bytes; the event loop's only."""

    def __init__(self) -> None:
        self._passed: OrderedDict[tuple[str, int], int] = OrderedDict()  # shard and segment -> bytes, the longest unasked first

    def __repr__(self) -> str:
        return f"<SparseParts of {len(self._passed)} segments>"

    def take(self, name: str, index: int, size: int, segment_bytes: int) -> bool:
        """Whether ``size`` bytes more of a segment of ``segment_bytes`` are better passed through than all of it fetched; then they count.

        Where not, the segment is fetched whole, and its count begins anew.
        """
        if not self._allows(name, index, size, segment_bytes):
            return False
        place = name, index
        self._passed[place] = self._passed.get(place, 0) + size
        self._passed.move_to_end(place)
        if len(self._passed) > MOST_SEGMENTS:
            self._passed.popitem(last=False)
        return True

    def _allows(self, name: str, index: int, size: int, segment_bytes: int) -> bool:
        if 2 * (self._passed.get((name, index), 0) + size) <= segment_bytes:
            return True
        self._passed.pop((name, index), None)
        return False

    def asked_at_opening(self, name: str, want: RangeRequest | None, layout: SegmentLayout) -> SparseRange | None:
        """What an opening for ``want`` asks for, in one segment; None: not a part."""
        if not isinstance(want, SparseRange) or want.last is None:
            return None
        index = layout.index_of(want.first)
        first, size = layout.span(index, None)
        part = SparseRange(want.first, min(want.last, first + size - 1))
        return part if self._allows(name, index, _size(part), size) else None

    def worth(self, name: str, part: SparseRange, layout: SegmentLayout, version: Version) -> bool:
        """Whether ``part``, which the origin sends now of ``version``, is all that is wanted after all: then its bytes count once taken.

        Not where the shard turns out to be short, and where nothing would tell that two parts are of one version.
        """
        if not version.identity or version.length is None:
            return False
        index = layout.index_of(part.first)
        size = layout.span(index, version.length)[1]
        return self._allows(name, index, min(_size(part), size), size)


def _size(part: SparseRange) -> int:
    return (part.last or 0) - part.first + 1
