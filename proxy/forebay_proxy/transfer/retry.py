"""How long and how often to ask an origin again. Pure but for its ``sleep``, which is an argument like the clock."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from forebay_proxy.core.errors import OriginLied, OriginUnavailable, ShardError

__all__ = ["LIES", "RetryBudget"]

FIRST_PAUSE_S = 0.1  # a reset is usually one connection's, and the next attempt goes through
LONGEST_PAUSE_S = 10.0  # an origin that comes back is noticed within this
LIES = 3  # wrong answers without progress: one is a middlebox in trouble, three are what the origin means


class RetryBudget:
    """One fetch's retries: full jitter (Brooker, "Exponential Backoff And Jitter", 2015) within a budget that progress renews."""

    def __init__(
        self,
        budget: Callable[[], float],
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: random.Random,
    ) -> None:
        """``budget``: seconds without progress, asked each time it matters, because a host is worth more once it has answered."""
        self._budget = budget
        self._most_s = float("inf")
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._attempts = 0
        self._lies = 0
        self._since = clock()

    @property
    def budget_s(self) -> float:
        """Seconds without progress that are allowed now."""
        return min(self._budget(), self._most_s)

    def queued(self, seconds: float) -> None:
        """So long our own limiter kept the request back: no fault of the origin's."""
        self._since += seconds

    def progress(self) -> None:
        """Bytes arrived: the budget starts anew."""
        self._attempts = self._lies = 0
        self._since = self._clock()

    def shorten(self, budget_s: float) -> None:
        """From now on at most this much without progress, until it is ``wanted``."""
        self._most_s = min(self._most_s, budget_s)

    def wanted(self) -> None:
        """A reader waits for the fetch (again): after a time without readers the budget begins anew, and is a whole one."""
        if self._most_s < float("inf"):
            self._most_s = float("inf")
            self._since = self._clock()

    async def pause(self, error: ShardError) -> None:
        """Wait before the next attempt; raises ``error`` when the budget is spent, the wait would overrun it, or the origin insists."""
        if isinstance(error, OriginLied):
            self._lies += 1
            if self._lies >= LIES:
                raise error
        wish_s = (error.retry_after_s or 0.0) if isinstance(error, OriginUnavailable) else 0.0
        # The origin's wish is the least; the jitter spreads the fetches that were given the same one.
        pause_s = wish_s + self._chance.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._attempts, 10)))
        left_s = self.budget_s - (self._clock() - self._since)
        if pause_s > left_s:
            raise self._too_long(error, wish_s, left_s) if isinstance(error, OriginUnavailable) and wish_s > max(0.0, left_s) else error
        self._attempts += 1
        await self._sleep(pause_s)

    def _too_long(self, error: OriginUnavailable, wish_s: float, left_s: float) -> OriginUnavailable:
        left = f"{max(0.0, left_s):.3g} of {self.budget_s:g} s are left to this fetch"
        return OriginUnavailable(
            error.shard, f"{error.cause}, and wants to be left alone for {wish_s:g} s, but {left}", next_step=error.next_step,
            retry_after_s=wish_s, throttled=error.throttled, answered=True,
        )  # fmt: skip
