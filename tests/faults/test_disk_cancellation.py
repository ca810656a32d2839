"""Whoever makes room is cancelled at each of its awaits: the books agree with the disk afterwards, and every byte is right.

As test_cancellation.py, for those who hold room rather than readers: grants, victims on their way out, files being removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.cancelling import Cut, When, at_each_await
from support.fake_origin import FakeOrigin
from support.house import SEGMENT, World, building, data_of

from forebay_proxy.core.errors import CacheFull

A = "https://o/set/a.tar"
DATA = data_of(4 * SEGMENT)
Scenario = Callable[[World, Cut], Awaitable[None]]


async def a_grant_is_cleared(world: World, cut: Cut) -> None:
    """For an opening: the grant is closed by whoever was cancelled, and open for whoever was not."""
    grant = world.room.reserve(2 * SEGMENT)
    assert len(grant.victims) == 2
    await cut.run(world.reclaimer.clear(grant))
    if not grant.closed:
        world.ledger.release(grant)


async def a_segment_is_prepared(world: World, cut: Cut) -> None:
    """Room is made in the shard's own tail for a segment of its own that has left."""
    entry = world.entry(A)
    await world.reclaimer.discard(entry, 0)
    entry.in_use.fetching += 1  # as its fetch would
    try:
        free, grant = world.room.reserve(SEGMENT), world.room.reserve(SEGMENT)
        world.ledger.release(free)
        assert grant.victims
        file = await cut.run(world.storage.prepare(entry, 0, grant))
        if file is not None:
            world.storage.give_back(entry, 0, grant)
    finally:
        entry.in_use.fetching -= 1
        world.room.left(entry)


async def an_eviction(world: World, cut: Cut) -> None:
    await cut.run(world.reclaimer.evict(world.entry(A)))


async def a_discard(world: World, cut: Cut) -> None:
    await cut.run(world.reclaimer.discard(world.entry(A), 2))


async def working_off(world: World, cut: Cut) -> None:
    world.ledger.capacity_bytes = 2 * SEGMENT
    await cut.run(world.reclaimer.work_off())
    world.ledger.capacity_bytes = 4 * SEGMENT


async def the_directory_vanishes(world: World, cut: Cut) -> None:
    """Cancelled while it is looked at: the next look ends it."""
    aside = world.path.with_name("aside")
    world.path.rename(aside)
    await cut.run(world.disk_monitor.look())
    aside.rename(world.path)
    for _ in range(3):
        world.clock.advance(100)
        await world.disk_monitor.look()
        await world.quiet()


SCENARIOS: dict[Scenario, int] = {  # and at how many awaits at least it can be cancelled
    a_grant_is_cleared: 1, a_segment_is_prepared: 1, an_eviction: 1, a_discard: 1, working_off: 1,
    the_directory_vanishes: 1,
}  # fmt: skip


@pytest.mark.parametrize("when", When, ids=lambda when: when.value)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_whoever_makes_room_may_be_cancelled(tmp_path: Path, scenario: Scenario, when: When) -> None:
    """At any of its awaits: nothing stays promised, doomed or half removed, and the shard comes whole."""
    async for cut in at_each_await(when):
        origin = FakeOrigin()
        origin.put(A, DATA)
        async with building(tmp_path / str(cut.number), segments=4, origin=origin) as world:
            assert await world.get(A) == DATA
            await world.quiet()
            try:
                await scenario(world, cut)
            except CacheFull:
                assert cut.made
            await world.quiet()
            world.check()
            assert world.ledger.unallocated_bytes == 0
            assert await world.get(A) == DATA
            await world.quiet()
            world.check()
    assert cut.number > SCENARIOS[scenario]
    print(f"{scenario.__name__}: cancelled at each of {cut.number - 1} awaits ({when.value})")
