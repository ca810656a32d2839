"""Where each lane waits: in the queue of its origin, among the lanes without room, or nowhere. Pure.

Jobs share an origin by start-time fair queueing (Goyal, Vin and Cheng 1996). Each job has a tag, the bytes it was given; the smallest tag
is next. A job that becomes active again takes the tag of the job that was served last. So no job saves up turns, and an idle job
costs the others nothing. Within a job, a heap orders lanes by need, and a popped lane gets its present need: needs mostly move away as time
passes. A lane whose need came nearer is put in again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_proxy.policy.schedule.cursors import OriginCursor
from forebay_proxy.policy.schedule.window import WindowShares

__all__ = ["FairQueue", "LaneQueues"]

MOST_JOBS = 256  # remembered per origin, unless more than that are active: clients may invent names


@dataclass(slots=True, eq=False)
class _Job:
    """One job's lanes that want something."""

    given: float = 0.0  # bytes, on a scale that all jobs share
    waiting: int = 0  # lanes whose ticket is valid
    queued: bool = False
    lanes: list[tuple[float, int, OriginCursor]] = field(default_factory=list)


class FairQueue:
    """The queue of one origin. Not thread-safe: used on the event loop alone."""

    def __init__(self, need: Callable[[OriginCursor], float]) -> None:
        """``need`` returns when a lane's next request is needed; it is called again just before the lane is served."""
        self._need = need
        self._jobs: dict[str, _Job] = {}
        self._order: list[tuple[float, int, str]] = []
        self._served = 0.0  # the tag of the job that was served last
        self._serial = 0

    def __len__(self) -> int:
        return sum(job.waiting for job in self._jobs.values())

    def put(self, lane: OriginCursor) -> None:
        """``lane`` wants something, or its need has changed."""
        job = self._jobs.get(lane.job)
        if job is None:
            if len(self._jobs) >= MOST_JOBS:
                self._jobs = {name: known for name, known in self._jobs.items() if known.queued}
            job = self._jobs[lane.job] = _Job(self._served)
        if not lane.ticket:
            job.waiting += 1
        self._place(job, lane)
        self._enrol(lane.job, job)

    def _place(self, job: _Job, lane: OriginCursor) -> None:
        self._serial += 1
        lane.ticket = self._serial
        heapq.heappush(job.lanes, (self._need(lane), self._serial, lane))
        if len(job.lanes) > 64 + 4 * job.waiting:
            job.lanes = [place for place in job.lanes if place[2].ticket == place[1]]
            heapq.heapify(job.lanes)

    def _enrol(self, name: str, job: _Job) -> None:
        if not job.queued:
            job.queued = True
            job.given = max(job.given, self._served)
            self._serial += 1
            heapq.heappush(self._order, (job.given, self._serial, name))

    def remove(self, lane: OriginCursor) -> None:
        """``lane`` wants nothing now."""
        if lane.ticket:
            lane.ticket = 0
            self._jobs[lane.job].waiting -= 1

    def nearest(self) -> OriginCursor | None:
        """The lane to serve next, which stays in the queue; None if no lane wants anything."""
        while self._order:
            given, serial, name = self._order[0]
            job = self._jobs[name]
            if given != job.given:
                heapq.heapreplace(self._order, (job.given, serial, name))
                continue
            lane = self._nearest_of(job)
            if lane is not None:
                return lane
            heapq.heappop(self._order)
            job.queued = False
            if job.given <= self._served:  # it would come back with this very tag
                del self._jobs[name]
        return None

    def _nearest_of(self, job: _Job) -> OriginCursor | None:
        while job.lanes:
            need, serial, lane = job.lanes[0]
            if lane.ticket != serial:
                heapq.heappop(job.lanes)
                continue
            now = self._need(lane)
            if now > need and len(job.lanes) > 1:
                heapq.heapreplace(job.lanes, (now, serial, lane))
                if job.lanes[0][2] is not lane:
                    continue
            return lane
        return None

    def charge(self, job_name: str, size: int) -> None:
        """Count ``size`` bytes for the job that was served."""
        job = self._jobs.get(job_name)
        if job is not None:
            self._served = max(self._served, job.given)
            job.given += size


class LaneQueues:
    """The queues of all origins, and the lanes that wait for room; a lane is in one of them at most. Not thread-safe."""

    def __init__(self, shares: WindowShares, due: Callable[[OriginCursor], float]) -> None:
        """``due`` returns when a lane's next request is needed, in seconds on the plans' clock."""
        self._shares = shares
        self._due = due
        self._turns: dict[str, FairQueue] = {}  # origin -> its queue; the one served last is last
        self.roomy = False  # whether there may be room: only then are lanes that found none tried again
        self._tight: list[tuple[float, int, OriginCursor]] = []  # lanes without room; an entry with an old number is skipped
        self._most_tight = 64  # entries, before those with old numbers are removed
        self._serial = 0

    def put(self, lane: OriginCursor) -> None:
        """``lane`` wants something, or its need has changed."""
        turns = self._turns.get(lane.origin)
        if turns is None:
            turns = self._turns[lane.origin] = FairQueue(self._due)
        turns.put(lane)

    def requeue(self, lane: OriginCursor) -> None:
        """Put the lane into its queue, at its present need, if it wants something within its window."""
        lane.tight = 0
        if lane.indices and self.is_within(lane):
            self.put(lane)
        else:
            self.dequeue(lane)

    def is_within(self, lane: OriginCursor) -> bool:
        """Whether the cursor of ``lane`` is within its reader's window."""
        cursors = lane.cursors
        return cursors.lead.bytes_before(lane.indices[0]) < self._shares.width(cursors.reader, cursors.window)

    def dequeue(self, lane: OriginCursor) -> None:
        """``lane`` wants nothing now."""
        lane.tight = 0
        if lane.ticket:
            self._turns[lane.origin].remove(lane)

    def queue_for_room(self, lane: OriginCursor) -> None:
        """There was no room for ``lane``: it waits until there may be some."""
        self.dequeue(lane)
        self._serial += 1
        lane.tight = self._serial
        heapq.heappush(self._tight, (self._due(lane), lane.tight, lane))
        if len(self._tight) > self._most_tight:
            self._tight = [place for place in self._tight if place[2].tight == place[1]]
            heapq.heapify(self._tight)
            self._most_tight = 64 + 2 * len(self._tight)

    def retry(self) -> None:
        """If there may be room, put the lane with the nearest need that found none back into its queue."""
        while self.roomy and self._tight:
            _, serial, lane = heapq.heappop(self._tight)
            if lane.tight == serial:
                self.requeue(lane)
                return

    def origins(self) -> list[str]:
        """The origins at which a lane wants something; the one unserved for longest is first."""
        return list(self._turns)

    def nearest(self, origin: str) -> OriginCursor | None:
        """The lane to serve next at ``origin``, which stays in the queue; None if no lane wants anything."""
        lane = self._turns[origin].nearest()
        if lane is None:
            del self._turns[origin]
        return lane

    def served(self, lane: OriginCursor, size: int) -> None:
        """``lane``'s job was given ``size`` bytes; the other origins come first next time."""
        turns = self._turns[lane.origin] = self._turns.pop(lane.origin)
        turns.charge(lane.job, size)
