"""How long and how often to ask an origin again. Pure but for its ``sleep``, which is an argument like the clock."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from forebay_proxy.errors import OriginUnavailable, ShardError

__all__ = ["Patience"]

FIRST_PAUSE_S = 0.1  # a reset is usually one connection's, and the next attempt goes through
LONGEST_PAUSE_S = 10.0  # an origin that comes back is noticed within this


class Patience:
    """One fetch's retries: full jitter (Brooker, "Exponential Backoff And Jitter", 2015) within a budget that progress renews."""

    def __init__(
        self,
        budget_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: random.Random,
    ) -> None:
        self.budget_s = budget_s
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._attempts = 0
        self._since = clock()

    def progress(self) -> None:
        """Bytes arrived: the budget starts anew."""
        self._attempts = 0
        self._since = self._clock()

    def shorten(self, budget_s: float) -> None:
        """From now on at most this much without progress."""
        self.budget_s = min(self.budget_s, budget_s)

    async def pause(self, error: ShardError) -> None:
        """Wait before the next attempt; raises ``error`` when the budget is spent or the wait would overrun it."""
        pause_s = self._chance.uniform(0, min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._attempts))
        if isinstance(error, OriginUnavailable) and error.retry_after_s:
            pause_s += error.retry_after_s  # the origin's wish is the least; the jitter spreads those who were given the same
        if self._clock() - self._since + pause_s > self.budget_s:
            raise error
        self._attempts += 1
        await self._sleep(pause_s)
