"""While plans want more, it is asked for: nearest need first, and never at a reader's cost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of, small_segments, until

from forebay_proxy import prefetch
from forebay_proxy.limiter import DEMAND
from forebay_proxy.plandesk import PlanDesk

NAMES = [f"https://o/set/{number}.tar" for number in range(12)]
SHARDS = [shard_of(name) for name in NAMES]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    monkeypatch.setattr(prefetch, "ROUND_S", 0.0)


def fill(world: World, segments: int = 2) -> None:
    for seed, name in enumerate(NAMES):
        world.origin.put(name, data_of(segments * SEGMENT, seed))


def complete(world: World) -> list[str]:
    return sorted(entry.name for entry in world.room.entries.values() if entry.segments.complete)


async def test_what_is_planned_comes_before_it_is_asked_for(tmp_path: Path) -> None:
    """The reader then waits for nothing."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        PlanDesk(world.plans, world.prefetcher, world.events).replace(reader(), SHARDS[:3])
        await until(lambda: len(complete(world)) == 3)
        for seed, name in enumerate(NAMES[:3]):
            async with world.opened(name, reader()) as reading:
                assert await world.taken(reading, 2 * SEGMENT) == data_of(2 * SEGMENT, seed)
                assert reading.waited_s == 0.0
        assert world.origin.heads() == 0
        assert all(world.origin.sent_twice(name) == 0 for name in NAMES)


async def test_the_nearest_need_is_asked_for_first(tmp_path: Path) -> None:
    """Two readers take turns."""
    async with building(tmp_path / "c", prefetch=True, connections=2) as world:
        fill(world, 1)
        world.plans.replace(reader(0), SHARDS[:3])
        world.plans.replace(reader(1), SHARDS[6:9])
        world.prefetcher.wake()
        await until(lambda: len(complete(world)) == 6)
        order = [asked.name for asked in world.origin.log]
        assert set(order[:2]) == {NAMES[0], NAMES[6]}
        assert set(order[4:]) == {NAMES[2], NAMES[8]}


async def test_a_window_ends_the_look_ahead(tmp_path: Path) -> None:
    """Half the cache for all readers; beyond it nothing is asked."""
    async with building(tmp_path / "c", segments=512, prefetch=True) as world:
        fill(world, 1)
        world.plans.replace(reader(), SHARDS)
        world.prefetcher._share_windows()
        world.prefetcher._windows[reader()].limit_bytes = 0
        world.prefetcher._windows[reader()].bytes = 3 * SEGMENT
        world.prefetcher._share_windows = lambda: None  # type: ignore[method-assign]
        world.prefetcher.wake()
        await until(lambda: len(complete(world)) == 3)
        await asyncio.sleep(0.01)
        await world.quiet()
        assert complete(world) == sorted(NAMES[:3])
        assert world.prefetcher.ahead_bytes(world.plans.all()[0]) == 3 * SEGMENT


async def test_demand_is_never_starved(tmp_path: Path) -> None:
    """A quarter of the slots is kept for it, whatever is planned."""
    async with building(tmp_path / "c", prefetch=True, connections=8) as world:
        fill(world)
        world.plans.replace(reader(), SHARDS[:8])
        gates = [world.origin.remotes[name].hold() for name in NAMES[:8]]
        world.prefetcher.wake()
        await gates[0].reached.wait()
        await until(lambda: world.origin.open == 6)
        assert await world.get(NAMES[9], reader(5)) == data_of(2 * SEGMENT, 9)
        world.origin.release()


