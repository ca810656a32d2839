"""How a cursor goes on: past segments that are here, in the air or refused now, to the next missing one; and when that is needed. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.cursors import CacheView, OriginCursor, PrefetchRequest, ReaderCursors
from forebay_proxy.policy.schedule.lane_queues import LaneQueues
from forebay_proxy.policy.schedule.planned_readers import PlannedReaders
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["CursorWalk", "PendingShards"]


AT_ONCE = 8  # small requests in the air at one origin: 80 shards a second at 100 ms


class PendingShards:
    """Shards that are being opened or compared ahead of need, and those that cannot be: no cursor waits for one. The event loop's only.

    Stored shards that their job must compare with the origin first have a queue of their own, in the order of need, a few at once per
    origin: nothing of that waits for room or for bytes.
    """

    def __init__(self, plans: PlanRegistry, forgone: Callable[[str], None]) -> None:
        """``forgone``: who wanted a comparison left before it was asked for; another reader may still wait for the answer."""
        self.opening: set[str] = set()
        self.failed: set[str] = set()
        self.checks: set[str] = set()  # comparisons that wait or are in the air
        self._plans = plans
        self._forgone = forgone
        self._waiting: dict[str, list[tuple[float, int, str, ReaderName, int]]] = {}  # by origin
        self._in_air: dict[str, str] = {}  # shard name -> origin
        self._serial = 0

    def want_check(self, shard: Shard, plan: ReaderPlan, index: int) -> None:
        """``plan`` opens ``shard``, which is stored, at ``index``."""
        self.checks.add(shard.name)
        self._serial += 1
        heapq.heappush(self._waiting.setdefault(shard.origin, []), (plan.need_at(index), self._serial, shard.name, plan.reader, index))

    def next_check(self) -> tuple[float, ReaderPlan, Shard] | None:
        """(when needed, for whom, what) to compare now; None: nothing, or enough is in the air."""
        for origin, waiting in list(self._waiting.items()):
            in_air = sum(asked == origin for asked in self._in_air.values())
            while waiting and in_air < AT_ONCE:
                need_at, _, name, reader, index = heapq.heappop(waiting)
                plan = self._plans.get(reader)
                if plan is None or not plan.position <= index < len(plan) or self._plans.shard_at(plan, index).name != name:
                    self.checks.discard(name)
                    self._forgone(name)
                    continue
                self._in_air[name] = origin
                return need_at, plan, self._plans.shard_at(plan, index)
            if not waiting:
                del self._waiting[origin]
        return None

    def ended(self, name: str) -> None:
        """Its opening, or its comparison with the origin, is over."""
        self.opening.discard(name)
        self._in_air.pop(name, None)
        self.checks.discard(name)

    def fail(self, name: str) -> None:
        """It cannot be opened, or fetched, ahead of need."""
        self.ended(name)
        self.failed.add(name)


FRONT = 16  # shards sorted into lanes in front of the cursors: so many of a stuck origin a reader looks past
CHECKS_AHEAD = 8  # stored shards compared ahead of each reader: at 5 shards a second 1.6 s, a dozen round trips


class CursorWalk:
    """Moves cursors over plans and the cache. Not thread-safe: the event loop's only."""

    def __init__(self, readers: PlannedReaders, view: CacheView, pending: PendingShards) -> None:
        self._readers = readers
        self._view = view
        self._layout = view.layout
        self._pending = pending
        self.lanes = LaneQueues(readers.shares, self.due)

    def sort(self, cursors: ReaderCursors) -> None:
        """Sort some more of the plan into lanes."""
        lanes = cursors.lanes
        for index in range(cursors.front, min(len(cursors.plan), cursors.front + FRONT - cursors.waiting)):
            origin = cursors.shard(index).origin
            lane = lanes.get(origin) or cursors.lane(origin)
            lane.indices.append(index)  # behind all of them: the front is beyond every cursor
            cursors.front = index + 1
            if len(lane.indices) == 1 and not lane.ticket and not lane.tight:
                self.lanes.put(lane)

    def walk(self, lane: OriginCursor) -> bool:
        """Move the cursor as far as the first shard is here or on its way; whether all of it is, or is to be looked past for now."""
        cursors, index = lane.cursors, lane.indices[0]
        shard = cursors.shard(index)
        size = self._looked_past(shard, cursors, index)
        if size is not None:
            cursors.lead.uncount(index)
            cursors.lead.count(index, size)
            return True
        length = self._view.length(shard.name)
        if length is None:
            return False
        count = self._layout.count(length)
        while lane.segment < count and self._view.has(shard.name, lane.segment):
            cursors.lead.count(index, self._layout.span(lane.segment, length)[1])
            lane.segment += 1
        return lane.segment >= count

    def _looked_past(self, shard: Shard, cursors: ReaderCursors, index: int) -> int | None:
        """The bytes to count for a shard of which nothing can be asked for now; None where something can."""
        if shard.name in self._pending.failed:
            return 0
        if shard.name in self._pending.opening:
            return self._expected(cursors)
        length = self._view.length(shard.name)
        answered = index in cursors.asked and shard.name not in self._pending.checks  # once: it may be worth nothing by now
        if length is None or answered or self._view.fresh(shard.name, cursors.reader.job):
            return None
        self._want_check(shard, cursors, index)
        return length

    def _expected(self, cursors: ReaderCursors) -> int:
        """How long a shard is that is being opened: as those before it; where none is known, a quarter of the window: four are opened."""
        return self._readers.lengths.expected(cursors.reader.job, self._readers.shares.width(cursors.reader, cursors.window) // 4)

    def pass_by(self, lane: OriginCursor) -> None:
        """All of the lane's first shard is here or on its way."""
        lane.done()
        self.sort(lane.cursors)

    def ask(self, lane: OriginCursor) -> PrefetchRequest:
        """The request for what the cursor points at; the cursor moves on."""
        cursors, index, segment = lane.cursors, lane.indices[0], lane.segment
        shard, need_at, due_at = cursors.shard(index), self.need(lane), self.due(lane)
        length = self._view.length(shard.name)
        if length is None:
            self._pending.opening.add(shard.name)
            request = PrefetchRequest(cursors.plan, shard, None, need_at, self._layout.segment_bytes, due_at)
            expected = self._expected(cursors)
            cursors.lead.count(index, expected)
            if lane.job not in self._readers.lengths:
                cursors.lead.guessed(index, expected - request.size)
        else:
            request = PrefetchRequest(cursors.plan, shard, segment, need_at, self._layout.span(segment, length)[1], due_at)
            cursors.lead.count(index, request.size)
        lane.segment += 1
        self.lanes.served(lane, request.size)
        if length is None or lane.segment >= self._layout.count(length):
            self.pass_by(lane)
        self.lanes.requeue(lane)
        return request

    def look_for_checks(self, cursors: ReaderCursors) -> None:
        """Ask for a comparison of what is stored of the reader's next shards, where its job needs one."""
        plan = cursors.plan
        end = min(len(plan), plan.position + CHECKS_AHEAD)
        for index in range(cursors.checked_to, end):
            shard = cursors.shard(index)
            if self._view.length(shard.name) is not None and not self._view.fresh(shard.name, plan.reader.job):
                self._want_check(shard, cursors, index)
        cursors.checked_to = max(cursors.checked_to, end)

    def _want_check(self, shard: Shard, cursors: ReaderCursors, index: int) -> None:
        if shard.name in self._pending.checks or shard.name in self._pending.failed:
            return
        cursors.asked.add(index)
        self._pending.want_check(shard, cursors.plan, index)

    # When; in seconds of the plans' clock

    def need(self, lane: OriginCursor) -> float:
        """When what the lane's cursor points at is needed, by its reader's own rate."""
        plan, index = lane.cursors.plan, lane.indices[0]
        need_at = plan.need_at(index)
        if lane.segment:
            length = self._view.length(lane.cursors.shard(index).name) or self._layout.segment_bytes
            need_at += lane.segment / self._layout.count(length) / plan.pace.rate
        return need_at

    def due(self, lane: OriginCursor) -> float:
        """The same by the rate that the job's readers share, so that the reader with the least lead is first. Infinite for an empty lane.

        A reader's own rate tells how well it was served: a reader that is served well reads fast, its needs look near, and it is served
        again, while a reader that waits looks slow (measured: a lead of 20 segments beside one of none). So a reader's own rate counts only
        if it has never waited and is still far slower than the others.
        """
        if not lane.indices:
            return float("inf")
        cursors = lane.cursors
        pace, inside = cursors.plan.pace, cursors.inside
        since = pace.since if pace.opened_at is None else pace.opened_at
        lead = cursors.lead.known_before(lane.indices[0], inside.bytes)
        return since + lead / self._readers.rates.rate(lane.job, None if inside.has_waited else pace.rate)
