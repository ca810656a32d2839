"""Collects changes of the index, and commits them together. Used on the event loop alone.

A change is committed within 100 ms. A caller that needs the commit awaits ``committed()``, which makes it happen at once, for all waiting
callers together. (A claim is withdrawn before its bytes are punched.) One commit runs at a time. A failed commit raises in the waiting
callers and emits ``CommitFailed``; its changes stay, and go with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.tasks import settle
from forebay_proxy.store.facts import CommitFailed, IndexCommitted
from forebay_proxy.store.index.row import Row

__all__ = ["Commit", "IndexWriter"]

Commit = Callable[[Mapping[str, "Row | None"]], Awaitable[None]]  # key -> row, or None to delete; raises DiskFailed

COMMIT_WITHIN_S = 0.1  # segments whose claim a kill loses are fetched again; a row of a 5 GB shard has 7 kB, written once per commit
RETRY_S = 1.0  # after a failure, unless a caller waits


class IndexWriter:
    """Puts and deletes rows. Emits ``IndexCommitted`` after each commit, ``CommitFailed`` after each failed one."""

    def __init__(self, commit: Commit, events: Events) -> None:
        self._commit = commit
        self._events = events
        self._pending: dict[str, Row | None] = {}
        self._batch: dict[str, Row | None] = {}  # being committed now
        self._waiting: list[asyncio.Future[None]] = []  # for the pending changes
        self._flying: list[asyncio.Future[None]] | None = None  # for those being committed now
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<IndexWriter {len(self._pending)} pending{', committing' if self._flying is not None else ''}>"

    def start(self) -> None:
        """Begin to commit; ``aclose`` ends it."""
        self._task = asyncio.create_task(self._run(), name="index writer")

    def put(self, row: Row) -> None:
        """Claim what ``row`` says; the newest row of a key wins. The caller must not change its sums afterwards.

        The index's thread encodes it at the commit, so a claim costs the event loop only a copy of the sums.
        Raises ValueError for a row that could not be read back.
        """
        row.check()
        self._change(row.key, row)

    def drop(self, key: str) -> None:
        """Claim nothing of ``key`` any more."""
        self._change(key, None)

    def _change(self, key: str, row: Row | None) -> None:
        if self._closed:
            raise _closed()
        self._pending[key] = row
        self._asked.set()

    def unsettled(self, key: str) -> bool:
        """Whether the claim of ``key`` differs from the index on the disk, because a change is not committed yet."""
        return key in self._pending or key in self._batch

    async def committed(self) -> None:
        """Return once every change made before this call is on disk. Raises DiskFailed if its commit failed."""
        if self._pending:
            self._hurry.set()
            batch = self._waiting
        elif self._flying is not None:
            batch = self._flying
        else:
            return
        if self._closed:
            raise _closed()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch.append(waiter)
        await waiter

    async def aclose(self) -> None:
        """Commit the pending changes once, and end. A failure is reported as usual; a kill would have lost the same."""
        self._closed = True
        self._asked.set()
        self._hurry.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        pause_s = COMMIT_WITHIN_S
        closing = False
        try:
            while not closing:
                await self._due(pause_s)
                closing = self._closed  # read before the batch is taken: no change comes after it
                pause_s = COMMIT_WITHIN_S if await self._commit_batch() else RETRY_S
        finally:
            self._closed = True
            for waiter in self._waiting:
                settle(waiter, _closed())

    async def _due(self, pause_s: float) -> None:
        await self._asked.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()

    async def _commit_batch(self) -> bool:
        batch, self._pending = self._pending, {}
        self._batch = batch
        self._flying, self._waiting = self._waiting, []
        self._asked.clear()
        self._hurry.clear()
        if not batch:
            self._flying = None
            return True
        error: DiskFailed | None = None
        try:
            await self._commit(batch)
        except DiskFailed as failure:
            error = failure
            self._pending = batch | self._pending
            self._asked.set()
        except BaseException as failure:
            self._land(DiskFailed("index commit", "ECANCELED", repr(failure)))
            raise
        self._land(error)
        return error is None

    def _land(self, error: DiskFailed | None) -> None:
        waiters, self._flying, self._batch = self._flying or [], None, {}
        for waiter in waiters:
            settle(waiter, error)
        self._events.emit(IndexCommitted() if error is None else CommitFailed(error))


def _closed() -> DiskFailed:
    return DiskFailed("index commit", "EBADF", "the index is closed")
