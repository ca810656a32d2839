"""The thread pools in which the blocking leaves of the store run.

Three for the work, because one shared pool lets a warm read wait behind throttled writes for a second; one to look how the disk is, which
must not wait behind the very calls it judges. A call never outlives its waiter: a caller that is cancelled while the thread works waits for
its end, so no thread ever touches a descriptor or a buffer that its owner has given away.

A disk can hang, and a thread that waits for it cannot be stopped. A caller with *patience* is told so (``Overdue``), and the call that runs
on is handed to ``late``: the owner of what the call touches keeps it until the call has ended.
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
READ_THREADS = 8  # enough queue depth for one NVMe; warm bytes do not come here
WRITE_THREADS = 4  # more only fight over the file system's journal
INDEX_THREADS = 1  # one writer: SQLite has one write lock, and order is then ours
WATCH_THREADS = 1
# SQLite's primary codes. It tells a full disk apart, not an exceeded quota; any other failed system call is its "disk I/O error".
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
    """The call did not come back in time; nobody will hear its result."""

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
        """Whether nothing runs or waits here now."""
        return not self._running

    async def run(
        self,
        function: Callable[[*Args], T],
        *args: *Args,
        undo: Callable[[T], object] | None = None,
        patience_s: float | None = None,
        late: Callable[[asyncio.Future[T]], object] = lambda call: None,
    ) -> T:
        """Call ``function(*args)`` in a thread and return what it returns.

        A cancelled caller takes a call that has not begun back, and waits for one that has; ``undo`` then gets the result, which no caller
        will see. With ``patience_s`` both wait that long at most, the turn in the queue included: then ``Overdue`` is raised (or the
        cancellation), and ``late`` gets the call if it runs on.
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
        """Wait for the calls that run, then end the threads."""
        while self._running:
            await asyncio.wait(self._running)
        self._executor.shutdown(wait=True)


async def _ended(waiter: asyncio.Future[T], patience_s: float | None) -> None:
    """Wait until ``waiter`` is done, however often we are cancelled meanwhile."""
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
    """No caller will see the result of ``waiter``: retrieve the error, or give the result to ``undo``, now or when the thread ends."""

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
    """Raise DiskFailed in place of an OSError, or of ``Overdue`` (ETIMEDOUT). ``detail`` says which file and range."""
    try:
        yield
    except OSError as error:
        raise disk_failed(operation, error, detail) from error
    except Overdue as overdue:
        raise DiskFailed(operation, "ETIMEDOUT", f"{overdue} ({detail})") from None


def disk_failed(operation: str, error: BaseException, detail: str) -> DiskFailed:
    """The DiskFailed that says what ``error`` means."""
    code = error.errno if isinstance(error, OSError) else _sqlite_errno(error)
    code = code or errno.EIO
    return DiskFailed(operation, errno.errorcode.get(code, str(code)), f"{os.strerror(code)} ({detail})")


def _sqlite_errno(error: BaseException) -> int:
    """From the first SQLite error that says something: a failed ROLLBACK, and diskcache's Timeout, hide the one they follow."""
    codes = []
    link: BaseException | None = error
    while link is not None:
        codes.append(getattr(link, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF)
        link = link.__cause__ or link.__context__
    return next((_SQLITE[code] for code in reversed(codes) if code in _SQLITE), errno.EIO)
