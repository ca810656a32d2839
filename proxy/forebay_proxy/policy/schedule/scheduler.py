"""What to fetch next, ahead of need. Pure: no clock, no task, no byte; the prefetcher and the simulator (``replay``) drive the same class.

Every reader has a *cursor*: the first thing of its future that is neither stored nor in the air. A request is what some cursor points at:

1. An origin that takes no more now is asked for nothing; the others go on (``cursors``: a lane per reader and origin).
2. At an origin that does, jobs take turns by bytes (``fair_queue``), and in a job the reader with the least lead is first: the bytes from
   where it is to its cursor, at the rate that the job's readers share (``job_rates``).
3. A reader is given no more than its window, counted from its position to its cursor.
4. For whom there was no room stands aside until there may be some; then the nearest is tried first, one after another.

A request is taken to be made: the cursor passes it at once, and comes back when it is ``refused``, or ``missing`` later (evicted, failed,
another version). So no segment is asked for twice, and a cursor never stays beyond something that is missing.

Stored shards that their job must compare with the origin first are asked for apart (``PrefetchRequest.index`` None), a few shards ahead of
each reader and in the order of need: nothing of that waits for room or for bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import cast

from forebay_proxy.core.segments import SEGMENT_BYTES, segment_count, segment_span
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.cursors import OriginCursor, ReaderCursors
from forebay_proxy.policy.schedule.fair_queue import FairQueue, Queued
from forebay_proxy.policy.schedule.job_rate import JobRates
from forebay_proxy.policy.schedule.request import CacheView, PrefetchRequest
from forebay_proxy.policy.schedule.revalidations import RevalidationQueue
from forebay_proxy.policy.schedule.window import ReadAheadWindow
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["CacheView", "PrefetchRequest", "PrefetchScheduler"]

FRONT = 16  # shards sorted into lanes in front of the cursors: so many of a stuck origin a reader looks past
LENGTH_WEIGHT = 0.3  # of the newest shard's length in the running mean
CHECKS_AHEAD = 8  # stored shards compared ahead of each reader: at 5 shards a second 1.6 s, a dozen round trips
STEPS = 512  # of cursors within one decision: 1 ms; a cursor that passes thousands of stored shards lets others run in between


class PrefetchScheduler:
    """All readers' cursors. Not thread-safe: the event loop's only."""

    def __init__(self, plans: PlanRegistry, view: CacheView) -> None:
        """It must be told of everything its methods are named after; ``plans.advanced`` is for ``advanced``."""
        self._plans = plans
        self._view = view
        self._cursors: dict[ReaderName, ReaderCursors] = {}
        self._fair_queue: dict[str, FairQueue] = {}
        self._job_rates = JobRates()
        self._lengths: dict[str, float] = {}  # job -> how long its shards are that were opened ahead lately
        self._tight: list[tuple[float, int, OriginCursor]] = []
        self._serial = 0
        self._roomy = False
        self._limits_seen: dict[str, int] = {}  # job -> the window of each of its readers, when it was last looked at again
        self.standing: set[ReaderName] = set()  # they stand still, and others have the room of their lead
        self._moving: dict[str, int] = {}  # job -> how many of its readers do not
        self._last: tuple[OriginCursor, int, int] | None = None  # of the last request: what to come back to if it is refused
        self._opening: set[str] = set()
        self._failed: set[str] = set()
        self._revalidations = RevalidationQueue(plans, self.missing)
        self.paused = False  # the last decision used up its steps: there may be more to say at once

    def __repr__(self) -> str:
        return f"<PrefetchScheduler {len(self._cursors)} readers, {len(self._opening)} openings, {len(self._tight)} without room>"

    def __len__(self) -> int:
        return len(self._cursors)

    # What becomes of things

    def advanced(self, plan: ReaderPlan) -> None:
        """A reader moved, its plan was replaced, extended or withdrawn."""
        mine = self._cursors.get(plan.reader)
        if self._plans.get(plan.reader) is not plan:
            if mine is not None and mine.plan is plan:
                self._drop(mine)
            return
        if mine is None or mine.plan is not plan or plan.position < mine.position:
            mine = self._begin(plan, mine)
        elif plan.position > mine.position:
            mine.behind = False
            self._passed_on(mine)
        mine.advance()
        mine.inside_bytes = self._inside(plan)
        self._look(mine)

    def _passed_on(self, cursors: ReaderCursors) -> None:
        """Its reader opened another shard: the one before took it so long."""
        plan, before = cursors.plan, cursors.opened_at
        if before is not None and plan.opened_at is not None:
            self._job_rates.took(plan.reader.job, plan.opened_at - before, cursors.inside_bytes)

    def _inside(self, plan: ReaderPlan) -> int:
        """Bytes of the shard the reader is in; 0 before the first."""
        if plan.opened_at is None or not plan.position:
            return 0
        length = self._view.length(self._plans.shard_at(plan, plan.position - 1).name)
        return int(self._lengths.get(plan.reader.job, SEGMENT_BYTES)) if length is None else length

    def _begin(self, plan: ReaderPlan, before: ReaderCursors | None) -> ReaderCursors:
        if before is not None:
            self._drop(before)
        job = plan.reader.job
        if plan.reader not in self.standing:
            self._moving[job] = self._moving.get(job, 0) + 1
        cursors = ReaderCursors(plan, before.window if before else ReadAheadWindow(self._limit(job)))
        self._cursors[plan.reader] = cursors
        return cursors

    def _drop(self, cursors: ReaderCursors) -> None:
        del self._cursors[cursors.reader]
        if cursors.reader not in self.standing:
            self._stops(cursors.reader.job)
        for lane in cursors.lanes.values():
            self._stand_down(lane)
        if self._last is not None and self._last[0].cursors is cursors:
            self._last = None
        if not self._cursors:
            self._job_rates.clear()
            self._lengths.clear()

    def opened(self, name: str) -> None:
        """The opening, or the comparison, of a shard that was asked for has ended well; also when somebody else opened it."""
        self._ended(name)
        length = self._view.length(name)
        if length is not None:
            for plan, _ in self._plans.mentions(name):
                before = self._lengths.get(plan.reader.job, length)
                self._lengths[plan.reader.job] = before + LENGTH_WEIGHT * (length - before)
        self.missing(name)

    def failed(self, name: str) -> None:
        """It cannot be opened, or fetched, ahead of need: readers look past it until it is ``forgiven``."""
        self._ended(name)
        self._failed.add(name)
        self.missing(name)

    def forgiven(self, name: str) -> None:
        """It may be tried again."""
        self._failed.discard(name)
        self.missing(name)

    def _ended(self, name: str) -> None:
        self._opening.discard(name)
        self._revalidations.ended(name)

    def evicted(self, name: str, index: int) -> None:
        """A segment left the cache, or its flight failed."""
        self.missing(name)

    def unopened(self, name: str) -> None:
        """There was no room for its opening: who wanted it stands aside."""
        self._ended(name)
        self._roomy = False
        for lane in self._back_to(name):
            self._stand_aside(lane)

    def missing(self, name: str) -> None:
        """Something of the shard may be missing: the cursors beyond it come back to it."""
        for lane in self._back_to(name):
            if not lane.tight:
                self._requeue(lane)

    def _back_to(self, name: str) -> list[OriginCursor]:
        """The lanes whose cursors have come back to the shard."""
        found = ((self._cursors.get(plan.reader), plan, index) for plan, index in self._plans.mentions(name))
        lanes = (cursors.fall_back(index, self._plans.shard_at(plan, index).origin) for cursors, plan, index in found if cursors)
        return [lane for lane in lanes if lane is not None]

    def waited(self, reader: ReaderName) -> None:
        """It had to wait for bytes: its window grows, unless its requests find no room as it is."""
        cursors = self._cursors.get(reader)
        if cursors is None:
            return
        cursors.behind = True
        if not any(lane.tight for lane in cursors.lanes.values()):
            cursors.window.waited()
            self._look(cursors)

    def refused(self, reader: ReaderName) -> None:
        """There was no room for the last request, which was of this reader; it stands aside until there may be some."""
        if self._last is None or self._last[0].cursors.reader != reader:
            return
        lane, index, _ = self._last
        self._last = None
        self._roomy = False
        lane.cursors.window.refused()
        name = self._plans.shard_at(lane.cursors.plan, index).name
        self._opening.discard(name)
        lane.cursors.uncount(index)
        lane.insert(index)
        self._stand_aside(lane)

    def _stand_aside(self, lane: OriginCursor) -> None:
        self._stand_down(lane)
        self._serial += 1
        lane.tight = self._serial
        heapq.heappush(self._tight, (self._due(lane), lane.tight, lane))
        if len(self._tight) > 64 + 4 * len(self._cursors):
            self._tight = [place for place in self._tight if place[2].tight == place[1]]
            heapq.heapify(self._tight)

    def taken(self, request: PrefetchRequest) -> None:
        """There was room for the last request."""
        cursors = self._cursors.get(request.plan.reader)
        if cursors is not None:
            cursors.window.granted(request.size)

    def room(self) -> None:
        """Something was read, removed or replaced: who found no room may find some."""
        self._roomy = True

    def look_again(self) -> None:
        """Once a second: readers that left, or a disk with more room, leave more to each of the others; no event of theirs tells."""
        limits = {job: self._limit(job) for job in self._moving}
        more = {job for job, limit in limits.items() if limit > self._limits_seen.get(job, 0)}
        for lane in [lane for cursors in self._cursors.values() if cursors.reader.job in more for lane in cursors.lanes.values()]:
            if not lane.ticket and not lane.tight:
                self._requeue(lane)
        self._limits_seen = limits

    def pause(self, reader: ReaderName) -> None:
        """The reader stands still, and others have the room of its lead: nothing is fetched for it until ``go_on``."""
        if reader in self.standing:
            return
        self.standing.add(reader)
        cursors = self._cursors.get(reader)
        if cursors is not None:
            self._stops(reader.job)
            for lane in cursors.lanes.values():
                self._stand_down(lane)

    def go_on(self, reader: ReaderName) -> None:
        """It moves again, or is gone."""
        if reader not in self.standing:
            return
        self.standing.discard(reader)
        cursors = self._cursors.get(reader)
        if cursors is not None:
            self._moving[reader.job] = self._moving.get(reader.job, 0) + 1
            self._look(cursors)

    def _stops(self, job: str) -> None:
        self._moving[job] -= 1
        if not self._moving[job]:
            del self._moving[job]

    def settled(self, reader: ReaderName) -> None:
        """A segment that stood where a needed one stood was read, or is gone: its reader may have another."""
        cursors = self._cursors.get(reader)
        for lane in cursors.lanes.values() if cursors else ():
            if lane.tight:
                self._requeue(lane)

    # What to fetch

    def next(self) -> PrefetchRequest | None:
        """What to fetch next; None: nothing, or (``paused``) nothing within this turn. Tell at once if it was ``refused``."""
        self.paused = False
        self._last = None
        self._try_tight()
        asked = self._revalidations.next()
        if asked is not None:
            need_at, plan, shard = asked
            return PrefetchRequest(plan, shard, None, need_at, 0, need_at)
        steps = STEPS
        for origin in list(self._fair_queue):
            fair_queue = self._fair_queue[origin]
            while self._view.takes(origin):
                lane = cast("OriginCursor | None", fair_queue.nearest())
                if lane is None:
                    del self._fair_queue[origin]
                    break
                request = self._step(lane)
                if request is not None:
                    self._fair_queue[origin] = self._fair_queue.pop(origin)  # the other origins are asked first next time
                    return request
                steps -= 1
                if steps <= 0:
                    self.paused = True
                    return None
        return None

    def ahead_bytes(self, reader: ReaderName) -> int:
        """How many bytes of what the reader announced are here or on their way, counted from its position as far as its window."""
        cursors = self._cursors.get(reader)
        if cursors is None:
            return 0
        for lane in cursors.lanes.values():
            while lane.indices and cursors.bytes_before(lane.indices[0]) < self._window(cursors) and self._walk(lane):
                self._pass(lane)
            if not lane.tight:
                self._requeue(lane)
        return cursors.ahead_bytes

    def window_bytes(self, reader: ReaderName) -> int:
        """How far ahead the reader's window goes; 0 for a reader without a plan."""
        cursors = self._cursors.get(reader)
        return cursors.window.bytes if cursors else 0

    # Cursors

    def _step(self, lane: OriginCursor) -> PrefetchRequest | None:
        """Move the cursor to the next thing that is missing, within one shard; the request for it if it stood there already."""
        cursors, index, segment = lane.cursors, lane.indices[0], lane.segment
        if cursors.bytes_before(index) >= self._window(cursors):
            self._stand_down(lane)
            return None
        if self._walk(lane):
            self._pass(lane)
        elif lane.segment == segment:
            return self._ask(lane, index)
        self._requeue(lane)
        return None

    def _walk(self, lane: OriginCursor) -> bool:
        """Move the cursor as far as the first shard is here or on its way; whether all of it is, or is to be looked past for now."""
        cursors, index = lane.cursors, lane.indices[0]
        shard = self._shard(cursors, index)
        size = self._looked_past(shard, cursors, index)
        if size is not None:
            cursors.uncount(index)
            cursors.count(index, size)
            return True
        length = self._view.length(shard.name)
        if length is None:
            return False
        count = segment_count(length)
        while lane.segment < count and self._view.has(shard.name, lane.segment):
            cursors.count(index, segment_span(lane.segment, length)[1])
            lane.segment += 1
        return lane.segment >= count

    def _looked_past(self, shard: Shard, cursors: ReaderCursors, index: int) -> int | None:
        """The bytes to count for a shard of which nothing can be asked for now; None where something can."""
        if shard.name in self._failed:
            return 0
        if shard.name in self._opening:
            return self._expected(cursors)
        length = self._view.length(shard.name)
        answered = index in cursors.asked and shard.name not in self._revalidations  # once: the answer may be worth nothing by now
        if length is None or answered or self._view.fresh(shard.name, cursors.reader.job):
            return None
        self._want_check(shard, cursors, index)
        return length

    def _expected(self, cursors: ReaderCursors) -> int:
        """How long a shard is that is being opened: as those before it; where none is known, a quarter of the window: four are opened."""
        known = self._lengths.get(cursors.reader.job)
        return self._window(cursors) // 4 if known is None else int(known)

    def _ask(self, lane: OriginCursor, index: int) -> PrefetchRequest:
        """The request for what the cursor points at; the cursor moves on."""
        cursors, segment, need_at, due_at = lane.cursors, lane.segment, self._need(lane), self._due(lane)
        shard = self._shard(cursors, index)
        length = self._view.length(shard.name)
        if length is None:
            self._opening.add(shard.name)
            request = PrefetchRequest(cursors.plan, shard, None, need_at, SEGMENT_BYTES, due_at)
            expected = self._expected(cursors)
            cursors.count(index, expected)
            if lane.job not in self._lengths:
                cursors.guesses[index] = expected - request.size  # no lead that others could be compared with
        else:
            request = PrefetchRequest(cursors.plan, shard, segment, need_at, segment_span(segment, length)[1], due_at)
            cursors.count(index, request.size)
        lane.segment += 1
        self._fair_queue[lane.origin].charge(lane.job, request.size)
        if length is None or lane.segment >= segment_count(length):
            self._pass(lane)
        self._requeue(lane)
        self._last = lane, index, request.size
        return request

    def _pass(self, lane: OriginCursor) -> None:
        """All of the lane's first shard is here or on its way."""
        lane.done()
        self._sort(lane.cursors)

    def _shard(self, cursors: ReaderCursors, index: int) -> Shard:
        shard = cursors.shards.get(index)
        if shard is None:
            shard = cursors.shards[index] = self._plans.shard_at(cursors.plan, index)
        return shard

    def _sort(self, cursors: ReaderCursors) -> None:
        """Sort some more of the plan into lanes."""
        plan = cursors.plan
        waiting = cursors.waiting
        while waiting < FRONT and cursors.front < len(plan):
            lane = cursors.lane(self._shard(cursors, cursors.front).origin)
            lane.insert(cursors.front)
            cursors.front += 1
            waiting += 1
            if len(lane.indices) == 1 and not lane.ticket and not lane.tight:
                self._put(lane)

    def _look(self, cursors: ReaderCursors) -> None:
        """Something about the reader changed: its lanes stand where they belong now."""
        self._sort(cursors)
        self._look_for_checks(cursors)
        for lane in cursors.lanes.values():
            if not lane.tight:
                self._requeue(lane)

    def _requeue(self, lane: OriginCursor) -> None:
        """Put the lane where it belongs now: into the queue, at its need, if it wants something within its window."""
        lane.tight = 0
        if lane.indices and lane.cursors.bytes_before(lane.indices[0]) < self._window(lane.cursors):
            self._put(lane)
        else:
            self._stand_down(lane)

    def _put(self, lane: OriginCursor) -> None:
        fair_queue = self._fair_queue.get(lane.origin)
        if fair_queue is None:
            fair_queue = self._fair_queue[lane.origin] = FairQueue(cast("Callable[[Queued], float]", self._due))
        fair_queue.put(lane)

    def _stand_down(self, lane: OriginCursor) -> None:
        lane.tight = 0
        if lane.ticket:
            self._fair_queue[lane.origin].remove(lane)

    # When, and how far

    def _need(self, lane: OriginCursor) -> float:
        """When what the lane's cursor points at is needed, on the plans' clock, by its reader's own rate."""
        plan, index = lane.cursors.plan, lane.indices[0]
        need_at = plan.need_at(index)
        if lane.segment:
            length = self._view.length(self._shard(lane.cursors, index).name) or SEGMENT_BYTES
            need_at += lane.segment / segment_count(length) / plan.rate
        return need_at

    def _due(self, lane: OriginCursor) -> float:
        """The same by the rate its job's readers share: whose lead is the least is first.

        A reader's own rate says how it was served. Whoever is served well measures a high one, its needs look near, and it is served again,
        while one that waits looks patient (measured: a lead of 20 segments beside one of none). Only one that is far slower though it
        never waits is slow of its own.
        """
        if not lane.indices:
            return float("inf")
        cursors = lane.cursors
        plan = cursors.plan
        since = plan.since if plan.opened_at is None else plan.opened_at
        lead = cursors.inside_bytes + cursors.bytes_before(lane.indices[0])
        if cursors.guesses:
            lead = max(0, lead - sum(cursors.guesses.values()))
        return since + lead / self._job_rates.rate(lane.job, None if cursors.behind else plan.rate)

    def _limit(self, job: str) -> int:
        """The most the window of a reader of ``job`` may be: all together never exceed half the cache, and no job has more than another."""
        return self._view.capacity() // 2 // max(1, len(self._moving)) // max(1, self._moving.get(job, 1))

    def _window(self, cursors: ReaderCursors) -> int:
        if cursors.reader in self.standing:
            return 0
        window, limit = cursors.window, self._limit(cursors.reader.job)
        if window.shared_bytes != limit:
            window.limit(limit)
        return window.bytes

    # No room

    def _try_tight(self) -> None:
        """If there may be room, the nearest of those who found none is asked for again."""
        while self._roomy and self._tight:
            _, serial, lane = heapq.heappop(self._tight)
            if lane.tight == serial:
                self._requeue(lane)
                return

    # Comparing what is stored with the origin

    def _look_for_checks(self, cursors: ReaderCursors) -> None:
        plan = cursors.plan
        end = min(len(plan), plan.position + CHECKS_AHEAD)
        for index in range(cursors.checked_to, end):
            shard = self._shard(cursors, index)
            if self._view.length(shard.name) is not None and not self._view.fresh(shard.name, plan.reader.job):
                self._want_check(shard, cursors, index)
        cursors.checked_to = max(cursors.checked_to, end)

    def _want_check(self, shard: Shard, cursors: ReaderCursors, index: int) -> None:
        if shard.name in self._revalidations or shard.name in self._failed:
            return
        cursors.asked.add(index)
        self._revalidations.want(shard, cursors.plan, index)