async def test_a_reader_that_boards_a_prefetch_makes_it_demand(tmp_path: Path) -> None:
    """It is one flight, not two."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        gate = world.origin.remotes[NAMES[0]].hold(100)
        world.plans.replace(reader(), SHARDS[:1])
        world.prefetcher.wake()
        await gate.reached.wait()
        reading = asyncio.create_task(world.get(NAMES[0], reader()))
        await until(lambda: any(flight.aboard_count for flight in world.flights.all()))
        assert min(flight.need for flight in world.flights.all()) < DEMAND
        gate.open()
        assert await reading == data_of(2 * SEGMENT)
        assert world.origin.sent_twice(NAMES[0]) == 0


async def test_a_full_cache_is_not_churned(tmp_path: Path) -> None:
    """What is needed sooner is not thrown out for what is needed later: each byte is fetched once, the reader waits at most once."""
    async with building(tmp_path / "c", segments=6, prefetch=True) as world:
        fill(world)
        world.plans.replace(reader(), SHARDS)
        world.prefetcher.wake()
        await until(lambda: len(complete(world)) >= 1)
        for seed, name in enumerate(NAMES):
            assert await world.get(name, reader()) == data_of(2 * SEGMENT, seed)
            await asyncio.sleep(0.005)
        assert sum(world.origin.sent_twice(name) for name in NAMES) <= 2 * SEGMENT


async def test_what_fails_ahead_is_left_to_its_reader(tmp_path: Path) -> None:
    """Not asked again and again meanwhile."""
    async with building(tmp_path / "c", prefetch=True) as world:
        world.plans.replace(reader(), SHARDS[:1])
        for _ in range(5):
            world.prefetcher.wake()
            await asyncio.sleep(0.005)
        assert len(world.origin.log) == 1
        world.origin.put(NAMES[0], data_of(10))
        world.clock.advance(6)
        assert await world.get(NAMES[0], reader()) == data_of(10)


async def test_a_withdrawn_plan_is_fetched_no_further(tmp_path: Path) -> None:
    """Its window goes too."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        desk = PlanDesk(world.plans, world.prefetcher, world.events)
        desk.replace(reader(), SHARDS[:1])
        await until(lambda: len(complete(world)) == 1)
        assert desk.withdraw(reader())
        await until(lambda: repr(world.prefetcher) == "<Prefetcher 0 windows, 0 openings>")


async def test_a_wait_lengthens_the_window_unless_the_disk_is_full(tmp_path: Path) -> None:
    """Bytes win over lead."""
    async with building(tmp_path / "c", segments=10**6) as world:
        fill(world)
        world.plans.replace(reader(), [])
        world.prefetcher._share_windows()
        before = world.prefetcher._windows[reader()].bytes
        world.prefetcher.waited(reader())
        assert world.prefetcher._windows[reader()].bytes == 2 * before
        world.prefetcher._full = True
        world.prefetcher.waited(reader())
        world.prefetcher.waited(None)
        assert world.prefetcher._windows[reader()].bytes == 2 * before


async def test_a_stream_is_opened_ahead_and_lands_by_that(tmp_path: Path) -> None:
    """There is nothing more to ask of an origin without Range."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        world.origin.remotes[NAMES[0]].ranged = False
        world.plans.replace(reader(), SHARDS[:1])
        world.prefetcher.wake()
        await until(lambda: complete(world) == NAMES[:1])
        assert len(world.origin.log) == 1


async def test_a_failing_disk_stops_prefetch(tmp_path: Path) -> None:
    """There is nowhere to put it."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        world.cache.disk.state = "down"
        world.cache.disk._until = world.clock() + 100
        await world.get(NAMES[0], reader(), first=0, last=0)
        world.plans.replace(reader(), SHARDS[:2])
        world.prefetcher.wake()
        await asyncio.sleep(0.01)
        await world.quiet()
        assert world.ledger.stored_bytes == 0


async def test_what_fails_ahead_takes_no_place_in_the_window(tmp_path: Path) -> None:
    """Four missing shards in front of a window of three segments: those behind them come all the same."""
    async with building(tmp_path / "c", segments=6, prefetch=True) as world:
        for seed, name in enumerate(NAMES[4:7]):
            world.origin.put(name, data_of(SEGMENT, seed))
        world.plans.replace(reader(), SHARDS[:7])
        world.prefetcher.wake()
        await until(lambda: complete(world) == sorted(NAMES[4:7]))
        assert world.prefetcher._windows[reader()].bytes <= 3 * SEGMENT


async def test_stepping_over_failures_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An origin that has lost everything is not asked for everything."""
    monkeypatch.setattr(prefetch, "MOST_PASSED", 2)
    monkeypatch.setattr(prefetch, "MOST_OPENINGS", 1)
    async with building(tmp_path / "c", segments=6, prefetch=True) as world:
        world.plans.replace(reader(), SHARDS)
        for _ in range(20):
            world.prefetcher.wake()
            await asyncio.sleep(0.002)
        assert len(world.origin.log) == 5  # two stepped over, three that fill the window


async def test_what_failed_is_tried_again_without_being_asked(tmp_path: Path) -> None:
    """When its time is over the second's look wakes the prefetcher, and no sooner."""
    async with building(tmp_path / "c", prefetch=True) as world:
        world.plans.replace(reader(), SHARDS[:1])
        world.prefetcher.wake()
        await until(lambda: world.prefetcher._failed)
        fill(world)
        world.clock.advance(prefetch.FAILED_S - 1)
        world.prefetcher.look_again()
        await asyncio.sleep(0.005)
        assert len(world.origin.log) == 1
        world.clock.advance(2)
        world.prefetcher.look_again()
        await until(lambda: complete(world) == NAMES[:1])
