"""Calls that many want and one makes, each as urgent as its most urgent caller. Not thread-safe: the event loop's only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from forebay_proxy.transfer.single_flight import SingleFlight
from forebay_proxy.transfer.urgency import Urgency

__all__ = ["UrgentFlight"]

T = TypeVar("T")


class UrgentFlight(Generic[T]):
    """A single flight whose call is told how soon its answer is needed, also by those who join it later."""

    def __init__(self, group: asyncio.TaskGroup, hurried: Callable[[str], None]) -> None:
        """``hurried``: a call that waits for its turn at this origin is needed sooner than was said."""
        self._flight: SingleFlight[T] = SingleFlight(group)
        self._hurried = hurried
        self._needs: dict[object, Urgency] = {}  # of each call that nobody has an answer of yet

    def __len__(self) -> int:
        return len(self._flight)

    def __contains__(self, key: object) -> bool:
        return key in self._flight

    @property
    def running(self) -> int:
        """Calls whose work has not ended, though those who asked may have their answer."""
        return self._flight.running

    async def join(
        self, key: object, origin: str, mine: Urgency, call: Callable[[Urgency, asyncio.Future[T]], Coroutine[Any, Any, None]]
    ) -> T:
        """Wait for the answer of the running call for ``key``, else of ``call``, which is given its urgency and the future to resolve.

        A running one becomes as urgent as ``mine``. Who leaves cancels nothing. Raises what the call raised before it had an answer.
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
