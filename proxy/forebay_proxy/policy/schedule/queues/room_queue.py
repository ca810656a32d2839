"""Lanes that found no room, the nearest need first: each is tried again when there may be some, one after another. Pure."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

__all__ = ["RoomQueue", "Tight"]


class Tight(Protocol):
    """What stands in the queue."""

    tight: int  # which of its places counts; 0: none


T = TypeVar("T", bound=Tight)


class RoomQueue(Generic[T]):
    """The queue before the disk. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []  # a place that is not its lane's any more is passed over
        self._serial = 0
        self._waiting = 0
        self.roomy = False  # whether there may be some room: nobody is tried before

    def __repr__(self) -> str:
        return f"<RoomQueue {len(self)} wait>"

    def __len__(self) -> int:
        return self._waiting

    def put(self, lane: T, due: float) -> None:
        """There was no room for what ``lane`` needs at ``due`` (seconds of the plans' clock)."""
        self.remove(lane)
        self._serial += 1
        self._waiting += 1
        lane.tight = self._serial
        heapq.heappush(self._heap, (due, lane.tight, lane))
        if len(self._heap) > 64 + 4 * self._waiting:
            self._heap = [place for place in self._heap if place[2].tight == place[1]]
            heapq.heapify(self._heap)

    def remove(self, lane: T) -> None:
        """``lane`` does not wait for room any more."""
        if lane.tight:
            lane.tight = 0
            self._waiting -= 1

    def next(self) -> T | None:
        """The nearest, which waits no more then; None: nobody waits, or there is no room."""
        while self.roomy and self._heap:
            _, serial, lane = heapq.heappop(self._heap)
            if lane.tight == serial:
                self.remove(lane)
                return lane
        return None
