"""What one reader still needs: a lane per origin, each with a cursor. Pure.

A *lane* holds the shards that a reader wants from one origin, in plan order. Its *cursor* is the first segment in it that is neither stored
nor being fetched. Most readers have one lane. A reader of several origins has one for each, so that a slow or failing origin delays its own
shards only. The *front* is how far the plan has been sorted into lanes: a few shards beyond the cursors, however long the plan is.
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
    """The facts about the cache that scheduling needs; ``layout``: how its shards are cut into segments."""

    layout: SegmentLayout

    def capacity(self) -> int:
        """Bytes the cache may hold."""
        ...

    def length(self, name: str) -> int | None:
        """Bytes of the version in use; None if the shard must be opened first."""
        ...

    def has(self, name: str, index: int) -> bool:
        """Whether the segment is stored or being fetched."""
        ...

    def fresh(self, name: str, job: str) -> bool:
        """Whether ``job`` may read the stored bytes without comparing them with the origin first."""
        ...

    def may_ask(self, origin: str) -> bool:
        """Whether more may be requested from ``origin`` ahead of need now."""
        ...


@dataclass(frozen=True, slots=True)
class PrefetchRequest:
    """What to fetch: a segment; with ``index`` None a shard's opening, or for a stored shard its comparison with the origin."""

    plan: ReaderPlan
    shard: Shard
    index: int | None
    need_at: float  # at the reader's own rate, like the next use of stored segments
    size: int  # bytes, if known
    due_at: float = 0.0  # at the rate that its job's readers share: decides what is fetched first


class ReaderLead:
    """Bytes that cursors have passed, by index into the reader's plan. Not thread-safe."""

    def __init__(self) -> None:
        self.passed: dict[int, int] = {}  # plan index -> bytes of it that a cursor has passed
        self.bytes = 0  # their sum
        self._guesses: dict[int, int] = {}  # plan index -> how many of the counted bytes are a guess
        self._furthest = -1  # the largest index in ``passed``, or larger

    def count(self, index: int, size: int) -> None:
        """A cursor passed ``size`` bytes of the shard at ``index``."""
        self.passed[index] = self.passed.get(index, 0) + size
        self.bytes += size
        self._furthest = max(self._furthest, index)

    def uncount(self, index: int) -> None:
        """The shard at ``index`` is checked again, or was read."""
        self.bytes -= self.passed.pop(index, 0)
        self._guesses.pop(index, None)

    def guessed(self, index: int, size: int) -> None:
        """``size`` of the bytes counted for the shard at ``index`` are a guess, which must not be compared with other readers' leads."""
        self._guesses[index] = size

    def drop_between(self, before: int, position: int) -> None:
        """The reader moved from ``before`` to ``position``: what it has passed no longer counts as lead."""
        for index in range(before, position) if position - before < len(self.passed) else list(self.passed):
            if index < position:
                self.uncount(index)

    def bytes_before(self, index: int) -> int:
        """How many counted bytes the reader needs up to and including the shard at ``index``."""
        if index >= self._furthest:
            return self.bytes
        return sum(size for passed, size in self.passed.items() if passed <= index)

    def known_before(self, index: int, inside_bytes: int) -> int:
        """``bytes_before`` plus ``inside_bytes`` of the shard that the reader is in, without guessed bytes; 0 at least."""
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
        self.tight = 0  # its number among lanes without room; 0: none

    def insert(self, index: int) -> None:
        """Something of the shard at ``index`` is missing, perhaps again."""
        place = bisect_left(self.indices, index)
        if place == 0 and self.segment:
            self.cursors.lead.uncount(self.indices[0])
            self.segment = 0
        if place == len(self.indices) or self.indices[place] != index:
            self.indices.insert(place, index)

    def done(self) -> None:
        """All of the first shard is stored or being fetched."""
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
    """The shard that a reader is in."""

    opened_at: float | None  # on the plans' clock; None: it has opened none yet
    bytes: int = 0
    has_waited: bool = False  # for bytes of this shard


class ReaderCursors:
    """One reader's lanes, and how far its plan has been sorted into them."""

    def __init__(self, plan: ReaderPlan, window: ReadAheadWindow, shard_at: Callable[[ReaderPlan, int], Shard]) -> None:
        """``shard_at`` returns the shard at an index of a plan."""
        self.plan = plan
        self.window = window
        self.lead = ReaderLead()
        self.inside = Inside(plan.pace.opened_at)
        self.position = plan.position  # when last updated
        self.front = plan.position
        self.checked_to = plan.position  # stored shards before this index have been compared with the origin if necessary
        self.asked: set[int] = set()  # the shards for which a comparison was requested, each once
        self.lanes: dict[str, OriginCursor] = {}
        self._shards: dict[int, Shard] = {}  # those in the lanes; making one from a pattern takes 10 us
        self._shard_at = shard_at

    @property
    def reader(self) -> ReaderName:
        return self.plan.reader

    @property
    def waiting(self) -> int:
        """How many shards have been sorted and not passed by a cursor."""
        return sum(len(lane.indices) for lane in self.lanes.values())

    def shard(self, index: int) -> Shard:
        """The shard at ``index``; remembered until a cursor or the reader has passed it."""
        shard = self._shards.get(index)
        if shard is None:
            shard = self._shards[index] = self._shard_at(self.plan, index)
        return shard

    def passed(self, index: int) -> None:
        """A cursor has passed the shard at ``index``."""
        self._shards.pop(index, None)

    def lane(self, origin: str) -> OriginCursor:
        """The lane for ``origin``, made at the first call."""
        found = self.lanes.get(origin)
        if found is None:
            found = self.lanes[origin] = OriginCursor(self, origin)
        return found

    def advance(self) -> None:
        """The reader moved: what it has passed no longer counts as lead."""
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
        """Something of the shard at ``index`` is missing again. Returns the lane to check again; None if no cursor had passed it."""
        if index >= self.front or index < self.position:
            return None
        self.lead.uncount(index)
        lane = self.lane(origin)
        lane.insert(index)
        return lane
