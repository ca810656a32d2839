"""The thread pools for the blocking operations of the store.

There are three for work: with one shared pool, a read could wait a second for throttled writes. A fourth measures the disk, and must not
wait for the calls that it judges. A cancelled caller waits until the thread has finished, so no thread touches a descriptor or a buffer
that its owner has given away.

A disk can hang, and its thread cannot be stopped. A caller with *patience* then gets ``Overdue``, and ``late`` gets the call, which still
runs. The owner of the descriptor or buffer keeps it until that call has ended.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from forebay_proxy.core.errors import DiskFailed

__all__ = ["Overdue", "Pool", "Pools", "disk_errors", "disk_failed"]

T = TypeVar("T")
Args = TypeVarTuple("Args")
READ_THREADS = 8  # enough queue depth for one NVMe; bytes in memory need no thread
WRITE_THREADS = 4  # more only compete for the file system's journal
INDEX_THREADS = 1  # one writer: SQLite has one write lock, and one thread keeps the order
WATCH_THREADS = 1
# SQLite's primary codes. It reports a full disk, but not an exceeded quota; any other failed system call is its "disk I/O error".
_SQLITE = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_CORRUPT: errno.EUCLEAN,
    sqlite3.SQLITE_NOTADB: errno.EUCLEAN,
}


class Overdue(Exception):
    """The call did not end in time; its result is lost."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")


class Pool:
    """A few named threads for one kind of call."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"forebay-{name}")
        self._running: set[asyncio.Future[object]] = set()

    def __repr__(self) -> str:
        return f"<Pool {self.name}, {len(self._running)} running>"

    @property
    def idle(self) -> bool:
        """Whether no call is running or waiting."""
        return not self._running

    async def run(
        self,
        function: Callable[[*Args], T],
        *args: *Args,
        undo: Callable[[T], object] | None = None,
        patience_s: float | None = None,
        late: Callable[[asyncio.Future[T]], object] = lambda call: None,
    ) -> T:
        """Call ``function(*args)`` in a thread and return its result.

        If the caller is cancelled, a call that has not begun is dropped, and one that has is awaited; ``undo`` then gets its result.

        Args:
            function: The blocking function.
            args: Its arguments.
            undo: Gets a result that no caller will see.
            patience_s: Wait at most so long, in the queue too; None: without limit. Then ``Overdue`` (or the cancellation) is raised.
            late: Gets the call if it still runs after ``patience_s``.
        """
        job = self._executor.submit(function, *args)
        waiter = self._watch(job)
        try:
            if patience_s is None:
                return await asyncio.shield(waiter)
            await asyncio.wait([waiter], timeout=patience_s)
            if not waiter.done():
                raise Overdue(patience_s)
            return waiter.result()
        except (asyncio.CancelledError, Overdue) as leaving:
            if not job.cancel():
                if not isinstance(leaving, Overdue):
                    await _ended(waiter, patience_s)
                if not waiter.done():
                    late(waiter)
                _undo_late(waiter, undo)
            raise

    def _watch(self, job: Future[T]) -> asyncio.Future[T]:
        waiter = asyncio.wrap_future(job)
        self._running.add(waiter)  # type: ignore[arg-type]
        waiter.add_done_callback(self._running.discard)
        return waiter

    async def aclose(self) -> None:
        """Wait for the running calls, then end the threads."""
        while self._running:
            await asyncio.wait(self._running)
        self._executor.shutdown(wait=True)


async def _ended(waiter: asyncio.Future[T], patience_s: float | None) -> None:
    """Wait until ``waiter`` is done, even if this task is cancelled meanwhile."""
    until = None if patience_s is None else asyncio.get_running_loop().time() + patience_s
    while not waiter.done():
        left_s = None if until is None else until - asyncio.get_running_loop().time()
        if left_s is not None and left_s <= 0:
            return
        try:
            await asyncio.wait([waiter], timeout=left_s)
        except asyncio.CancelledError:
            continue


def _undo_late(waiter: asyncio.Future[T], undo: Callable[[T], object] | None) -> None:
    """No caller will see the result of ``waiter``: retrieve its error, or give its result to ``undo``, now or when the thread ends."""

    def ended(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None and undo is not None:
            undo(done.result())

    if waiter.done():
        ended(waiter)
    else:
        waiter.add_done_callback(ended)


@dataclass(frozen=True)
class Pools:
    """The pools of one store."""

    reads: Pool
    writes: Pool
    index: Pool
    watch: Pool

    @classmethod
    def start(cls) -> Pools:
        return cls(Pool("read", READ_THREADS), Pool("write", WRITE_THREADS), Pool("index", INDEX_THREADS), Pool("watch", WATCH_THREADS))

    async def aclose(self) -> None:
        for pool in (self.reads, self.writes, self.index, self.watch):
            await pool.aclose()


@contextmanager
def disk_errors(operation: str, detail: str) -> Iterator[None]:
    """Raise DiskFailed instead of an OSError or of ``Overdue`` (ETIMEDOUT). ``detail`` names the file and range."""
    try:
        yield
    except OSError as error:
        raise disk_failed(operation, error, detail) from error
    except Overdue as overdue:
        raise DiskFailed(operation, "ETIMEDOUT", f"{overdue} ({detail})") from None


def disk_failed(operation: str, error: BaseException, detail: str) -> DiskFailed:
    """The DiskFailed for ``error``."""
    code = error.errno if isinstance(error, OSError) else _sqlite_errno(error)
    code = code or errno.EIO
    return DiskFailed(operation, errno.errorcode.get(code, str(code)), f"{os.strerror(code)} ({detail})")


def _sqlite_errno(error: BaseException) -> int:
    """The errno for the first SQLite error in the chain: a failed ROLLBACK, and diskcache's Timeout, hide the error they follow."""
    codes = []
    link: BaseException | None = error
    while link is not None:
        codes.append(getattr(link, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF)
        link = link.__cause__ or link.__context__
    return next((_SQLITE[code] for code in reversed(codes) if code in _SQLITE), errno.EIO)
