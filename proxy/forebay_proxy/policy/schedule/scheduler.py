"""Decides what to fetch next, ahead of need. Pure; the prefetcher and ``forebay plan --replay`` use the same class.

Every reader has a *cursor*: the first segment of its plan that is neither stored nor being fetched. Each request is for a cursor's segment:

1. An origin that takes no more now is asked for nothing; the others go on (``cursors``: a lane per reader and origin).
2. At each other origin, jobs take turns by bytes (``lane_queues``). Within a job, the reader with the least lead is first: the bytes
   from its position to its cursor, at the rate that the job's readers share (``_due``).
3. No reader gets more than its window, counted from its position to its cursor (``window``).
4. A lane for which there was no room waits until there may be some; then the nearest is tried first (``LaneQueues``).

A cursor passes its segment when the request is returned. It comes back if the request is ``refused``, or the segment is ``missing`` later
(evicted, failed, another version). Changes of plans are applied before the next decision (``_catch_up``), once per reader.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import islice

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.cursors import CacheView, OriginCursor, PrefetchRequest, ReaderCursors
from forebay_proxy.policy.schedule.lane_queues import LaneQueues
from forebay_proxy.policy.schedule.planned_readers import PlannedReaders
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["CacheView", "PrefetchRequest", "PrefetchScheduler"]

STEPS = 512  # cursor moves within one decision: 1 ms; a cursor that passes thousands of stored shards lets other tasks run in between
LOOKS = 32  # changed readers handled before one decision: 1 ms even if all their plans are new
FRONT = 16  # shards sorted into lanes beyond the cursors: a reader looks past so many shards of a stuck origin
CHECKS_AHEAD = 8  # stored shards compared ahead of each reader: at 5 shards per second 1.6 s, a dozen round trips
AT_ONCE = 8  # small requests running per origin: 80 shards per second at 100 ms


class PendingShards:
    """Shards that are being opened or compared ahead of need, and those that cannot be. Used on the event loop alone.

    No cursor waits for one of them. Stored shards that their job must compare with the origin first have a queue of their own, in the order
    of need, with ``AT_ONCE`` running per origin. A comparison waits neither for room nor for bytes.
    """

    def __init__(self, plans: PlanRegistry, forgone: Callable[[str], None]) -> None:
        """``forgone`` is called if the reader left before its comparison was requested; another reader may still wait for the answer."""
        self.opening: set[str] = set()
        self.failed: set[str] = set()
        self.checks: set[str] = set()  # comparisons that wait or are running
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
        """The next comparison: (when needed, for whom, what). None if there is none, or enough are running."""
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
        """The shard's opening, or its comparison with the origin, is over."""
        self.opening.discard(name)
        self._in_air.pop(name, None)
        self.checks.discard(name)

    def fail(self, name: str) -> None:
        """The shard cannot be opened, or fetched, ahead of need."""
        self.ended(name)
        self.failed.add(name)


