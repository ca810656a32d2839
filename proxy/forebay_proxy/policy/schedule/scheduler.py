"""What to fetch next, ahead of need. Pure: no clock, no task, no byte; the prefetcher and ``forebay plan --replay`` drive the same class.

Every reader has a *cursor*: the first thing of its future that is neither stored nor in the air. A request is what some cursor points at:

1. An origin that takes no more now is asked for nothing; the others go on (``cursors``: a lane per reader and origin).
2. At an origin that does, jobs take turns by bytes (``lane_queues``), and within a job the reader with the least lead is first: the bytes
   from where it is to its cursor, at the rate that the job's readers share (``CursorWalk.due``).
3. A reader is given no more than its window, counted from its position to its cursor (``window``).
4. A lane for which there was no room waits until there may be some; then the nearest is tried first (``LaneQueues``).

A request is taken to be made: the cursor passes it at once, and comes back when it is ``refused``, or ``missing`` later (evicted, failed,
another version). So no segment is asked for twice, and a cursor never stays beyond something that is missing.

What plans tell between two decisions is looked at with the next one (``_catch_up``), once a reader. So no cursor moves while a plan
goes live or a shard is opened, and a reader that opens ten small shards between two decisions is looked at once.

Stored shards that their job must compare with the origin first are asked for apart (``PrefetchRequest.index`` None), a few shards ahead of
each reader and in the order of need: nothing of that waits for room or for bytes.
"""

from __future__ import annotations

from itertools import islice

from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.cursor_walk import CursorWalk, PendingShards
from forebay_proxy.policy.schedule.cursors import CacheView, OriginCursor, PrefetchRequest, ReaderCursors
from forebay_proxy.policy.schedule.planned_readers import PlannedReaders
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["CacheView", "PrefetchRequest", "PrefetchScheduler"]

STEPS = 512  # of cursors within one decision: 1 ms; a cursor that passes thousands of stored shards lets others run in between
LOOKS = 32  # at readers of which something changed, before one decision: 1 ms too where all of their plans are new


class PrefetchScheduler:
    """Whose cursor is acted on next, and what its request came to. Not thread-safe: the event loop's only."""

    def __init__(self, plans: PlanRegistry, view: CacheView) -> None:
        """It must be told of everything its methods are named after; ``PlanAdvanced`` is for ``advanced``."""
        self.readers = PlannedReaders(plans, view)
        self.has_more = False  # the last decision used up its steps: there may be more to say at once
        self._view = view
        self._pending = PendingShards(plans, self.missing)
        self._walk = CursorWalk(self.readers, view, self._pending)
        self._lanes = self._walk.lanes
        self._changed: dict[ReaderName, ReaderCursors] = {}  # to be looked at before the next decision, longest changed first
        self._last: tuple[OriginCursor, int] | None = None  # of the last request: what to come back to if it is refused

    def __repr__(self) -> str:
        return f"<PrefetchScheduler {len(self.readers)} readers>"

    # What becomes of readers

    def advanced(self, plan: ReaderPlan) -> None:
        """A reader moved, its plan was replaced, extended or withdrawn."""
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
        """It had to wait for bytes: its window grows, unless its requests find no room as it is."""
        cursors = self.readers.get(reader)
        if cursors is None:
            return
        cursors.inside.has_waited = True
        if not any(lane.tight for lane in cursors.lanes.values()):
            cursors.window.waited()
            self._changed[reader] = cursors

    def look_again(self) -> None:
        """Once a second: readers that left, or a disk with more room, leave more to each of the others; no event of theirs tells."""
        more = self.readers.shares.grown()
        for lane in [lane for cursors in self.readers.all() if cursors.reader.job in more for lane in cursors.lanes.values()]:
            if not lane.ticket and not lane.tight:
                self._lanes.requeue(lane)

    def _catch_up(self) -> bool:
        """Look at the readers of which something changed; False: there are more than one decision has time for."""
        for reader in list(islice(self._changed, LOOKS)):
            self._look(self._changed.pop(reader))
        return not self._changed

    def _look(self, cursors: ReaderCursors) -> None:
        """Something about the reader changed: its lanes stand where they belong now."""
        self._walk.sort(cursors)
        self._walk.look_for_checks(cursors)
        for lane in cursors.lanes.values():
            if not lane.tight:
                self._lanes.requeue(lane)

    # What becomes of shards

    def opened(self, name: str) -> None:
        """The opening, or the comparison, of a shard that was asked for has ended well; also when somebody else opened it."""
        self._pending.ended(name)
        self.readers.learn(name)
        self.missing(name)

    def failed(self, name: str) -> None:
        """It cannot be opened, or fetched, ahead of need: readers look past it until it is ``forgiven``."""
        self._pending.fail(name)
        self.missing(name)

    def forgiven(self, name: str) -> None:
        """It may be tried again."""
        self._pending.failed.discard(name)
        self.missing(name)

    def unopened(self, name: str) -> None:
        """There was no room for its opening: its lane waits for some."""
        self._pending.ended(name)
        self._lanes.roomy = False
        for lane in self.readers.back_to(name):
            self._lanes.queue_for_room(lane)

    def missing(self, name: str) -> None:
        """Something of the shard may be missing (evicted, its fetch failed, another version): the cursors beyond it come back to it."""
        for lane in self.readers.back_to(name):
            if not lane.tight:
                self._lanes.requeue(lane)

    # What becomes of requests

    def refused(self, reader: ReaderName) -> None:
        """There was no room for the last request, which was of this reader; it waits until there may be some."""
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
        """A segment that came ahead for the reader was read, or is gone: it may have another."""
        cursors = self.readers.get(reader)
        for lane in cursors.lanes.values() if cursors else ():
            if lane.tight:
                self._lanes.requeue(lane)

    # What to fetch

    def next(self) -> PrefetchRequest | None:
        """What to fetch next; None: nothing, or (``has_more``) nothing within this turn. Tell at once if it was ``refused``."""
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
        """Move the cursor to the next thing that is missing, within one shard; the request for it if it stood there already."""
        index, segment = lane.indices[0], lane.segment
        if not self._lanes.is_within(lane):
            self._lanes.dequeue(lane)
            return None
        if self._walk.walk(lane):
            self._walk.pass_by(lane)
        elif lane.segment == segment:
            self._last = lane, index
            return self._walk.ask(lane)
        self._lanes.requeue(lane)
        return None

    def ahead_bytes(self, reader: ReaderName) -> int:
        """How many bytes of what the reader announced are here or on their way, counted from its position as far as its window."""
        cursors = self.readers.get(reader)
        if cursors is None:
            return 0
        if self._changed.pop(reader, None) is not None:
            self._look(cursors)
        walked = 0
        while walked < len(cursors.lanes):  # what is passed may bring a shard of another origin, and so one more lane
            lane = list(cursors.lanes.values())[walked]
            walked += 1
            while lane.indices and self._lanes.is_within(lane) and self._walk.walk(lane):
                self._walk.pass_by(lane)
            if not lane.tight:
                self._lanes.requeue(lane)
        return cursors.lead.bytes
