"""One running call for all who ask, as urgent as the most urgent of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from forebay_proxy.core.errors import OriginUnavailable
from forebay_proxy.transfer.urgency import Urgency
from forebay_proxy.transfer.urgent_flight import UrgentFlight

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


async def test_who_joins_hurries_it(group: asyncio.TaskGroup) -> None:
    """And who needs it later does not slow it down."""
    hurried: list[str] = []
    flight, calls = UrgentFlight[int](group, hurried.append), Calls()
    waiting = [asyncio.create_task(flight.join("k", ORIGIN, Urgency(need), calls.call)) for need in (5000.0, 0.0, 9000.0)]
    await turns()
    (needed,) = calls.needs
    assert (needed.need, needed.waiting, hurried) == (0.0, 3, [ORIGIN])
    calls.gate.set()
    assert await asyncio.gather(*waiting) == [1, 1, 1]
    assert needed.waiting == 0


async def test_who_leaves_waits_no_more(group: asyncio.TaskGroup) -> None:
    """The call goes on, for as long as it takes."""
    flight, calls = UrgentFlight[int](group, lambda origin: None), Calls()
    waiting = asyncio.create_task(flight.join("k", ORIGIN, Urgency(0.0), calls.call))
    await turns()
    waiting.cancel()
    await turns()
    assert (calls.needs[0].waiting, "k" in flight, flight.running) == (0, True, 1)
    calls.gate.set()
    await turns()
    assert (len(flight), flight.running) == (0, 0)


async def test_the_next_call_has_an_urgency_of_its_own(group: asyncio.TaskGroup) -> None:
    """Whether the one before was answered or failed."""
    flight, calls = UrgentFlight[int](group, lambda origin: None), Calls()
    calls.gate.set()
    calls.error = OriginUnavailable("s", "503")
    with pytest.raises(OriginUnavailable):
        await flight.join("k", ORIGIN, Urgency(0.0), calls.call)
    calls.error = None
    for need in (3000.0, 4000.0):
        await flight.join("k", ORIGIN, Urgency(need), calls.call)
    assert [needed.need for needed in calls.needs] == [0.0, 3000.0, 4000.0]
    assert not flight._needs


async def test_a_drain_leaves_the_wanted(group: asyncio.TaskGroup) -> None:
    """The others end now."""
    flight, calls = UrgentFlight[int](group, lambda origin: None), Calls()
    waiting = {key: asyncio.create_task(flight.join(key, ORIGIN, Urgency(0.0), calls.call)) for key in "ab"}
    await turns()
    flight.drop("a".__eq__)
    await turns(20)
    assert waiting["b"].done()
    assert waiting["b"].exception() is not None
    calls.gate.set()
    assert await waiting["a"] == 2
