"""What one reader still lacks of its future: a lane per origin, each with a cursor. Pure.

A *lane* holds what a reader wants of one origin, in plan order; its *cursor* is the first thing in it that is neither stored nor in the
air. Most readers have one lane. A reader of several origins has one for each, so that a slow or refusing origin holds up its own shards
only. The *front* is how far the plan has been sorted into lanes: a few shards beyond the cursors, however long the plan is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import ReaderPlan
from forebay_proxy.policy.schedule.window import ReadAheadWindow
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["CacheView", "Inside", "OriginCursor", "PrefetchRequest", "ReaderCursors", "ReaderLead"]


class CacheView(Protocol):
    """What must be known of the cache; ``layout``: how its shards are cut."""

    layout: SegmentLayout

    def capacity(self) -> int:
        """Bytes the cache may hold."""
        ...

    def length(self, name: str) -> int | None:
        """Bytes of the version in use; None: it must be opened first."""
        ...

    def has(self, name: str, index: int) -> bool:
        """Whether the segment is stored or in the air."""
        ...

    def fresh(self, name: str, job: str) -> bool:
        """Whether ``job`` may read what is stored without comparing it with the origin first."""
        ...

    def may_ask(self, origin: str) -> bool:
        """Whether more may be asked of ``origin`` ahead of need now."""
        ...


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """What to fetch: a segment, or with ``index`` None a shard's opening (where it is stored: its comparison with the origin)."""

    plan: ReaderPlan
    shard: Shard
    index: int | None
    need_at: float  # by the reader's own rate, as all that is stored is reckoned
    size: int  # bytes, as far as known
    due_at: float = 0.0  # by the rate its job's readers share: what is fetched first


class ReaderLead:
    """Bytes that cursors have passed, by index into the reader's plan. Not thread-safe."""

    def __init__(self) -> None:
        self.passed: dict[int, int] = {}  # plan index -> bytes of it that a cursor has passed
        self.bytes = 0  # the sum of them
        self._guesses: dict[int, int] = {}  # plan index -> of what is counted, how many bytes nobody knows
        self._furthest = -1  # no index beyond it is in ``passed``

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


class OriginCursor:
    """What a reader wants of one origin: ``indices`` into its plan, nearest first, and ``segment``, the cursor in the first of them."""

    __slots__ = ("cursors", "indices", "job", "origin", "segment", "ticket", "tight")

    def __init__(self, cursors: ReaderCursors, origin: str) -> None:
        self.cursors = cursors
        self.job = cursors.plan.reader.job
        self.origin = origin
        self.indices: list[int] = []
        self.segment = 0
        self.ticket = 0
        self.tight = 0  # its place among readers without room; 0: none

    def insert(self, index: int) -> None:
        """Something of the shard at ``index`` is missing (again)."""
        place = bisect_left(self.indices, index)
        if place == 0 and self.segment:
            self.cursors.lead.uncount(self.indices[0])
            self.segment = 0
        if place == len(self.indices) or self.indices[place] != index:
            self.indices.insert(place, index)

    def done(self) -> None:
        """All of the first shard is here or on its way."""
        self.cursors.passed(self.indices.pop(0))
        self.segment = 0

    def drop_before(self, position: int) -> None:
        """The reader is at ``position``."""
        passed = bisect_left(self.indices, position)
        if passed:
            del self.indices[:passed]
            self.segment = 0


@dataclass(slots=True)
class Inside:
    """The shard a reader is in."""

    opened_at: float | None  # on the plans' clock; None: it has opened none yet
    bytes: int = 0
    has_waited: bool = False  # for bytes of it


class ReaderCursors:
    """One reader's lanes, and how far its plan has been looked at."""

    def __init__(self, plan: ReaderPlan, window: ReadAheadWindow, shard_at: Callable[[ReaderPlan, int], Shard]) -> None:
        """``shard_at``: what stands in a plan at an index."""
        self.plan = plan
        self.window = window
        self.lead = ReaderLead()
        self.inside = Inside(plan.pace.opened_at)
        self.position = plan.position  # as last seen
        self.front = plan.position
        self.checked_to = plan.position  # stored shards before it have been asked to be compared
        self.asked: set[int] = set()  # those it had compared, or is waiting for: each once
        self.lanes: dict[str, OriginCursor] = {}
        self._shards: dict[int, Shard] = {}  # those in the lanes: a template's are made when asked for, 10 us each
        self._shard_at = shard_at

    @property
    def reader(self) -> ReaderName:
        return self.plan.reader

    @property
    def waiting(self) -> int:
        """Shards in front of the cursors that have been sorted."""
        return sum(len(lane.indices) for lane in self.lanes.values())

    def shard(self, index: int) -> Shard:
        """What the plan opens at ``index``; remembered until a cursor or the reader has passed it."""
        shard = self._shards.get(index)
        if shard is None:
            shard = self._shards[index] = self._shard_at(self.plan, index)
        return shard

    def passed(self, index: int) -> None:
        """A cursor has passed the shard at ``index``."""
        self._shards.pop(index, None)

    def lane(self, origin: str) -> OriginCursor:
        """The lane for ``origin``, made when first asked for."""
        found = self.lanes.get(origin)
        if found is None:
            found = self.lanes[origin] = OriginCursor(self, origin)
        return found

    def advance(self) -> None:
        """The reader moved: what lies behind it is no lead any more."""
        position = self.plan.position
        self.lead.drop_between(self.position, position)
        for index in [index for index in self._shards if index < position]:
            del self._shards[index]
        self.asked = {index for index in self.asked if index >= position}
        for lane in self.lanes.values():
            lane.drop_before(position)
        self.position = position
        self.inside.opened_at = self.plan.pace.opened_at
        self.front = max(self.front, position)
        self.checked_to = max(self.checked_to, position)

    def fall_back(self, index: int, origin: str) -> OriginCursor | None:
        """Something of the shard at ``index`` is missing again; the lane to look at anew, None where nothing was counted on it."""
        if index >= self.front or index < self.position:
            return None
        self.lead.uncount(index)
        lane = self.lane(origin)
        lane.insert(index)
        return lane
