"""How late the event loop comes back when asked: time during which no reader was served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn

from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import LoopLagged

__all__ = ["measure_lag"]


async def measure_lag(events: Events, *, every_s: float = 0.25, clock: Callable[[], float] = time.monotonic) -> NoReturn:
    """Report ``LoopLagged`` every ``every_s`` seconds until cancelled.

    Four looks a second cost nothing measurable and still meet any block longer than a quarter second. A block is one sample however long
    it lasts, so read the histogram's upper buckets as "it happened", not as a share of time.
    """
    while True:
        asked = clock()
        await asyncio.sleep(every_s)
        events.emit(LoopLagged(max(0.0, clock() - asked - every_s)))
