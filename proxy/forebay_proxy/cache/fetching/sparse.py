"""Counts parts of segments that are requested alone: exactly the range that a reader wants, passed through and not stored.

A reader that jumps about in a large object wants little of each segment, and says so (``SparseRange``). Nobody knows whether the rest
will be wanted: the next epoch may want other frames of the same clip. So parts of a segment are passed through until they add up to half
of it; then the segment is fetched whole and stored. An origin sends at most half a segment more than whole segments would have cost.

The counts belong to segments, not to readers, because workers, ranks and epochs share segments.
"""

from __future__ import annotations

from collections import OrderedDict

from forebay_proxy.core.http_range import RangeRequest
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import SparseRange, Version

__all__ = ["SparseParts"]

MOST_SEGMENTS = 1 << 16  # segments with a count: half a TiB of clips, some 10 MB. A forgotten segment starts again at 0


class SparseParts:
    """How much of each segment was passed through. Sizes in bytes; used on the event loop alone."""

    def __init__(self) -> None:
        self._passed: OrderedDict[tuple[str, int], int] = OrderedDict()  # shard and segment -> bytes, the longest unused first

    def __repr__(self) -> str:
        return f"<SparseParts of {len(self._passed)} segments>"

    def take(self, name: str, index: int, size: int, segment_bytes: int) -> bool:
        """Whether to pass ``size`` more bytes of a segment of ``segment_bytes`` through, instead of fetching it; if so, they are counted.

        If not, the segment is to be fetched whole, and its count starts again.
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
        """The part of one segment to request in an opening for ``want``; None if it should request no part."""
        if not isinstance(want, SparseRange) or want.last is None:
            return None
        index = layout.index_of(want.first)
        first, size = layout.span(index, None)
        part = SparseRange(want.first, min(want.last, first + size - 1))
        return part if self._allows(name, index, _size(part), size) else None

    def worth(self, name: str, part: SparseRange, layout: SegmentLayout, version: Version) -> bool:
        """Whether to use ``part``, which the origin is sending of ``version``, as a part; its bytes count once taken.

        Not if the shard turns out to be short, or if nothing would tell that two parts belong to one version.
        """
        if not version.identity or version.length is None:
            return False
        index = layout.index_of(part.first)
        size = layout.span(index, version.length)[1]
        return self._allows(name, index, min(_size(part), size), size)


def _size(part: SparseRange) -> int:
    return (part.last or 0) - part.first + 1
