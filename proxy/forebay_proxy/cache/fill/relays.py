"""Parts of segments that are relayed: fetched by exactly the range that a reader wants, through memory, and not stored.

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
from forebay_proxy.transfer.flights import Flight

__all__ = ["Relays"]

MOST_SEGMENTS = 1 << 16  # whose count is kept: half a TiB of clips, some 10 MB. One that is forgotten is rented once more


class Relays:
    """How much of each segment was relayed, and the relays that openings have begun. Sizes in bytes; the event loop's only."""

    def __init__(self) -> None:
        self._relayed: OrderedDict[tuple[str, int], int] = OrderedDict()  # shard and segment -> bytes, the longest unasked first
        self._begun: dict[tuple[str, int, int | None], Flight] = {}

    def __repr__(self) -> str:
        return f"<Relays of {len(self._relayed)} segments, {len(self._begun)} begun>"

    def take(self, name: str, index: int, size: int, segment_bytes: int) -> bool:
        """Whether ``size`` bytes more of a segment of ``segment_bytes`` are better relayed than all of it fetched; then they count.

        Where not, the segment is fetched whole, and its count begins anew.
        """
        if not self._allows(name, index, size, segment_bytes):
            return False
        place = name, index
        self._relayed[place] = self._relayed.get(place, 0) + size
        self._relayed.move_to_end(place)
        if len(self._relayed) > MOST_SEGMENTS:
            self._relayed.popitem(last=False)
        return True

    def _allows(self, name: str, index: int, size: int, segment_bytes: int) -> bool:
        if 2 * (self._relayed.get((name, index), 0) + size) <= segment_bytes:
            return True
        self._relayed.pop((name, index), None)
        return False

    # Of an opening the first body is a relay too: its reader hears of the version first, and comes for the flight then

    def part(self, name: str, want: RangeRequest | None, layout: SegmentLayout) -> SparseRange | None:
        """What an opening for ``want`` asks for, in one segment; None: not a part."""
        if not isinstance(want, SparseRange) or want.last is None:
            return None
        index = layout.index_of(want.first)
        first, size = layout.span(index, None)
        part = SparseRange(want.first, min(want.last, first + size - 1))
        return part if self._allows(name, index, _size(part), size) else None

    def opened(self, name: str, part: SparseRange, layout: SegmentLayout, version: Version, began_at: float) -> Flight | None:
        """The flight of ``part``, which the origin sends now of ``version``; its bytes count. None: all of the segment is wanted after all.

        That is where the shard turns out to be short, and where nothing would tell that two parts are of one version.
        """
        index = layout.index_of(part.first)
        size = layout.span(index, version.length)[1]
        if not version.identity or version.length is None or not self.take(name, index, min(_size(part), size), size):
            return None
        return Flight(part.first, min(part.first + _size(part), version.length), 0.0, began_at, relay=True)

    def begun(self, key: str, flight: Flight) -> None:
        """An opening relays what ``flight`` brings."""
        self._begun[key, flight.first, flight.end] = flight

    def boarded(self, key: str, first: int, end: int) -> Flight | None:
        """The flight that an opening began for these very bytes (``end`` exclusive); the first reader that asks has it."""
        return self._begun.pop((key, first, end), None)

    def ended(self, key: str, flight: Flight) -> None:
        """A relay is over, whoever came for it."""
        place = key, flight.first, flight.end
        if self._begun.get(place) is flight:
            del self._begun[place]


def _size(part: SparseRange) -> int:
    return (part.last or 0) - part.first + 1
