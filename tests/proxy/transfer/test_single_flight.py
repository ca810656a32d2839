"""One running call for all who ask for it, as urgent as the most urgent of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from forebay_proxy.core.errors import CacheFull, ForebayError, OriginUnavailable
from forebay_proxy.transfer.single_flight import SingleFlight, Urgency

ORIGIN = "https://o"


@pytest.fixture
async def group() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as made:
        yield made


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Calls:
    def __init__(self) -> None:
        self.needs: list[Urgency] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def call(self, needed: Urgency, future: asyncio.Future[int]) -> None:
        self.needs.append(needed)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        future.set_result(len(self.needs))


def flights(group: asyncio.TaskGroup) -> SingleFlight[int]:
    return SingleFlight[int](group, lambda origin: None)


async def ask(flight: SingleFlight[int], call: Callable[[Urgency, asyncio.Future[int]], Coroutine[Any, Any, None]], key: str = "k") -> int:
    return await flight.join(key, ORIGIN, Urgency(0.0), call)


async def test_one_call_serves_all(group: asyncio.TaskGroup) -> None:
    """Whoever of them leaves, the others are served."""
    single, calls = flights(group), Calls()
    waiting = [asyncio.create_task(ask(single, calls.call)) for _ in range(4)]
    await turns()
    waiting[0].cancel()
    waiting[2].cancel()
    await turns()
    calls.gate.set()
    assert [await waiting[1], await waiting[3]] == [1, 1]
    assert (len(calls.needs), len(single), "k" in single) == (1, 0, False)


async def test_a_call_everybody_left_runs_to_its_end(group: asyncio.TaskGroup) -> None:
    """What it brought is of use to the next."""
    single, calls = flights(group), Calls()
    waiting = asyncio.create_task(ask(single, calls.call))
    await turns()
    waiting.cancel()
    await turns()
    again = asyncio.create_task(ask(single, calls.call))
    await turns()
    calls.gate.set()
    assert await again == 1


async def test_a_failure_is_told_once_and_forgotten(group: asyncio.TaskGroup) -> None:
    """To all who wait; the next call is a new one."""
    single, calls = flights(group), Calls()
    calls.error = CacheFull("x")
    waiting = [asyncio.create_task(ask(single, calls.call)) for _ in range(3)]
    await turns()
    calls.gate.set()
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [(type(error), str(error)) for error in told] == [(CacheFull, "x")] * 3
    assert len({id(error) for error in (*told, calls.error)}) == 4, "each has frames of its own"
    calls.error = None
    assert await ask(single, calls.call) == 2


async def test_a_call_may_answer_before_it_ends(group: asyncio.TaskGroup) -> None:
    """An opening's waiters go on while its body lands; the next caller begins anew."""
    single, gate = flights(group), asyncio.Event()
    answers = iter([1, 2])

    async def call(needed: Urgency, future: asyncio.Future[int]) -> None:
        future.set_result(next(answers))
        await gate.wait()

    assert await ask(single, call) == 1
    assert await ask(single, call) == 2
    gate.set()


@pytest.mark.parametrize("begun", [True, False])
async def test_shutdown_tells_who_waits_for_a_call(begun: bool) -> None:
    """Nobody waits for ever, whenever it comes."""
    async with asyncio.TaskGroup() as group:
        single, calls = flights(group), Calls()
        one = asyncio.create_task(ask(single, calls.call))
        await turns(3 if begun else 1)
        single.cancel()
        two = asyncio.create_task(ask(single, calls.call, "l"))
        await turns()
    for waiting in (one, two):
        with pytest.raises(ForebayError, match="shutting down"):
            await waiting


async def test_a_failure_is_not_for_who_comes_in_the_same_turn(group: asyncio.TaskGroup) -> None:
    """Between the failure and the turn in which it is told, a new call begins; the old one's end takes nothing of it away."""
    single = flights(group)
    failed: list[asyncio.Future[int]] = []

    async def fail(needed: Urgency, future: asyncio.Future[int]) -> None:
        failed.append(future)
        future.set_exception(CacheFull("x"))
        assert "k" not in single
        succeeding.append(asyncio.create_task(ask(single, succeed)))

    async def succeed(needed: Urgency, future: asyncio.Future[int]) -> None:
        await gate.wait()
        future.set_result(7)

    succeeding: list[asyncio.Task[int]] = []
    gate = asyncio.Event()
    with pytest.raises(CacheFull):
        await ask(single, fail)
    await turns()
    assert "k" in single
    gate.set()
    assert await succeeding[0] == 7


async def test_who_joins_hurries_it(group: asyncio.TaskGroup) -> None:
    """And who needs it later does not slow it down."""
    hurried: list[str] = []
    flight, calls = SingleFlight[int](group, hurried.append), Calls()
    waiting = [asyncio.create_task(flight.join("k", ORIGIN, Urgency(need), calls.call)) for need in (5000.0, 0.0, 9000.0)]
    await turns()
    (needed,) = calls.needs
    assert (needed.need, needed.waiting, hurried) == (0.0, 3, [ORIGIN])
    calls.gate.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert needed.waiting == 0


async def test_who_leaves_waits_no_more(group: asyncio.TaskGroup) -> None:
    """The call goes on, for as long as it takes."""
    flight, calls = flights(group), Calls()
    waiting = asyncio.create_task(ask(flight, calls.call))
    await turns()
    waiting.cancel()
    await turns()
    assert (calls.needs[0].waiting, "k" in flight, flight.running) == (0, True, 1)
    calls.gate.set()
    await turns()
    assert (len(flight), flight.running) == (0, 0)


async def test_the_next_call_has_an_urgency_of_its_own(group: asyncio.TaskGroup) -> None:
    """Whether the one before was answered or failed."""
    flight, calls = flights(group), Calls()
    calls.gate.set()
    calls.error = OriginUnavailable("s", "503")
    with pytest.raises(OriginUnavailable):
        await ask(flight, calls.call)
    calls.error = None
    for need in (3000.0, 4000.0):
        await flight.join("k", ORIGIN, Urgency(need), calls.call)
    assert [needed.need for needed in calls.needs] == [0.0, 3000.0, 4000.0]
    assert not len(flight)


async def test_a_drain_leaves_the_wanted(group: asyncio.TaskGroup) -> None:
    """The others end now."""
    flight, calls = flights(group), Calls()
    waiting = {key: asyncio.create_task(ask(flight, calls.call, key)) for key in "ab"}
    await turns()
    flight.drop("a".__eq__)
    await turns(20)
    assert waiting["b"].done()
    assert waiting["b"].exception() is not None
    calls.gate.set()
    assert await waiting["a"] == 2
