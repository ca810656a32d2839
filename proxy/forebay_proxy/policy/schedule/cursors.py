"""What one reader still lacks of its future: a lane per origin, each with a cursor. Pure.

A *lane* holds what a reader wants of one origin, in plan order; its *cursor* is the first thing in it that is neither stored nor in the
air. Most readers have one lane. One that mixes origins has several, so that an origin that is slow or refuses holds up its own shards
only. The *front* is how far the plan has been sorted into lanes: a few shards beyond the cursors, however long the plan is.
"""

from __future__ import annotations

from bisect import bisect_left

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import ReaderPlan
from forebay_proxy.policy.schedule.window import ReadAheadWindow
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["OriginCursor", "ReaderCursors"]


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
        self.tight = 0  # its place among those for whom there was no room; 0: none

    def __repr__(self) -> str:
        where = f"{self.indices[:1]} segment {self.segment}"
        return f"<OriginCursor of {self.cursors.reader} at {self.origin}: {where}, {len(self.indices)} shards>"

    def insert(self, index: int) -> None:
        """Something of the shard at ``index`` is missing (again)."""
        place = bisect_left(self.indices, index)
        if place == 0 and self.segment:
            self.cursors.uncount(self.indices[0])
            self.segment = 0
        if place == len(self.indices) or self.indices[place] != index:
            self.indices.insert(place, index)

    def done(self) -> None:
        """All of the first shard is here or on its way."""
        self.cursors.shards.pop(self.indices.pop(0), None)
        self.segment = 0

    def drop_before(self, position: int) -> None:
        """The reader is at ``position``."""
        passed = bisect_left(self.indices, position)
        if passed:
            del self.indices[:passed]
            self.segment = 0


class ReaderCursors:
    """One reader's lanes, and how many bytes ahead of it are here or on their way."""

    def __init__(self, plan: ReaderPlan, window: ReadAheadWindow) -> None:
        self.plan = plan
        self.window = window
        self.position = plan.position  # as last seen
        self.front = plan.position
        self.checked_to = plan.position  # stored shards before it have been asked to be compared
        self.asked: set[int] = set()  # those it had compared, or is waiting for: each once
        self.lanes: dict[str, OriginCursor] = {}
        self.shards: dict[int, Shard] = {}  # those in the lanes: a template's are made when asked for, 10 us each
        self.passed: dict[int, int] = {}  # plan index -> bytes of it that a cursor has passed
        self.ahead_bytes = 0  # the sum of them
        self.furthest = -1  # no index beyond it is in ``passed``
        self.behind = False  # it waited for bytes in the shard it is in
        self.guesses: dict[int, int] = {}  # plan index -> of what is counted, how much nobody knows
        self.inside_bytes = 0  # of the shard it is in
        self.opened_at = plan.opened_at  # that shard, as last seen

    def __repr__(self) -> str:
        return f"<ReaderCursors of {self.reader}: {self.ahead_bytes} bytes ahead of {self.position}, {len(self.lanes)} lanes>"

    @property
    def reader(self) -> ReaderName:
        return self.plan.reader

    @property
    def waiting(self) -> int:
        """Shards in front of the cursors that have been sorted."""
        return sum(len(lane.indices) for lane in self.lanes.values())

    def lane(self, origin: str) -> OriginCursor:
        found = self.lanes.get(origin)
        if found is None:
            found = self.lanes[origin] = OriginCursor(self, origin)
        return found

    def count(self, index: int, size: int) -> None:
        """A cursor passed ``size`` bytes of the shard at ``index``."""
        self.passed[index] = self.passed.get(index, 0) + size
        self.ahead_bytes += size
        self.furthest = max(self.furthest, index)

    def uncount(self, index: int) -> None:
        """The shard at ``index`` is looked at anew."""
        self.ahead_bytes -= self.passed.pop(index, 0)
        self.guesses.pop(index, None)

    def bytes_before(self, index: int) -> int:
        """Of what cursors have passed, how much the reader needs before the shard at ``index``, that one included."""
        if index >= self.furthest:
            return self.ahead_bytes
        return sum(size for passed, size in self.passed.items() if passed <= index)

    def advance(self) -> None:
        """The reader moved: what lies behind it is no lead any more."""
        position = self.plan.position
        for index in range(self.position, position) if position - self.position < len(self.passed) else list(self.passed):
            if index < position:
                self.uncount(index)
        for index in [index for index in self.shards if index < position]:
            del self.shards[index]
        self.asked = {index for index in self.asked if index >= position}
        for lane in self.lanes.values():
            lane.drop_before(position)
        self.position = position
        self.opened_at = self.plan.opened_at
        self.front = max(self.front, position)
        self.checked_to = max(self.checked_to, position)

    def fall_back(self, index: int, origin: str) -> OriginCursor | None:
        """Something of the shard at ``index`` is missing again; the lane to look at anew, None where nothing was counted on it."""
        if index >= self.front or index < self.position:
            return None
        self.uncount(index)
        lane = self.lane(origin)
        lane.insert(index)
        return lane
