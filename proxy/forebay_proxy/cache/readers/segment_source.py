"""Where a reader's next bytes come from: five sources, and which one it is. Decides without I/O.

| source | when: the first line that holds | what the reader does |
|---|---|---|
| ``SAME_FLIGHT`` | one body of many segments, which it follows, brings this segment too | goes on aboard it |
| ``ONE_BODY`` | the body cannot be asked for twice, flies, and has the position | boards it, for what is stored too: it waits for readers |
| ``PRIVATE`` | that body has gone past the position 0 and kept nothing of it | asks for a body of its own |
| ``PRIVATE`` | the segment on the disk is doubtful: found wrong or not to be read now, and the disk does not let go of it | the same |
| ``STORE`` | the segment is stored | reads the file |
| ``SHARED`` | the segment is missing | boards the flight that brings it, or has one take off |
"""

from __future__ import annotations

from enum import Enum

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.events import RequestOutcome
from forebay_proxy.core.segments import index_of
from forebay_proxy.transfer.flights import Flight

__all__ = ["SegmentSource", "foreseen_outcome", "source_in_flight", "source_of_segment"]


class SegmentSource(Enum):
    """Where the bytes of one segment come from, for one reader."""

    SAME_FLIGHT = "same flight"
    ONE_BODY = "one body"
    PRIVATE = "private"
    STORE = "store"
    SHARED = "shared"


def source_in_flight(entry: Entry, position: int, aboard: Flight | None) -> SegmentSource | None:
    """The first three lines of the table, which need no look at the disk; None: one of the others. ``aboard``: what the reader follows."""
    if aboard is not None and not entry.ranged and aboard.error is None and (aboard.position > position or not aboard.done):
        return SegmentSource.SAME_FLIGHT
    stream = entry.in_use.stream
    if stream is None or not stream.once or stream.done:
        return None
    if stream.reaches(position):
        return SegmentSource.ONE_BODY
    return None if position else SegmentSource.PRIVATE


def source_of_segment(entry: Entry, index: int) -> SegmentSource:
    """The last three lines, of a segment that was verified if it is stored."""
    if index in entry.segments.unverified:
        return SegmentSource.PRIVATE
    return SegmentSource.STORE if entry.segments.has(index) else SegmentSource.SHARED


def foreseen_outcome(entry: Entry, position: int, end: int | None, *, joins: bool) -> RequestOutcome:
    """What the segments from ``position`` to ``end`` (exclusive; None: not known) say before anything is asked for.

    ``joins``: a flight that others asked for brings the first of them.
    """
    first = index_of(position)
    last = first if end is None else index_of(end - 1)
    stored = [entry.segments.has(index) for index in range(first, last + 1)]
    if all(stored) and end is not None:
        return RequestOutcome.HIT
    if any(stored):
        return RequestOutcome.PARTIAL
    return RequestOutcome.COLLAPSED if joins else RequestOutcome.MISS
