"""The three thread pools in which the blocking leaves of the store run.

Three, because one shared pool lets a warm read wait behind throttled writes for a second. A call never outlives its waiter: who is
cancelled while the thread works waits for it to end, so no thread ever touches a descriptor or a buffer that its owner has given away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

__all__ = ["Pool", "Pools"]

T = TypeVar("T")
Args = TypeVarTuple("Args")

READ_THREADS = 8  # enough queue depth for one NVMe; warm bytes do not come here
WRITE_THREADS = 4  # more only fight over the file system's journal
INDEX_THREADS = 1  # one writer: SQLite has one write lock, and order is then ours


class Pool:
    """A few named threads for one kind of call."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"forebay-{name}")
        self._running: set[asyncio.Future[object]] = set()

    def __repr__(self) -> str:
        return f"<Pool {self.name}, {len(self._running)} running>"

    async def run(self, function: Callable[[*Args], T], *args: *Args, undo: Callable[[T], object] | None = None) -> T:
        """Call ``function(*args)`` in a thread and return what it returns.

        A cancelled caller takes a call that has not begun back, and waits for one that has; ``undo`` then gets the result nobody will see.
        """
        job = self._executor.submit(function, *args)
        waiter = self._watch(job)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            if not job.cancel():
                await _ended(waiter)
                if undo is not None and waiter.exception() is None:
                    undo(waiter.result())
            raise

    def _watch(self, job: Future[T]) -> asyncio.Future[T]:
        waiter = asyncio.wrap_future(job)
        self._running.add(waiter)  # type: ignore[arg-type]
        waiter.add_done_callback(self._running.discard)
        return waiter

    async def aclose(self) -> None:
        """Wait for the calls that run, then end the threads."""
        while self._running:
            await asyncio.wait(self._running)
        self._executor.shutdown(wait=True)


async def _ended(waiter: asyncio.Future[T]) -> None:
    """Wait until ``waiter`` is done, however often we are cancelled meanwhile."""
    while not waiter.done():
        try:
            await asyncio.wait([waiter])
        except asyncio.CancelledError:
            continue
    if not waiter.cancelled():
        waiter.exception()  # seen: nobody is left to hear it


@dataclass(frozen=True)
class Pools:
    """The pools of one store."""

    reads: Pool
    writes: Pool
    index: Pool

    @classmethod
    def start(cls) -> Pools:
        return cls(Pool("read", READ_THREADS), Pool("write", WRITE_THREADS), Pool("index", INDEX_THREADS))

    async def aclose(self) -> None:
        for pool in (self.reads, self.writes, self.index):
            await pool.aclose()
