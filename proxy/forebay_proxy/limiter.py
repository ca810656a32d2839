"""How many requests an origin takes now, and who of those waiting is next.

Additive increase, multiplicative decrease (Chiu and Jain 1989), per origin: a slot more for every round of answers that went well, half of
them after a 429, 503 or timeout, at most once a round trip. The waiting room holds flights; the next slot goes to the one with the nearest
need *when the slot frees*, so a prefetch that a reader boarded overtakes at once. A quarter of the slots takes demand only.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from forebay_proxy.pace import Pace

__all__ = ["DEMAND", "Limiter", "Limiters", "Needed", "Slot"]

# 16 connections: what one reader's 16 ranges need at once, and what S3 feeds at 50 MB/s each before anything is known (0.8 GB/s).
START_SLOTS = 16
MIN_SLOTS = 2  # one for demand, one for the rest: a throttled origin is still asked
DEMAND = 1_000.0  # needs below this are a reader's own; a prefetch's need is at or above it


class Needed(Protocol):
    """What the waiting room asks of a flight: how soon it is needed, read when a slot frees."""

    @property
    def need(self) -> float: ...


class Slot:
    """One request's place. A bypass gives it up early: it moves at its reader's pace, and a slow reader slows only itself."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter: Limiter | None = limiter

    def leave(self) -> None:
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.in_flight -= 1
            limiter.wake()


class Limiter:
    """The slots of one origin."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most = max(MIN_SLOTS, most)
        self.slots = float(min(START_SLOTS, self.most))
        self.in_flight = 0
        self.pace = Pace()
        self._clock = clock
        self._waiting: dict[asyncio.Future[None], Needed] = {}
        self._halved_at = -1.0

    def __repr__(self) -> str:
        return f"<Limiter {self.in_flight}/{int(self.slots)} in flight, {len(self._waiting)} waiting>"

    @asynccontextmanager
    async def slot(self, flight: Needed) -> AsyncIterator[Slot]:
        """Wait for this flight's turn; hold one request's place for the length of the ``async with``, or until ``leave``."""
        if self._room(flight) and not any(waiting.need <= flight.need for waiting in self._waiting.values()):
            self.in_flight += 1
        else:
            await self._wait(flight)
        slot = Slot(self)
        try:
            yield slot
        finally:
            slot.leave()

    async def _wait(self, flight: Needed) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = flight
        self.wake()
        try:
            await turn  # whoever wakes us has counted us already
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came together with the cancellation: hand it on
                self.in_flight -= 1
                self.wake()
            raise
        finally:
            self._waiting.pop(turn, None)

    def _room(self, flight: Needed) -> bool:
        reserved = 0 if flight.need < DEMAND else max(1, int(self.slots) // 4)
        return self.in_flight < max(1, int(self.slots) - reserved)

    def wake(self) -> None:
        """Give free slots to those with the nearest need."""
        waiting = [turn for turn in self._waiting if not turn.done()]
        waiting.sort(key=lambda turn: self._waiting[turn].need)
        for turn in waiting:
            if not self._room(self._waiting[turn]):
                return
            self.in_flight += 1
            turn.set_result(None)

    def went_well(self) -> None:
        """A request was answered: one slot more per round of them, while the slots are in use."""
        if self.in_flight >= int(self.slots) - 1:
            self.slots = min(float(self.most), self.slots + 1.0 / self.slots)
            if self._waiting:
                self.wake()

    def throttled(self) -> None:
        """The origin pushed back (429, 503, SlowDown, timeout): half the slots, at most once a second."""
        now = self._clock()
        if now - self._halved_at >= 1.0:
            self._halved_at = now
            self.slots = max(float(MIN_SLOTS), self.slots / 2)


class Limiters:
    """A limiter per origin, made when first asked for."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._limiters: dict[str, Limiter] = {}

    def of(self, origin: str) -> Limiter:
        if origin not in self._limiters:
            self._limiters[origin] = Limiter(self._most, self._clock)
        return self._limiters[origin]

    def in_flight(self) -> dict[str, int]:
        """Requests in the air per origin."""
        return {origin: limiter.in_flight for origin, limiter in self._limiters.items()}