class PrefetchScheduler:
    """Chooses the cursor to serve next, and takes the result of its request. Not thread-safe: used on the event loop alone."""

    def __init__(self, plans: PlanRegistry, view: CacheView) -> None:
        """The caller must report everything that the methods are named after; ``PlanAdvanced`` goes to ``advanced``."""
        self.readers = PlannedReaders(plans, view)
        self.has_more = False  # the last decision used up its steps: call ``next`` again soon
        self._view = view
        self._layout = view.layout
        self._pending = PendingShards(plans, self.missing)
        self._lanes = LaneQueues(self.readers.shares, self._due)
        self._changed: dict[ReaderName, ReaderCursors] = {}  # readers to update before the next decision, the longest changed first
        self._last: tuple[OriginCursor, int] | None = None  # of the last request: where to come back to if it is refused

    def __repr__(self) -> str:
        return f"<PrefetchScheduler {len(self.readers)} readers>"

    # Changes of readers

    def advanced(self, plan: ReaderPlan) -> None:
        """A reader moved, or its plan was replaced, extended or withdrawn."""
        over, mine = self.readers.advanced(plan)
        if over is not None:
            for lane in over.lanes.values():
                self._lanes.dequeue(lane)
            self._changed.pop(plan.reader, None)
            if self._last is not None and self._last[0].cursors is over:
                self._last = None
        if mine is not None:
            self._changed[plan.reader] = mine

    def waited(self, reader: ReaderName) -> None:
        """The reader had to wait for bytes: its window grows, unless its requests find no room already."""
        cursors = self.readers.get(reader)
        if cursors is None:
            return
        cursors.inside.has_waited = True
        if not any(lane.tight for lane in cursors.lanes.values()):
            cursors.window.waited()
            self._changed[reader] = cursors

    def look_again(self) -> None:
        """Call once a second: readers that left, or a disk with more room, leave larger shares to the others. No event reports that."""
        more = self.readers.shares.grown()
        for lane in [lane for cursors in self.readers.all() if cursors.reader.job in more for lane in cursors.lanes.values()]:
            if not lane.ticket and not lane.tight:
                self._lanes.requeue(lane)

    def _catch_up(self) -> bool:
        """Update the changed readers. Returns False if there are more than one decision has time for."""
        for reader in list(islice(self._changed, LOOKS)):
            self._look(self._changed.pop(reader))
        return not self._changed

    def _look(self, cursors: ReaderCursors) -> None:
        """Update the reader's lanes after a change."""
        self._sort(cursors)
        self._look_for_checks(cursors)
        for lane in cursors.lanes.values():
            if not lane.tight:
                self._lanes.requeue(lane)

    # Changes of shards

    def opened(self, name: str) -> None:
        """The opening or comparison of a shard succeeded, also if somebody else opened it."""
        self._pending.ended(name)
        self.readers.learn(name)
        self.missing(name)

    def failed(self, name: str) -> None:
        """The shard cannot be opened, or fetched, ahead of need: readers skip it until it is ``forgiven``."""
        self._pending.fail(name)
        self.missing(name)

    def forgiven(self, name: str) -> None:
        """The shard may be tried again."""
        self._pending.failed.discard(name)
        self.missing(name)

    def unopened(self, name: str) -> None:
        """There was no room for the shard's opening: its lane waits for some."""
        self._pending.ended(name)
        self._lanes.roomy = False
        for lane in self.readers.back_to(name):
            self._lanes.queue_for_room(lane)

    def missing(self, name: str) -> None:
        """Something of the shard may be missing (evicted, its fetch failed, another version): the cursors beyond it come back to it."""
        for lane in self.readers.back_to(name):
            if not lane.tight:
                self._lanes.requeue(lane)

    # Results of requests

    def refused(self, reader: ReaderName) -> None:
        """There was no room for the last request, which was for this reader. It waits until there may be some."""
        if self._last is None or self._last[0].cursors.reader != reader:
            return
        lane, index = self._last
        self._last = None
        self._lanes.roomy = False
        lane.cursors.window.refused()
        self._pending.opening.discard(lane.cursors.shard(index).name)
        lane.cursors.lead.uncount(index)
        lane.insert(index)
        self._lanes.queue_for_room(lane)

    def granted(self, request: PrefetchRequest) -> None:
        """There was room for the last request."""
        cursors = self.readers.get(request.plan.reader)
        if cursors is not None:
            cursors.window.granted(request.size)

    def room(self) -> None:
        """Something was read, removed or replaced: lanes that found no room may find some."""
        self._lanes.roomy = True

    def caught_up(self, reader: ReaderName) -> None:
        """A segment that came ahead for the reader was read or has left: it may have another."""
        cursors = self.readers.get(reader)
        for lane in cursors.lanes.values() if cursors else ():
            if lane.tight:
                self._lanes.requeue(lane)

    # What to fetch

    def next(self) -> PrefetchRequest | None:
        """What to fetch next; None if there is nothing, or (``has_more``) nothing within this call.

        Call ``refused`` at once if it finds no room.
        """
        self._last = None
        self.has_more = not self._catch_up()
        if self.has_more:
            return None
        self._lanes.retry()
        asked = self._pending.next_check()
        if asked is not None:
            need_at, plan, shard = asked
            return PrefetchRequest(plan, shard, None, need_at, 0, need_at)
        steps = STEPS
        for origin in self._lanes.origins():
            while self._view.may_ask(origin) and (lane := self._lanes.nearest(origin)) is not None:
                request = self._step(lane)
                if request is not None:
                    return request
                steps -= 1
                if steps <= 0:
                    self.has_more = True
                    return None
        return None

    def _step(self, lane: OriginCursor) -> PrefetchRequest | None:
        """Move the cursor to the next missing segment, within one shard. Returns its request if the cursor was there already."""
        index, segment = lane.indices[0], lane.segment
        if not self._lanes.is_within(lane):
            self._lanes.dequeue(lane)
            return None
        if self._walk(lane):
            self._pass_by(lane)
        elif lane.segment == segment:
            self._last = lane, index
            return self._ask(lane)
        self._lanes.requeue(lane)
        return None

    # How a cursor moves: past segments that are stored, being fetched or refused now, to the next missing one

    def _sort(self, cursors: ReaderCursors) -> None:
        """Sort some more of the plan into lanes."""
        lanes = cursors.lanes
        for index in range(cursors.front, min(len(cursors.plan), cursors.front + FRONT - cursors.waiting)):
            origin = cursors.shard(index).origin
            lane = lanes.get(origin) or cursors.lane(origin)
            lane.indices.append(index)  # at the end: the front is beyond every cursor
            cursors.front = index + 1
            if len(lane.indices) == 1 and not lane.ticket and not lane.tight:
                self._lanes.put(lane)

    def _walk(self, lane: OriginCursor) -> bool:
        """Move the cursor as far as the first shard is stored or being fetched.

        Returns whether that is all of it, or the shard is to be skipped now.
        """
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
        """The bytes to count for a shard of which nothing can be requested now; None if something can."""
        if shard.name in self._pending.failed:
            return 0
        if shard.name in self._pending.opening:
            return self._expected(cursors)
        length = self._view.length(shard.name)
        answered = index in cursors.asked and shard.name not in self._pending.checks  # requested once: the answer may be out of date by now
        if length is None or answered or self._view.fresh(shard.name, cursors.reader.job):
            return None
        self._want_check(shard, cursors, index)
        return length

    def _expected(self, cursors: ReaderCursors) -> int:
        """The expected length of a shard that is being opened: as earlier shards, else a quarter of the window (so four are opened)."""
        return self.readers.rates.expected(cursors.reader.job, self.readers.shares.width(cursors.reader, cursors.window) // 4)

    def _pass_by(self, lane: OriginCursor) -> None:
        """All of the lane's first shard is stored or being fetched."""
        lane.done()
        self._sort(lane.cursors)

    def _ask(self, lane: OriginCursor) -> PrefetchRequest:
        """The request for the cursor's segment; the cursor moves on."""
        cursors, index, segment = lane.cursors, lane.indices[0], lane.segment
        shard, need_at, due_at = cursors.shard(index), self._need(lane), self._due(lane)
        length = self._view.length(shard.name)
        if length is None:
            self._pending.opening.add(shard.name)
            request = PrefetchRequest(cursors.plan, shard, None, need_at, self._layout.segment_bytes, due_at)
            expected = self._expected(cursors)
            cursors.lead.count(index, expected)
            if lane.job not in self.readers.rates.lengths:
                cursors.lead.guessed(index, expected - request.size)
        else:
            request = PrefetchRequest(cursors.plan, shard, segment, need_at, self._layout.span(segment, length)[1], due_at)
            cursors.lead.count(index, request.size)
        lane.segment += 1
        self._lanes.served(lane, request.size)
        if length is None or lane.segment >= self._layout.count(length):
            self._pass_by(lane)
        self._lanes.requeue(lane)
        return request

    def _look_for_checks(self, cursors: ReaderCursors) -> None:
        """Request comparisons of the reader's next shards, if they are stored and its job needs one."""
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

    # Times, in seconds on the plans' clock

    def _need(self, lane: OriginCursor) -> float:
        """When the cursor's segment is needed, at its reader's own rate."""
        plan, index = lane.cursors.plan, lane.indices[0]
        need_at = plan.need_at(index)
        if lane.segment:
            length = self._view.length(lane.cursors.shard(index).name) or self._layout.segment_bytes
            need_at += lane.segment / self._layout.count(length) / plan.pace.rate
        return need_at

    def _due(self, lane: OriginCursor) -> float:
        """When it is needed at the rate that the job's readers share; infinity for an empty lane. The reader with the least lead is first.

        A reader's own rate depends on how well it was served. A well-served reader reads fast, so its needs look near and it is served
        again, while a reader that waits looks slow (measured: a lead of 20 segments against none). So a reader's own rate counts only if it
        has never waited and is still far slower than the others.
        """
        if not lane.indices:
            return float("inf")
        cursors = lane.cursors
        pace, inside = cursors.plan.pace, cursors.inside
        since = pace.since if pace.opened_at is None else pace.opened_at
        lead = cursors.lead.known_before(lane.indices[0], inside.bytes)
        return since + lead / self.readers.rates.rate(lane.job, None if inside.has_waited else pace.rate)

    def ahead_bytes(self, reader: ReaderName) -> int:
        """How many announced bytes are stored or being fetched, from the reader's position to the end of its window."""
        cursors = self.readers.get(reader)
        if cursors is None:
            return 0
        if self._changed.pop(reader, None) is not None:
            self._look(cursors)
        walked = 0
        while walked < len(cursors.lanes):  # passing a shard may add a lane for another origin
            lane = list(cursors.lanes.values())[walked]
            walked += 1
            while lane.indices and self._lanes.is_within(lane) and self._walk(lane):
                self._pass_by(lane)
            if not lane.tight:
                self._lanes.requeue(lane)
        return cursors.lead.bytes
