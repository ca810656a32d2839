"""Running fetches, single: who boards, who leaves, who hears of the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from forebay_proxy.transfer.flights import Flight, Flights

from forebay_proxy.core.errors import CacheFull, ForebayError


@pytest.fixture
async def group() -> AsyncIterator[asyncio.TaskGroup]:
    async with asyncio.TaskGroup() as made:
        yield made


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_followers_read_what_is_below_the_watermark() -> None:
    """And hear of the end, of the failure, or of a flight that ended before their byte."""
    flight = Flight(0, 10, 0.0)
    waiting = asyncio.create_task(flight.grown_beyond(3))
    await turns()
    flight.arrived(b"abc")
    await turns()
    assert not waiting.done()
    flight.arrived(b"d")
    assert await waiting
    flight.ended()
    assert not await flight.grown_beyond(4)
    assert await flight.grown_beyond(3)


async def test_a_failed_flight_tells_everybody_aboard() -> None:
    """The error, as one of their own."""
    flight, error = Flight(0, 10, 0.0), CacheFull("x")
    waiting = [asyncio.create_task(flight.grown_beyond(0)) for _ in range(3)]
    await turns()
    flight.ended(error)
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [(type(one), str(one)) for one in told] == [(CacheFull, "x")] * 3
    assert len({id(one) for one in (*told, error, flight.error)}) == 5, "none grows by another's frames"


async def test_a_failed_flight_is_off_the_board_before_anybody_wakes(group: asyncio.TaskGroup) -> None:
    """A newcomer never boards a dying one."""
    flights, flight, gate = Flights(group), Flight(0, 10, 0.0), asyncio.Event()
    found: list[Flight | None] = []

    async def way() -> None:
        await gate.wait()
        raise CacheFull("x")

    async def follow() -> None:
        with pytest.raises(CacheFull):
            await flight.grown_beyond(0)
        found.append(flights.find("k", 0))

    flights.take_off(flight, way(), "k", 0)
    assert flights.of("k") == flights.all() == [flight]
    following = asyncio.create_task(follow())
    await turns()
    gate.set()
    await following
    assert found == [None]


async def test_an_unexpected_fault_reaches_those_who_wait(group: asyncio.TaskGroup) -> None:
    """And takes nothing else down."""

    async def way() -> None:
        raise ZeroDivisionError

    flights, flight = Flights(group), Flight(0, 10, 0.0)
    flights.take_off(flight, way(), "k", 0)
    with pytest.raises(ZeroDivisionError):
        await flight.grown_beyond(0)


@pytest.mark.parametrize("begun", [True, False])
async def test_shutdown_ends_every_flight(begun: bool) -> None:
    """Those in the air, those about to take off, those that come after: all run their ``finally``, and all are told."""
    ended = []

    async def way() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async with asyncio.TaskGroup() as group:
        flights, one, two = Flights(group), Flight(0, 10, 0.0), Flight(0, 10, 0.0)
        flights.take_off(one, way(), "k", 0)
        if begun:
            await turns()
        flights.cancel()
        flights.take_off(two, way(), "k", 1)
    for flight in (one, two):
        with pytest.raises(ForebayError, match="shutting down"):
            await flight.grown_beyond(0)
    assert (len(ended), len(flights), flights.all()) == (2, 0, [])


async def test_a_bypass_waits_for_its_fastest_reader() -> None:
    """The window is full until that one has read on."""
    flight = Flight(0, 100, 0.0)
    with flight.aboard("slow", 0), flight.aboard("fast", 0):
        await flight.pass_by(b"a" * 10, lambda: 20)
        await flight.pass_by(b"b" * 10, lambda: 20)
        third = asyncio.create_task(flight.pass_by(b"c" * 10, lambda: 20))
        await turns()
        assert not third.done()
        flight.passengers.moved("slow", 5)
        await turns()
        assert not third.done()
        flight.passengers.moved("fast", 10)
        await third
    assert (flight.bypass, flight.on_disk.end, flight.position) == (True, 0, 30)


async def test_a_bypass_waits_a_moment_for_its_first_reader() -> None:
    """Its opening's reader hears of it one turn later."""
    flight = Flight(0, 100, 0.0)
    passing = asyncio.create_task(flight.pass_by(b"a", lambda: 20))
    await turns()
    assert not passing.done()
    with flight.aboard("late", 0):
        await passing


async def test_a_drain_drops_what_is_not_wanted(group: asyncio.TaskGroup) -> None:
    """Flights of a wanted key fly on, and those a reader flies for itself."""
    flights, gate = Flights(group), asyncio.Event()
    flown = [Flight(0, 10, 0.0) for _ in range(3)]
    for flight, key in zip(flown, ("wanted", "other", ""), strict=True):
        flights.take_off(flight, gate.wait(), key, 0 if key else -1)  # type: ignore[arg-type]
    flights.drop(lambda key: key == "wanted")
    await turns()
    assert [flight.done for flight in flown] == [False, True, False]
    gate.set()


async def test_a_drain_lets_what_has_come_be_written(group: asyncio.TaskGroup) -> None:
    """Of all keys; at the very end it is dropped too."""
    flights, gate = Flights(group), asyncio.Event()
    come, coming = Flight(0, 3, 0.0), Flight(0, 9, 0.0)
    for flight, key in ((come, "come"), (coming, "coming")):
        flights.take_off(flight, gate.wait(), key, 0)  # type: ignore[arg-type]
        flight.arrived(b"abc")
    assert flights.arrived() == {"come"}
    flights.drop(lambda key: False)
    await turns()
    assert (come.done, coming.done) == (False, True)
    flights.cancel()
    await turns()
    assert (come.done, flights.arrived()) == (True, set())


async def test_what_has_come_whole_is_waited_for(group: asyncio.TaskGroup) -> None:
    """Until it is written; what still comes is not."""
    flights, gate = Flights(group), asyncio.Event()
    come, coming = Flight(0, 3, 0.0), Flight(3, 9, 0.0)
    for index, flight in enumerate((come, coming)):
        flights.take_off(flight, gate.wait(), "k", index)  # type: ignore[arg-type]
        flight.arrived(b"abc")
    landed = asyncio.create_task(flights.ended(10))
    await turns()
    assert not landed.done()
    flights.land(come, None, "k", 0)
    await landed
    assert not coming.done
    gate.set()
