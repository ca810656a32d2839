"""Work that nobody waits for: freeing, syncing, dropping. Every chore has a parent, and its failure is logged, never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from forebay_proxy.errors import ForebayError

__all__ = ["Chores", "to_its_end"]

log = logging.getLogger("forebay")

T = TypeVar("T")


class Chores:
    """Background tasks of one task group. Not thread-safe: the event loop's only."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Do ``work`` soon."""
        doing = self._do(work, name)
        try:
            task = self._group.create_task(doing, name=f"chore {name}")
        except RuntimeError:  # the group is coming down after a fault: the next start tidies up, as after a kill
            doing.close()
            work.close()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _do(work: Coroutine[Any, Any, Any], name: str) -> None:
        try:
            await work
        except ForebayError as error:
            log.warning("%s: %s", name, error)
        except Exception:
            log.exception("%s failed unexpectedly", name)

    async def idle(self) -> None:
        """Wait until nothing is left to do."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Do ``work`` to its end, however often the caller is cancelled meanwhile; the cancellation is raised afterwards.

    For what must not stop half-way: bytes that were taken out of use are removed, or put back.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.warning("failed while its caller was leaving: %s", failure)
    raise cancelled
