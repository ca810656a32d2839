"""Simulated time: what happens next, in order. Pure and deterministic: two events of one moment happen in the order they were asked for."""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["SimulatedClock"]


class SimulatedClock:
    """A heap of moments (seconds from the start) with what happens then. Called, it tells the time, as the parts it drives expect."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def __repr__(self) -> str:
        return f"<SimulatedClock {self.now:.3f} s, {len(self._heap)} to come>"

    def __call__(self) -> float:
        return self.now

    def at(self, moment: float, happens: Callable[[], None]) -> None:
        """Call ``happens`` at ``moment``, now if that is past."""
        self._serial += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._serial, happens))

    def step(self) -> bool:
        """The next event; False when nothing is to come."""
        if not self._heap:
            return False
        self.now, _, happens = heapq.heappop(self._heap)
        self.events += 1
        happens()
        return True
