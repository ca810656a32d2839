"""Calls that many want and one makes: an opening, a look whether a version still holds.

A ``SingleFlight`` runs them. An ``UrgentCall`` does so too, and tells each call how soon its answer is needed (``Urgency``), also by
callers that join later. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from forebay_proxy.core.errors import ForebayError, bare
from forebay_proxy.core.tasks import cancel_soon

__all__ = ["SingleFlight", "Urgency", "UrgentCall"]

log = logging.getLogger("forebay")
T = TypeVar("T")


class SingleFlight(Generic[T]):
    """One running call per key, shared by all its callers. A caller that leaves cancels nothing: the call runs to its end.

    An error reaches the callers that wait now, each as a copy of its own, and is forgotten.
    """

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._calls: dict[object, asyncio.Future[T]] = {}
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

    def _find(self, key: object) -> asyncio.Future[T] | None:
        """The call to join. Never one that has ended, although its callbacks run a turn later: its error is not for new callers."""
        future = self._calls.get(key)
        return None if future is None or future.done() else future

    def _forget(self, key: object, future: asyncio.Future[T]) -> None:
        if self._calls.get(key) is future:  # or the next call is there already
            del self._calls[key]

    def start(self, key: object, call: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]]) -> asyncio.Future[T]:
        """The running call for ``key``, else a new one. ``call`` is given the future and may resolve it before it ends."""
        future = self._find(key)
        if future is None:
            future = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # heard even if no caller waits any more
            self._calls[key] = future
            future.add_done_callback(lambda done: self._forget(key, done))
            task = self._group.create_task(self._run(key, future, call), name=f"call {key}")
            self._tasks[task] = key
            task.add_done_callback(self._tasks.pop)
            if self._ending:
                cancel_soon(task)
        return future

    async def join(self, key: object, call: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]]) -> T:
        """Wait for the answer of the running call for ``key``, else of ``call``. Raises a copy of the call's error."""
        future = self.start(key, call)
        await asyncio.wait((future,))  # a cancelled caller ends its wait only
        if (error := future.exception()) is not None:
            raise bare(error)
        return future.result()

    async def _run(self, key: object, future: asyncio.Future[T], call: Callable[[asyncio.Future[T]], Coroutine[Any, Any, None]]) -> None:
        try:
            await call(future)
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
        """Shutdown, as ``FetchTable.cancel``."""
        self._ending = True
        self.drop(lambda key: False)

    def drop(self, wanted: Callable[[Any], bool]) -> None:
        """A drain: every call ends now but those of a ``wanted`` key."""
        for task, key in self._tasks.items():
            if not wanted(key):
                cancel_soon(task)


class UrgentCall(Generic[T]):
    """A single flight whose call knows how soon its answer is needed, also by callers that join later."""

    def __init__(self, group: asyncio.TaskGroup, hurried: Callable[[str], None]) -> None:
        """``hurried``: a call that waits for its turn at this origin is needed sooner than was said."""
        self._flight: SingleFlight[T] = SingleFlight(group)
        self._hurried = hurried
        self._needs: dict[object, Urgency] = {}  # of each call without an answer

    def __len__(self) -> int:
        return len(self._flight)

    def __contains__(self, key: object) -> bool:
        return key in self._flight

    @property
    def running(self) -> int:
        """Calls whose task has not ended; those with an answer may still be at work."""
        return self._flight.running

    async def join(
        self, key: object, origin: str, mine: Urgency, call: Callable[[Urgency, asyncio.Future[T]], Coroutine[Any, Any, None]]
    ) -> T:
        """Wait for the answer of the running call for ``key``, else of ``call``, which is given its urgency and the future to resolve.

        A running call becomes as urgent as ``mine``. A caller that leaves cancels nothing. Raises what the call raised before it had an
        answer.
        """
        needed = self._needed(key, origin, mine)
        needed.waiting += 1
        try:
            return await self._flight.join(key, lambda future: self._begun(key, needed, future, call))
        finally:
            needed.waiting -= 1

    def _needed(self, key: object, origin: str, mine: Urgency) -> Urgency:
        if key not in self._flight:
            self._needs[key] = mine
            return mine
        needed = self._needs[key]
        if mine.need < needed.need:
            needed.need = mine.need
            self._hurried(origin)
        return needed

    def _begun(
        self,
        key: object,
        needed: Urgency,
        future: asyncio.Future[T],
        call: Callable[[Urgency, asyncio.Future[T]], Coroutine[Any, Any, None]],
    ) -> Coroutine[Any, Any, None]:
        future.add_done_callback(lambda _: self._forget(key, needed))
        return call(needed, future)

    def _forget(self, key: object, needed: Urgency) -> None:
        if self._needs.get(key) is needed:  # or the next call has its own there already
            del self._needs[key]

    def cancel(self) -> None:
        """Shutdown: every call ends now; the task group waits for them."""
        self._flight.cancel()

    def drop(self, wanted: Callable[[Any], bool]) -> None:
        """A drain: every call ends now but those of a ``wanted`` key."""
        self._flight.drop(wanted)


class Urgency:
    """How soon the answer of one request is needed; the limiter reads it when a slot frees.

    A request that was begun ahead of need becomes as urgent as the reader that joins it.
    """

    def __init__(self, need: float, need_at: float | None = None, reader: Hashable = None) -> None:
        """``need_at``, ``reader``: of one ahead of need, when by whose plan; then its grant may displace what is needed later still."""
        self.need = need
        self.need_at = need_at
        self.reader = reader
        self.waiting = 0  # how many wait for the answer

    def __repr__(self) -> str:
        return f"<Urgency {self.need:g}, {self.waiting} wait>"
