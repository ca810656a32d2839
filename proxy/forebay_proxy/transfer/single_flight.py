"""Calls that many want and one makes: an opening, a look whether a version still holds; each knows how soon its answer is needed.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from forebay_proxy.core.errors import ForebayError, bare
from forebay_proxy.core.tasks import cancel_soon

__all__ = ["SingleFlight", "Urgency"]

log = logging.getLogger("forebay")
T = TypeVar("T")


class Urgency:
    """How soon the answer of one request is needed; the limiter reads it when a slot frees.

    A request that was begun ahead of need becomes as urgent as the reader that joins it.
    """

    def __init__(self, need: float, need_at: float | None = None, reader: Hashable = None, *, in_part: bool = False) -> None:
        """``need_at``, ``reader``: of one ahead of need, when by whose plan; then its grant may displace what is needed later still.
        ``in_part``: nobody who waits for it reads to the shard's end.
        """
        self.need = need
        self.need_at = need_at
        self.reader = reader
        self.in_part = in_part
        self.waiting = 0  # how many wait for the answer

    def __repr__(self) -> str:
        return f"<Urgency {self.need:g}, {self.waiting} wait>"


class SingleFlight(Generic[T]):
    """One running call per key, shared by all its callers, and as urgent as the most urgent of them.

    A caller that leaves cancels nothing: the call runs to its end. An error reaches the callers that wait now, each as a copy of its own,
    and is forgotten.
    """

    def __init__(self, group: asyncio.TaskGroup, hurried: Callable[[str], None]) -> None:
        """``hurried``: a call that waits for its turn at this origin is needed sooner than was said."""
        self._group = group
        self._hurried = hurried
        self._calls: dict[object, tuple[asyncio.Future[T], Urgency]] = {}  # those without an answer
        self._tasks: dict[asyncio.Task[None], object] = {}
        self._ending = False

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    @property
    def running(self) -> int:
        """Calls whose task has not ended; those with an answer may still be at work."""
        return len(self._tasks)

    def _find(self, key: object) -> tuple[asyncio.Future[T], Urgency] | None:
        """The call to join. Never one that has ended, although its callbacks run a turn later: its error is not for new callers."""
        running = self._calls.get(key)
        return None if running is None or running[0].done() else running

    async def join(
        self, key: object, origin: str, mine: Urgency, call: Callable[[Urgency, asyncio.Future[T]], Coroutine[Any, Any, None]]
    ) -> T:
        """Wait for the answer of the running call for ``key``, else of ``call``, which may resolve its future before it ends.

        Raises a copy of what the call raised before it had an answer.
        """
        future, needed = self._find(key) or self._begin(key, mine, call)
        if mine.need < needed.need:
            needed.need = mine.need
            self._hurried(origin)
        needed.in_part &= mine.in_part
        needed.waiting += 1
        try:
            await asyncio.wait((future,))  # a cancelled caller ends its wait only
        finally:
            needed.waiting -= 1
        if (error := future.exception()) is not None:
            raise bare(error)
        return future.result()

    def _begin(
        self, key: object, needed: Urgency, call: Callable[[Urgency, asyncio.Future[T]], Coroutine[Any, Any, None]]
    ) -> tuple[asyncio.Future[T], Urgency]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        running = self._calls[key] = future, needed

        def answered(done: asyncio.Future[T]) -> None:
            if not done.cancelled():
                done.exception()  # heard even if no caller waits any more
            if self._calls.get(key) is running:  # or the next call is there already
                del self._calls[key]

        future.add_done_callback(answered)
        task = self._group.create_task(self._run(needed, future, call), name=f"call {key}")
        self._tasks[task] = key
        task.add_done_callback(self._tasks.pop)
        if self._ending:
            cancel_soon(task)
        return running

    async def _run(
        self, needed: Urgency, future: asyncio.Future[T], call: Callable[[Urgency, asyncio.Future[T]], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await call(needed, future)
        except asyncio.CancelledError:
            if not future.done():
                future.set_exception(ForebayError("the sidecar is shutting down"))
            raise
        except Exception as error:
            if not isinstance(error, ForebayError):
                log.exception("an opening failed unexpectedly")
            if not future.done():
                future.set_exception(error)
        else:
            assert future.done(), "a call resolves its future"

    def cancel(self) -> None:
        """Shutdown: every call ends now, and each that comes after; the task group waits for them."""
        self._ending = True
        self.drop(lambda key: False)

    def drop(self, wanted: Callable[[Any], bool]) -> None:
        """A drain: every call ends now but those of a ``wanted`` key."""
        for task, key in self._tasks.items():
            if not wanted(key):
                cancel_soon(task)
