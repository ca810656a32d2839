"""How many requests an origin takes now, and which waiting fetch is next.

Additive increase, multiplicative decrease (Chiu and Jain 1989), per origin: a slot more for every round of answers that went well, half of
them after a 429, 503 or timeout. What counts is when a request left, as in TCP's recovery (RFC 6582): those sent before the last cut say
nothing about the slots there are since, so one burst of refusals is one cut, and late good answers do not undo it. The waiting room holds
fetches; the next slot goes to the one with the nearest need *when the slot frees*, so a prefetch that a reader joined overtakes at once. A
quarter of the slots takes demand only. Slots bound what the origin answers. Where its line is full before that (``bandwidth``), fetches
that no reader waits for now are held back.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from forebay_proxy.transfer.bandwidth import BandwidthEstimate, ConnectionRate

__all__ = ["AHEAD", "Limiter", "Limiters", "Slot", "SlotNeed"]

# 16 connections: what one reader's 16 ranges need at once, and what S3 feeds at 50 MB/s each before anything is known (0.8 GB/s).
START_SLOTS = 16
MIN_SLOTS = 2  # one for demand, one for the rest: a throttled origin is still asked
# What does not fill the line must not keep others from it: a body that takes longer than SLOW_S drips (a segment at less than 0.3 MB/s),
# and where no byte has come for STILL_S, whatever is in the air waits for something else than the line.
SLOW_S = 30.0
STILL_S = 1.0
AHEAD_WAITING = 2  # where the line is what ends first: the next ones stand ready, and hold room
MOST_ORIGINS = 256  # remembered at once, unless more than that are being asked
# A need is an urgency: the lower, the sooner.
WAITED = 1.0  # below it: of a segment that a reader is in, who may be waiting
AHEAD = 1_000.0  # from it on: a prefetch, ahead of any reader's need; below it: a reader's own


class SlotNeed(Protocol):
    """What the waiting room asks of a fetch: how soon it is needed, read when a slot frees."""

    @property
    def need(self) -> float: ...


class Slot:
    """One request's place. A bypass gives it up early: it moves at its reader's pace, and a slow reader slows only itself."""

    def __init__(self, limiter: Limiter, fetch: SlotNeed) -> None:
        self.fetch = fetch
        self.body_since: float | None = None
        self._limiter = limiter
        self._cuts = limiter.cuts  # when it left
        limiter.held.add(self)

    def brings_bytes(self) -> None:
        """Its request is for a body: how much comes while it is in the air says what the line carries."""
        self.body_since = self._limiter.clock()
        self._limiter.bandwidth.asked(self.body_since)

    def leave(self) -> None:
        """Free the slot, once; the next waiting fetch gets it."""
        if self in self._limiter.held:
            self._limiter.held.remove(self)
            if self.body_since is not None:
                self._limiter.bandwidth.ended(self._limiter.clock())
            self._limiter.in_flight -= 1
            self._limiter.wake()

    def went_well(self) -> None:
        """The request was answered."""
        if self._cuts == self._limiter.cuts:
            self._limiter.grow(self.fetch)

    def pushed_back(self) -> None:
        """The origin wants fewer (429, 503, SlowDown, timeout)."""
        if self._cuts == self._limiter.cuts:
            self._limiter.cut()


class Limiter:
    """The slots of one origin."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = max(MIN_SLOTS, most)
        self.slots = float(min(START_SLOTS, self.most))
        self.in_flight = 0
        self.cuts = 0  # how often the slots were halved
        self.connection_rate = ConnectionRate()
        self.bandwidth = BandwidthEstimate()
        self.held: set[Slot] = set()
        self.clock = clock
        self._begun_at = 0.0  # when the first of those in the air left
        self._waiting: dict[asyncio.Future[None], SlotNeed] = {}

    def __repr__(self) -> str:
        return f"<Limiter {self.in_flight}/{int(self.slots)} in flight, {len(self._waiting)} waiting>"

    @property
    def idle(self) -> bool:
        """Whether no request is in the air and no fetch waits."""
        return not self.in_flight and not self._waiting

    @property
    def ahead(self) -> int:
        """How many requests ahead of need are worth having here at once, those that wait for a slot included.

        All slots they may have, and half as many in the waiting room: a fetch that ends is followed at once, and no more fetches wait than
        the room can be granted to. An origin that refuses has few slots, and so few waiting fetches.
        """
        slots = max(1, int(self.slots) - max(1, int(self.slots) // 4))
        most = slots + max(2, slots // 2)
        return most if self._still() else min(most, self.bandwidth.requests + AHEAD_WAITING + self._dripping())

    @asynccontextmanager
    async def slot(self, fetch: SlotNeed) -> AsyncIterator[Slot]:
        """Wait for this fetch's turn; hold one request's place for the length of the ``async with``, or until ``leave``."""
        if self._room(fetch) and not any(waiting.need <= fetch.need for waiting in self._waiting.values()):
            self._enter()
        else:
            await self._wait(fetch)
        slot = Slot(self, fetch)
        try:
            yield slot
        finally:
            slot.leave()

    async def _wait(self, fetch: SlotNeed) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = fetch
        self.wake()
        try:
            await turn  # ``wake`` has counted this fetch already
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came together with the cancellation: hand it on
                self.in_flight -= 1
                self.wake()
            raise
        finally:
            self._waiting.pop(turn, None)

    def _room(self, fetch: SlotNeed) -> bool:
        return self.in_flight < self._share(fetch) and not self._held_back(fetch)

    def _held_back(self, fetch: SlotNeed) -> bool:
        """Whether one more request would only divide the origin's bandwidth. Not for a single reader: it delays no other."""
        if fetch.need < WAITED or self.in_flight - self._dripping() < self.bandwidth.requests or self._still():
            return False
        alone = fetch.need < AHEAD and self.in_flight < START_SLOTS and sum(slot.fetch.need < WAITED for slot in self.held) < 2
        return not alone

    def _dripping(self) -> int:
        until = self.clock() - SLOW_S
        return sum(slot.body_since is not None and slot.body_since <= until for slot in self.held)

    def _still(self) -> bool:
        return self.in_flight > 0 and self.clock() - max(self._begun_at, self.bandwidth.came_at) > STILL_S

    def _enter(self) -> None:
        if not self.in_flight:
            self._begun_at = self.clock()
        self.in_flight += 1

    def _share(self, fetch: SlotNeed) -> int:
        """How many requests may be in the air for one such as ``fetch`` to join them."""
        reserved = 0 if fetch.need < AHEAD else max(1, int(self.slots) // 4)
        return max(1, int(self.slots) - reserved)

    def wake(self) -> None:
        """Give free slots to the waiting fetches, the nearest need first."""
        waiting = [turn for turn in self._waiting if not turn.done()]
        waiting.sort(key=lambda turn: self._waiting[turn].need)
        for turn in waiting:
            if not self._room(self._waiting[turn]):
                return
            self._enter()
            turn.set_result(None)

    def grow(self, fetch: SlotNeed) -> None:
        """A request went well: one slot more for each round of such requests, while all slots that it may use are in use."""
        if self.in_flight >= self._share(fetch) - 1:
            self.slots = min(float(self.most), self.slots + 1.0 / self.slots)
            if self._waiting:
                self.wake()

    def cut(self) -> None:
        """Half the slots."""
        self.cuts += 1
        self.slots = max(float(MIN_SLOTS), self.slots / 2)


class Limiters:
    """A limiter per origin, made when first asked for."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._limiters: dict[str, Limiter] = {}

    def of(self, origin: str) -> Limiter:
        """The limiter of ``origin``, made when it is first asked for."""
        if origin not in self._limiters:
            self._forget_idle()
            self._limiters[origin] = Limiter(self._most, self._clock)
        return self._limiters[origin]

    def _forget_idle(self) -> None:
        """A client may name any number of hosts; the limiters of origins that are not asked now are the first to go."""
        if len(self._limiters) >= MOST_ORIGINS:
            for origin in [origin for origin, limiter in self._limiters.items() if limiter.idle]:
                del self._limiters[origin]

    def look_again(self) -> None:
        """Once a second: bodies that stand still, or drip, hold no fetch back any more, and no event tells when they begin to."""
        for limiter in self._limiters.values():
            limiter.wake()

    def in_flight(self) -> dict[str, int]:
        """Requests in the air per origin."""
        return {origin: limiter.in_flight for origin, limiter in self._limiters.items()}

    def slots(self) -> dict[str, int]:
        """How many requests each origin may be sent at once now: fewer after it has refused some."""
        return {origin: int(limiter.slots) for origin, limiter in self._limiters.items()}
