"""Wakes the tasks that wait for something to change. The event loop's only."""

from __future__ import annotations

import asyncio

__all__ = ["Broadcast"]


class Broadcast:
    """Wakes every task that waits now. (An ``asyncio.Event`` would need clearing between two waits of the same waiter.)"""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def send(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
