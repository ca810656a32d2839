"""Who hears what: facts of one part that nobody but ``build_cache`` brings to another."""

from __future__ import annotations

from pathlib import Path

from support.house import SEGMENT, building, data_of, reader, shard_of, stored, until

A = "s3://b/a.tar"


async def test_an_outdated_version_leaves_once_the_last_who_held_it_is_gone(tmp_path: Path) -> None:
    """Also who held a segment without reading it, as a look at its bytes does."""
    async with building(tmp_path / "c") as world:
        await stored(world, A, 2)
        entry = world.entry(A)
        with world.room.holding(entry, 1):
            world.room.outdated(entry)
            await world.quiet()
            assert [entry.segments.has(index) for index in range(2)] == [False, True]
        await until(lambda: entry.key not in world.room.entries)


async def test_a_name_of_which_nothing_is_left_means_nothing(tmp_path: Path) -> None:
    """The next who opens it asks the origin."""
    async with building(tmp_path / "c") as world:
        await stored(world, A, 2)
        entry = world.entry(A)
        await world.reclaimer.evict(entry)
        await until(lambda: A not in world.resolver.versions.current)


async def test_a_shard_that_its_reader_passed_over_leaves_before_one_that_it_still_needs(tmp_path: Path) -> None:
    """Nothing of the shard itself tells: only its reader's plan does."""
    async with building(tmp_path / "c") as world:
        names = [f"s3://b/{number}.tar" for number in range(3)]
        for name in names:
            world.origin.put(name, data_of(SEGMENT))
            await world.get(name, reader())
        await world.quiet()
        world.plans.replace(reader(), [shard_of(name) for name in names])
        assert [entry.name for _, entry in world.room.candidates.in_order()] == names[::-1]  # the one that is needed last leaves first
        world.plans.opened(shard_of(names[1]), reader())
        assert [entry.name for _, entry in world.room.candidates.in_order()][-1] == names[2]
