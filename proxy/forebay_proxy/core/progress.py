"""What a long command tells while it works: its events as they come, and how far it is each second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

__all__ = ["PROGRESS_S", "Event", "told_while"]

PROGRESS_S = 1.0

Event = dict[str, object]


async def told_while(
    work: Callable[[], Coroutine[Any, Any, None]], events: asyncio.Queue[Event | None], progress: Callable[[], Event]
) -> AsyncIterator[Event]:
    """Do ``work()``; yields what it puts into ``events``, and ``progress()`` where that is nothing for ``PROGRESS_S``. Raises its error.

    Closing the iterator ends the work and waits for it. No TaskGroup: one that is left by closing a generator raises a group of that.
    """
    task = asyncio.ensure_future(work())
    task.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while True:
            try:
                async with asyncio.timeout(PROGRESS_S):
                    event = await events.get()
            except TimeoutError:
                event = progress()
            if event is None:
                task.result()
                return
            yield event
    finally:
        task.cancel()
        await asyncio.wait([task])
