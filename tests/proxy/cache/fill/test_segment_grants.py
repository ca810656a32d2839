"""Room for segments that are to come, in a cache of a few segments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from forebay_proxy.cache.fetching.segment_grants import in_time
from forebay_proxy.transfer.flights import Flight
from support.house import LAYOUT, SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.cache.fetching import segment_grants as module
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.facts.cache import ReservationRefused
from forebay_proxy.core.shard import Pin, Version
from forebay_proxy.transfer.limiter import DEMAND
from forebay_proxy.transfer.single_flight import Urgency

A, B = "https://origin.example/a/a.tar", "https://origin.example/b/b.tar"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with building(tmp_path / "c", segments=2) as world:
        yield world


def entry_of(count: int = 4) -> Entry:
    return Entry("0" * 64, shard_of(A), Version("etag:1", Pin(), count * SEGMENT), LAYOUT, ranged=True)


def refusals(world: World) -> list[str]:
    return [fact.reason for fact in world.of(ReservationRefused)]


@contextmanager
def full(world: World) -> Iterator[None]:
    """All of the room is somebody's who keeps it."""
    grant = world.ledger.reserve(2 * SEGMENT, list)
    yield
    world.ledger.release(grant)


async def test_a_demanded_segment_is_granted_its_size(world: World) -> None:
    """The last one of a shard is shorter."""
    entry = Entry("0" * 64, shard_of(A), Version("etag:1", Pin(), SEGMENT + 5000), LAYOUT, ranged=True)
    grants = [world.storage.grants.demand(entry, index) for index in (0, 1)]
    assert [grant.bytes for grant in grants if grant] == [entry.segments.bytes_of(0), entry.segments.bytes_of(1)]
    for grant in grants:
        assert grant is not None
        world.ledger.release(grant)


async def test_no_room_for_a_demanded_segment_is_counted(world: World) -> None:
    """It passes through memory then."""
    with full(world):
        assert world.storage.grants.demand(entry_of(), 0) is None
    assert refusals(world) == ["no-room"]


async def test_no_room_further_inside_a_shard_is_not_counted(world: World) -> None:
    """It is asked for again; nothing bypasses the cache because of it."""
    with full(world):
        assert world.storage.grants.inside(entry_of(), 0, reader()) is None
    assert refusals(world) == []


async def test_a_body_ahead_of_need_must_fit_to_its_end(world: World) -> None:
    """Of four segments in room for two none is granted; of a body that somebody waits for the next one is."""
    entry = entry_of()
    ahead, wanted = Flight(0, 4 * SEGMENT, DEMAND + 1, ahead_for=reader()), Flight(0, 4 * SEGMENT, 0.0)
    assert world.storage.grants.along(entry, 1, ahead) is None
    assert refusals(world) == ["no-room"]
    grant = world.storage.grants.along(entry, 1, wanted)
    assert grant is not None
    world.room.read_ahead.end(entry.key, 1)
    world.ledger.release(grant)


async def test_nothing_is_granted_while_the_disk_fails(world: World) -> None:
    """Each refusal that makes a bypass says so."""
    world.cache.disk.failed(DiskFailed("write", "EROFS", "read-only"))
    assert not world.cache.disk.usable
    grants = world.storage.grants
    assert [grants.demand(entry_of(), 0), grants.inside(entry_of(), 0, reader()), await grants.opening(Urgency(0.0), SEGMENT)] == [None] * 3
    assert refusals(world) == ["disk", "disk"]
    assert world.ledger.reserved_bytes == 0
    world.clock.advance(60)
    world.cache.disk.look()


async def test_an_openings_room_has_no_victims_left(world: World) -> None:
    """They are gone when it is granted: the body may be written at once."""
    for name in (A, B):
        world.origin.put(name, data_of(SEGMENT))
        await world.get(name)
    await world.quiet()
    grant = await world.storage.grants.opening(Urgency(0.0), SEGMENT)
    assert grant is not None
    assert world.ledger.stored_bytes == SEGMENT
    world.ledger.release(grant)


async def test_room_that_cannot_grow_is_given_back(world: World) -> None:
    """A header says three segments' worth where there is room for two."""
    grant = await world.storage.grants.opening(Urgency(0.0), SEGMENT)
    assert grant is not None
    assert world.storage.grants.larger(Urgency(0.0), grant, 3 * SEGMENT) is None
    assert (world.ledger.reserved_bytes, refusals(world)) == (0, ["no-room"])


async def test_a_disk_that_hangs_fails_its_flight(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work goes on, and what it makes too late is handed over."""
    monkeypatch.setattr(module, "HUNG_S", 0.01)
    gate, late = asyncio.Event(), list[str]()

    async def work() -> str:
        await gate.wait()
        return "room"

    with pytest.raises(DiskFailed, match="no room was made within"):
        await in_time(world.tasks, work(), late.append)
    gate.set()
    await world.tasks.idle()
    assert late == ["room"]
