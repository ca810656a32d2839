"""Tasks of the event loop: work that nobody waits for, work that must come to its end, and the waking of tasks that wait.

Freeing, syncing, dropping are such work. Every chore has a parent, and its failure is logged, never lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from forebay_proxy.core.errors import ForebayError, bare
from forebay_proxy.core.logs import frames_of

__all__ = ["BackgroundTasks", "Broadcast", "Event", "cancel_soon", "kept", "settle", "to_its_end", "told_while"]

log = logging.getLogger("forebay")

T = TypeVar("T")

# A fault that comes back each second is in the code or in the state, and stays; one an hour is bad luck with one shard.
FAULTS = 3
FAULTS_WITHIN_S = 60.0
AGAIN_S = 1.0
PROGRESS_S = 1.0

Event = dict[str, object]  # that a long command tells while it works


class BackgroundTasks:
    """Background tasks of one task group. Not thread-safe: the event loop's only."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[None] | None:
        """Do ``work`` soon. None: everything is coming down, and it is not done."""
        doing = self._do(work, name)
        try:
            task = self._group.create_task(doing, name=f"chore {name}")
        except RuntimeError:  # the group is coming down after a fault: the next start tidies up, as after a kill
            doing.close()
            work.close()
            return None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _do(work: Coroutine[Any, Any, Any], name: str) -> None:
        try:
            await work
        except ForebayError as error:
            log.warning("%s: %s", name, error)
        except Exception:
            log.exception("%s failed unexpectedly", name)

    async def within(self, seconds: float, work: Coroutine[Any, Any, T], name: str, late: Callable[[T], object]) -> T:
        """What ``work`` returns or raises, if it comes within ``seconds``; else TimeoutError, and ``late`` gets the result when it comes.

        For what hangs where the disk hangs: the caller goes on, the work stays a chore. A caller that is cancelled cancels it, and waits no
        longer than that for its end.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard, even if nobody waits any more
        task = self.spawn(_deliver(work, outcome), name)
        if task is None:
            work.close()
            raise asyncio.CancelledError
        task.add_done_callback(lambda _: outcome.cancel() and work.close())  # ended before its first step: everything is coming down
        try:
            await asyncio.wait([outcome], timeout=seconds)
        except asyncio.CancelledError:
            _told_late(outcome, late)  # before anything that a second cancellation ends: what it brings is somebody's in any case
            task.cancel()
            await asyncio.wait([outcome], timeout=seconds)
            raise
        if not outcome.done():
            _told_late(outcome, late)
            raise TimeoutError
        return outcome.result()

    async def idle(self) -> None:
        """Wait until nothing is left to do."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def _deliver(work: Coroutine[Any, Any, T], outcome: asyncio.Future[T]) -> None:
    try:
        result = await work
    except asyncio.CancelledError:
        outcome.cancel()
        raise
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


def _told_late(outcome: asyncio.Future[T], late: Callable[[T], object]) -> None:
    def ended(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            late(done.result())

    outcome.add_done_callback(ended)


async def kept(name: str, make: Callable[[], Coroutine[Any, Any, Any]], given_up: Callable[[str], object]) -> None:
    """Run ``make()``, and again after a fault: one round of a plan gone wrong must not end prefetch for good.

    A fault is logged each time. ``FAULTS`` of them within ``FAULTS_WITHIN_S`` are no accident: ``given_up`` is told, once, since a
    sidecar whose bound is looked after by nobody must not go on as if nothing had happened.
    """
    faults: deque[float] = deque(maxlen=FAULTS)
    while True:
        try:
            await make()
            return
        except Exception as error:
            log.error("%s failed: %s\n%s", name, describe_fault(error), frames_of(error))
            faults.append(time.monotonic())
            if len(faults) == FAULTS and faults[-1] - faults[0] < FAULTS_WITHIN_S:
                given_up(f"{name} failed {FAULTS} times within {faults[-1] - faults[0]:.0f} s, last: {describe_fault(error)}")
                return
        await asyncio.sleep(AGAIN_S)


def describe_fault(error: BaseException) -> str:
    """What a fault of ours may be called in a log: our own errors' words, of others the type only, as their messages hold URLs."""
    return str(error) if isinstance(error, ForebayError) else type(error).__name__


async def to_its_end(work: Awaitable[T]) -> T:
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


def cancel_soon(task: asyncio.Task[Any]) -> None:
    """Cancel ``task`` after its first step: a task that is cancelled before it runs never reaches its ``finally``, and keeps what it was
    given.
    """
    asyncio.get_running_loop().call_soon(task.cancel)


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
        if not self._waiters:  # as a rule: each piece that comes is told
            return
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def settle(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    """Let ``waiter`` go on, or raise ``error`` there; one that has gone away is left alone."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(bare(error))  # one each


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
