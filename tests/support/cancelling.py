"""Cancel a coroutine at its n-th await, for every n: leases, slots and files must be released wherever the coroutine stops.

    async for cut in at_each_await():
        async with building(...) as world:        # a fresh world each time
            await cut.run(world.get(A))           # cancelled at await number cut.number, or run to its end
        ...                                       # nothing may be left behind

An await can be cancelled in two ways that differ: while it waits (``WAITING``), and when what it waited for has come but the task has not
run yet (``GRANTED``): a lock, a slot, a reservation is then already ours, and is lost by whoever only gives back what he saw arrive.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from support.lengths import ordinarily

__all__ = ["Cut", "When", "at_each_await"]

MOMENTS = ordinarily(1, of=2, what="moments of each await at which a task is cancelled")
MOST_AWAITS = 2000  # a scenario that never ends by itself would never end here


class When(Enum):
    """At which moment of an await the cancellation comes."""

    WAITING = "waiting"
    GRANTED = "granted"


class Cut:
    """One run of a scenario: its coroutine is stopped at await ``number``. ``made`` tells whether it came that far."""

    def __init__(self, number: int, when: When = When.WAITING) -> None:
        self.number = number
        self.when = when
        self.made = False

    def __repr__(self) -> str:
        return f"<Cut at await {self.number}, {self.when.value}, {'made' if self.made else 'not reached'}>"

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """``work`` in a task of its own; its result, or None if the task was cancelled. Its errors are raised."""
        counted = itertools.count(1)
        task = asyncio.get_running_loop().create_task(_Steps(work, lambda waits_for: self._at(next(counted), waits_for)))
        await asyncio.wait([task])
        if task.cancelled():
            assert self.made, "nobody but us cancels it"
            return None
        return task.result()

    @contextmanager
    def everywhere(self, instead: Callable[[], object]) -> Iterator[None]:
        """Count the awaits of every task that begins in this ``with``; at ours nobody is cancelled, ``instead`` is called."""
        loop, counted = asyncio.get_running_loop(), itertools.count(1)

        def at(waits_for: asyncio.Future[Any] | None) -> None:
            if next(counted) == self.number:
                self.made = True
                instead()

        before = loop.get_task_factory()
        loop.set_task_factory(lambda loop, work, **how: asyncio.Task(_Steps(work, at), loop=loop, **how))  # type: ignore[arg-type]
        try:
            yield
        finally:
            loop.set_task_factory(before)

    def _at(self, number: int, waits_for: asyncio.Future[Any] | None) -> None:
        if number != self.number:
            return
        self.made = True
        task = asyncio.current_task()
        assert task is not None
        if self.when is When.GRANTED and waits_for is not None:
            waits_for.add_done_callback(lambda _: task.cancel())  # before the task's own: it is cancelled with the result in its hands
        else:
            task.cancel()


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that tells ``at``, at each suspension, which future the coroutine waits for."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: Callable[[asyncio.Future[Any] | None], None]) -> None:
        self._work = work
        self._at = at

    def send(self, value: Any) -> Any:
        return self._told(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        return self._told(self._work.throw(*error))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._work.__await__())

    def _told(self, waits_for: asyncio.Future[Any] | None) -> asyncio.Future[Any] | None:
        self._at(waits_for)
        return waits_for


async def at_each_await(when: When | None = None, step: int = 1) -> AsyncIterator[Cut]:
    """A ``Cut`` for await 1, 2, 3, ... (or each ``step``-th) until one was not reached: the scenario ran to its end undisturbed.

    A test of both moments tries each await at both in a long run, else at one of them, in turn.
    """
    first, step = (1, step) if when is None or MOMENTS > 1 else (1 + (when is When.GRANTED), 2)
    when = when or When.WAITING
    for number in range(first, MOST_AWAITS, step):
        cut = Cut(number, when)
        yield cut
        if not cut.made:
            return
    raise AssertionError(f"no end after {MOST_AWAITS} awaits")
