"""Why segments left, as metrics name it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.house import SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.core.facts.cache import Evicted
from forebay_proxy.transfer.limiter import AHEAD

NAMES = [f"https://o/set/{number}.tar" for number in range(12)]


def reasons(world: World) -> Counter[str]:
    return Counter(fact.reason for fact in world.of(Evicted))


async def test_what_a_person_evicts_is_told_as_that(tmp_path: Path) -> None:
    """Read or not."""
    async with building(tmp_path / "c", segments=8) as world:
        for seed, name in enumerate(NAMES[:2]):
            world.origin.put(name, data_of(SEGMENT, seed))
        await world.get(NAMES[0], reader())
        await world.resolver.entry(shard_of(NAMES[1]), "job", need=AHEAD + 1)
        await world.quiet()
        assert (await world.operations.evict(["*"]))["shards"] == 2
        assert reasons(world) == {"admin": 2}


async def test_what_nobody_read_is_told_as_that(tmp_path: Path) -> None:
    """Fetched ahead for somebody who never came; what was read before it left is a guess, and what is wrong neither."""
    async with building(tmp_path / "c", segments=4) as world:
        for seed, name in enumerate(NAMES):
            world.origin.put(name, data_of(SEGMENT, seed))
        nobodys = ["https://o/other/0.tar", "https://o/other/1.tar"]
        for name in nobodys:
            world.origin.put(name, data_of(SEGMENT, 99))
            await world.resolver.entry(shard_of(name), "job", need=AHEAD + 1)
        await world.quiet()
        for name in NAMES[2:8]:
            await world.get(name, reader())
        await world.quiet()
        assert reasons(world) == {"unused": 2, "guess": 2}
        await world.reclaimer.discard(world.entry(NAMES[7]), 0)
        assert reasons(world)["other"] == 1
