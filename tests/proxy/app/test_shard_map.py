"""The map of shards: letters for what the cache and the plans hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.house import SEGMENT, World, building, data_of, reader, shard_of, until

from forebay_proxy.app.shard_map import MOST_CELLS, NAMES_S, ShardMap

NAMES = [f"https://o/set/{number:03d}.tar" for number in range(9)]


def map_of(world: World) -> ShardMap:
    return ShardMap(world.cache, world.plans, world.resolver.versions.current, world.clock)


async def test_a_letter_says_what_is_here_and_what_was_read(tmp_path: Path) -> None:
    """Here, partly, coming, planned next, announced; read in this epoch in capitals. The readers with their places."""
    async with building(tmp_path / "c", segments=100) as world:
        for name in NAMES:
            world.origin.put(name, data_of(2 * SEGMENT))
        shards = map_of(world)
        world.plans.replace(reader(), [shard_of(name) for name in NAMES], 3)
        await world.get(NAMES[0], reader())
        await world.get(NAMES[5], None, 0, 10)
        gate = world.origin.remotes[NAMES[7]].hold(SEGMENT)
        async with world.opened(NAMES[7], None) as other, world.opened(NAMES[1], reader()) as reading:
            going_on = asyncio.create_task(world.taken(other, 2 * SEGMENT))
            await world.taken(reading, SEGMENT)
            await until(lambda: world.entry(NAMES[7]).in_use.fetching and world.entry(NAMES[7]).segments.stored_count)
            await until(lambda: world.entry(NAMES[1]).segments.stored_count == 2)  # its reader has room for both
            told = await shards.whole()
            assert told["cells"] == "HHnnnpaca"
            assert (told["prefix"], told["names"][0], told["cut"]) == ("https://o/set/00", "0.tar", False)
            assert sorted(told["readers"])[0] == [1, 0.5, False, str(reader())]
            gate.open()
            await going_on
        before = await shards.cells()
        await world.get(NAMES[2], reader())
        after = await shards.cells()
        assert (before["cells"][2], after["cells"][2], before["version"]) == ("n", "H", after["version"])
        await world.operations.evict([NAMES[2]])
        await world.quiet()
        assert (await shards.cells())["cells"][2] == "A"


async def test_names_are_told_anew_when_they_change_and_not_too_often(tmp_path: Path) -> None:
    """A page asks for them by the version."""
    async with building(tmp_path / "c", segments=100) as world:
        shards = map_of(world)
        assert (await shards.whole())["names"] == []
        world.plans.replace(reader(), [shard_of(NAMES[0])])
        first = await shards.cells()
        world.plans.replace(reader(), [shard_of(name) for name in NAMES])
        assert (await shards.cells())["version"] == first["version"]
        world.clock.advance(NAMES_S)
        assert (await shards.whole())["names"] == [name.removeprefix("https://o/set/00") for name in NAMES]
        assert (await shards.cells())["version"] == first["version"] + 1


async def test_a_huge_set_is_cut_around_its_readers(tmp_path: Path) -> None:
    """Half a million names are no map for people."""
    async with building(tmp_path / "c", segments=100) as world:
        names = [f"https://o/set/{number:06d}.tar" for number in range(3 * MOST_CELLS)]
        world.plans.replace(reader(), [shard_of(name) for name in names])
        world.plans.opened(shard_of(names[40_000]), reader())
        told = await map_of(world).whole()
        assert (len(told["names"]) <= MOST_CELLS, told["cut"], told["cells"].count("A") > 1000) == (True, True, True)
        assert f"{told['prefix']}{told['names'][0]}" > names[20_000]
