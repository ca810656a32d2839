"""Which flight brings a segment, and when another takes off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.core.errors import CacheFull, DiskFailed
from forebay_proxy.core.facts.origins import Refetched
from forebay_proxy.transfer.limiter import DEMAND

A = "https://origin.example/a/a.tar"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Of a shard of four segments the first is here; there is room for three."""
    async with building(tmp_path / "c", segments=3) as world:
        world.origin.put(A, data_of(4 * SEGMENT))
        await world.get(A, last=9)
        await world.quiet()
        yield world


def ensure(world: World, index: int) -> object:
    return world.segment_fetches.ensure(world.entry(A), index, shard_of(A), need=DEMAND + 1, need_at=None, reader=None)


async def test_ahead_of_need_a_missing_segment_takes_off_once(world: World) -> None:
    """What is here or in the air is not asked for again."""
    assert ensure(world, 0) is None
    flight = ensure(world, 1)
    assert flight is not None
    assert world.segment_fetches.find(world.entry(A), 1) is flight
    assert ensure(world, 1) is None
    await world.quiet()
    assert len(world.origin.asked(A)) == 2


async def test_ahead_of_need_nothing_takes_off_where_it_cannot_stay(world: World) -> None:
    """Of a version that nobody could complete, or while the disk fails."""
    entry = world.entry(A)
    entry.ranged = False
    with pytest.raises(CacheFull, match="cannot be completed"):
        ensure(world, 1)
    entry.ranged = True
    world.cache.disk.failed(DiskFailed("write", "EROFS", "read-only"))
    with pytest.raises(CacheFull, match="disk is failing"):
        ensure(world, 1)
    world.clock.advance(60)
    world.cache.disk.look()


async def test_what_is_needed_now_flies_without_room_too(world: World) -> None:
    """What lies before the reader does not."""
    entry, flights = world.entry(A), world.segment_fetches
    grant = world.ledger.reserve(world.ledger.free_bytes, list)
    entry.segments.lease(0)
    assert not flights.launch_ahead(entry, 2, shard_of(A), 1.0, None)
    flight = flights.launch(entry, 1, shard_of(A), 0.0, None)
    assert flight.bypass
    entry.segments.release(0)
    world.ledger.release(grant)
    await world.quiet()
    assert not entry.segments.has(1)


async def test_a_flight_for_one_reader_is_found_by_nobody_else(world: World) -> None:
    """It ends where its segment does, and counts as fetched twice."""
    entry, flights = world.entry(A), world.segment_fetches
    flight = flights.launch_alone(entry, SEGMENT + 10, shard_of(A))
    assert (flight.first, flight.end, flight.bypass) == (SEGMENT + 10, 2 * SEGMENT, True)
    assert flights.find(entry, 1) is None
    assert [fact.bytes for fact in world.of(Refetched)] == [SEGMENT - 10]
    await world.quiet()


async def test_a_flight_is_hurried_and_never_slowed(world: World) -> None:
    """The nearest need of all who wait is its need."""
    entry, flights = world.entry(A), world.segment_fetches
    flight = flights.launch(entry, 1, shard_of(A), 5.0, None)
    flights.hurry(entry, flight, 2.0)
    flights.hurry(entry, flight, 9.0)
    assert flight.need == 2.0
    await world.quiet()


async def test_only_a_reader_with_a_plan_has_announced_itself(world: World) -> None:
    """A name alone says nothing of the future."""
    known = world.segment_fetches.announced
    assert (known(None), known(reader())) == (None, None)
    world.plans.replace(reader(), [shard_of(A)])
    assert known(reader()) == reader()
