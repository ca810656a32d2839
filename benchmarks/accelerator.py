"""An accelerator that takes batches from its workers in turn and works on each for as long as its rate says; what it waited is stall.

It sleeps instead of computing, as MLPerf Storage does. Its workers are readers (far_readers.py) or curls, each at most ``READY`` batches
ahead of it, as a PyTorch loader's with ``prefetch_factor=2``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

__all__ = ["BATCH_BYTES", "Accelerator", "Shift", "shift"]

BATCH_BYTES = 4 * 2**20
READY = 2


@dataclass(frozen=True)
class Shift:
    """How it went: seconds of work, and from the first batch's arrival to the end of the last one's work."""

    busy_s: float
    seconds: float

    @property
    def utilisation(self) -> float:
        return self.busy_s / self.seconds if self.seconds else 1.0


class Accelerator:
    """Works at ``rate`` bytes a second on what ``workers`` bring; one brings bytes with ``taker(place)``, ends with ``done(place)``."""

    def __init__(self, rate_bytes_s: float, workers: int) -> None:
        self._rate = rate_bytes_s
        self._ready: list[asyncio.Queue[int]] = [asyncio.Queue(READY) for _ in range(workers)]
        self._part = [0] * workers

    def taker(self, place: int) -> Callable[[int], Awaitable[None]]:
        async def take(count: int) -> None:
            self._part[place] += count
            while self._part[place] >= BATCH_BYTES:
                self._part[place] -= BATCH_BYTES
                await self._ready[place].put(BATCH_BYTES)

        return take

    async def done(self, place: int) -> None:
        """The worker has brought all of its epoch; a last batch may be smaller."""
        await self._ready[place].put(self._part[place])
        self._part[place] = 0
        await self._ready[place].put(0)

    async def epoch(self) -> Shift:
        """Work until every worker is done."""
        at_work = list(range(len(self._ready)))
        busy_s, began, free_at = 0.0, 0.0, 0.0
        place = 0
        while at_work:
            queue = self._ready[at_work[place % len(at_work)]]
            was_ready = not queue.empty()
            size = await queue.get()
            if not size:
                at_work.pop(place % len(at_work))
                continue
            now = time.monotonic()
            began = began or now
            # A late timer is the machine's, not the loader's: while batches are ready the accelerator goes on where it stopped.
            free_at = free_at if was_ready and free_at else max(free_at, now)
            free_at += size / self._rate
            busy_s += size / self._rate
            await asyncio.sleep(max(0.0, free_at - time.monotonic()))
            place += 1
        return Shift(busy_s, time.monotonic() - began)


async def shift(accelerator: Accelerator, work: Sequence[Callable[[], Awaitable[None]]]) -> Shift:
    """One epoch: ``work[place]`` brings that worker's share."""

    async def bring(place: int) -> None:
        await work[place]()
        await accelerator.done(place)

    async with asyncio.TaskGroup() as group:
        for place in range(len(work)):
            group.create_task(bring(place))
        return await accelerator.epoch()
