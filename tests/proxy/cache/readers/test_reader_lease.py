"""What one reader holds of a shard: leases before it, none behind it, and the fetch it follows."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from support.house import SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.cache.readers.reader_lease import ReaderLease
from forebay_proxy.core.facts.origins import FetchJoined

A = "https://o/set/a.tar"


async def held(world: World) -> ReaderLease:
    """A hold on a shard of six segments whose first one is stored."""
    world.origin.put(A, data_of(6 * SEGMENT))
    await world.get(A, reader(0), last=9)
    await world.quiet()
    return ReaderLease(world.cache.parts, world.entry(A), shard_of(A), reader(1))


async def test_it_asks_for_what_is_missing_and_leases_all_of_it(tmp_path: Path) -> None:
    """What is on its way is not asked for again, and is needed sooner."""
    async with building(tmp_path / "c") as world:
        hold = await held(world)
        hold.arrive(0)
        hold.ask_ahead(0, 2)
        hold.ask_ahead(0, 3)
        assert sorted(world.entry(A).segments.leases) == [0, 1, 2, 3]
        assert hold.asked_to == 3
        await world.quiet()
        assert len(world.origin.asked(A)) == 4
        hold.give_up()


async def test_what_is_behind_goes_back(tmp_path: Path) -> None:
    """What is before it stays leased."""
    async with building(tmp_path / "c") as world:
        hold = await held(world)
        hold.arrive(0)
        hold.ask_ahead(0, 2)
        hold.arrive(1)
        assert sorted(world.entry(A).segments.leases) == [1, 2]
        hold.give_up()


async def test_where_there_is_no_room_it_stops_asking(tmp_path: Path) -> None:
    """The position itself may go through memory; nothing ahead of it does."""
    async with building(tmp_path / "c", segments=3) as world:
        hold = await held(world)
        hold.arrive(0)
        hold.ask_ahead(0, 5)
        assert hold.asked_to == 2
        hold.give_up()


async def test_giving_up_leaves_nothing(tmp_path: Path) -> None:
    """No lease, and nobody follows the fetch; twice is no error, and it may begin again."""
    async with building(tmp_path / "c") as world:
        hold = await held(world)
        gate = world.origin.remotes[A].hold(SEGMENT + 10)
        hold.ask_ahead(0, 1)
        fetch = hold.running(1, opened_here=False)
        assert fetch is not None
        assert (fetch.need, world.of(FetchJoined)) == (1.0, [])  # it asked for it itself
        hold.follow(fetch)
        assert (fetch.subscribers, hold.fetch, fetch.need) == (1, fetch, 0.0)
        for _ in range(2):
            hold.give_up()
            assert (fetch.subscribers, hold.fetch, hold.asked_to, world.cache.leased_segments) == (0, None, -1, 0)
        assert hold.running(1, opened_here=False) is fetch
        assert len(world.of(FetchJoined)) == 1
        gate.open()
        hold.arrive(2)
        assert world.cache.leased_segments == 1
        hold.give_up()


async def test_of_a_sparse_reader_nothing_is_asked_ahead(tmp_path: Path) -> None:
    async with building(tmp_path / "c") as world:
        hold = await held(world)
        hold.sparse = True
        hold.ask_ahead(0, 3)
        assert (hold.asked_to, len(world.fetches)) == (-1, 0)


async def test_what_was_refused_is_asked_for_again_when_there_is_room(tmp_path: Path) -> None:
    """The rest of a shard is needed before any other shard, so it is first when room appears; nobody has to read on for that."""
    async with building(tmp_path / "c", segments=5) as world:
        world.origin.put(A, data_of(3 * SEGMENT))
        world.plans.replace(reader(), [shard_of(A)])
        full = world.room.ledger.reserve(4 * SEGMENT, list)
        async with world.opened(A, reader()) as reading, aclosing(reading.chunks()) as chunks:
            await anext(chunks)
            world.cache.ask_inside()
            assert len(world.origin.asked(A)) == 1
            world.room.ledger.release(full)
            world.cache.ask_inside()
            await world.quiet()
            assert len(world.origin.asked(A)) > 1
