"""Where each reader's lanes stand: in the queue of their origin, among those without room, or nowhere. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from forebay_proxy.policy.schedule.cursors import OriginCursor
from forebay_proxy.policy.schedule.queues.fair_queue import FairQueue, Queued
from forebay_proxy.policy.schedule.queues.room_queue import RoomQueue
from forebay_proxy.policy.schedule.window_shares import WindowShares

__all__ = ["LaneQueues"]


class LaneQueues:
    """The queue of each origin, and the one before the disk; a lane is in one of them at most. Not thread-safe."""

    def __init__(self, shares: WindowShares, room: RoomQueue[OriginCursor], due: Callable[[OriginCursor], float]) -> None:
        """``due``: when a lane's next thing is needed now, in seconds of the plans' clock."""
        self._shares = shares
        self._due = due
        self._turns: dict[str, FairQueue] = {}  # origin -> its queue; who was served last is last
        self._room = room

    def __repr__(self) -> str:
        return f"<LaneQueues of {len(self._turns)} origins, {len(self._room)} without room>"

    def put(self, lane: OriginCursor) -> None:
        """``lane`` wants something, or its need has changed."""
        turns = self._turns.get(lane.origin)
        if turns is None:
            turns = self._turns[lane.origin] = FairQueue(cast("Callable[[Queued], float]", self._due))
        turns.put(lane)

    def requeue(self, lane: OriginCursor) -> None:
        """Put the lane where it belongs now: into the queue, at its need, if it wants something within its window."""
        if lane.tight:
            self._room.remove(lane)
        if lane.indices and self.is_within(lane):
            self.put(lane)
        else:
            self.stand_down(lane)

    def is_within(self, lane: OriginCursor) -> bool:
        """Whether the cursor of ``lane`` is within its reader's window."""
        cursors = lane.cursors
        return cursors.lead.bytes_before(lane.indices[0]) < self._shares.width(cursors.reader, cursors.window)

    def stand_down(self, lane: OriginCursor) -> None:
        """``lane`` wants nothing now."""
        if lane.tight:
            self._room.remove(lane)
        if lane.ticket:
            self._turns[lane.origin].remove(lane)

    def stand_aside(self, lane: OriginCursor) -> None:
        """There was no room for ``lane``: it waits until there may be some."""
        self.stand_down(lane)
        self._room.put(lane, self._due(lane))

    def retry(self) -> None:
        """If there may be room, the nearest of those who found none is asked for again."""
        lane = self._room.next()
        if lane is not None:
            self.requeue(lane)

    def origins(self) -> list[str]:
        """Where somebody wants something; the longest unserved first."""
        return list(self._turns)

    def nearest(self, origin: str) -> OriginCursor | None:
        """The lane whose turn it is at ``origin``; it stays where it is. None: nobody wants anything."""
        lane = cast("OriginCursor | None", self._turns[origin].nearest())
        if lane is None:
            del self._turns[origin]
        return lane

    def served(self, lane: OriginCursor, size: int) -> None:
        """``lane``'s job was given ``size`` bytes; the other origins are asked first next time."""
        turns = self._turns[lane.origin] = self._turns.pop(lane.origin)
        turns.charge(lane.job, size)
