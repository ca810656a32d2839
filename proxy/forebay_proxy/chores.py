"""Work that nobody waits for: freeing, syncing, dropping. Every chore has a parent, and its failure is logged, never lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from forebay_proxy.errors import ForebayError

__all__ = ["Chores"]

log = logging.getLogger("forebay")


class Chores:
    """Background tasks of one task group. Not thread-safe: the event loop's only."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Do ``work`` soon."""
        task = self._group.create_task(self._do(work, name), name=f"chore {name}")
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
