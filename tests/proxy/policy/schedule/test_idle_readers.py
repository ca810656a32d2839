"""The lead of an idle reader is whoever's who moves."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of, until

from forebay_proxy.background import prefetcher as prefetch
from forebay_proxy.background.plan_intake import PlanIntake
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.schedule.idle_readers import MOST_STILL_S, STILL_S, IdleReaders, patience_s
from forebay_proxy.policy.schedule.scheduler import PrefetchScheduler
from forebay_proxy.wire.protocol.plan import ReaderName

SEGMENTS = 16


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "ROUND_S", 0.0)


def shards(world: World, folder: str, count: int = 10) -> list[Shard]:
    names = [f"https://o/{folder}/{number}.tar" for number in range(count)]
    for seed, name in enumerate(names):
        world.origin.put(name, data_of(SEGMENT, seed))
    return [shard_of(name) for name in names]


def here(world: World, listed: Sequence[Shard]) -> int:
    names = {shard.name for shard in listed}
    return sum(entry.name in names and entry.segments.complete for entry in world.room.entries.values())


def width(scheduler: PrefetchScheduler, name: ReaderName) -> int:
    mine = scheduler.readers.get(name)
    assert mine is not None
    return scheduler.readers.shares.width(name, mine.window)


async def passes(world: World, seconds: float) -> None:
    for _ in range(int(seconds)):
        world.clock.advance(1.0)
        world.prefetcher.look_again()
        await world.quiet()


def test_who_stays_where_it_was_stands_still() -> None:
    """Each for as long as it may; who moves, or is not seen, is forgotten."""
    still = IdleReaders()
    still.look({"a": (1, 10.0), "b": (1, 20.0), "c": (1, 10.0)}, 0.0)
    still.look({"a": (1, 10.0), "b": (1, 20.0), "c": (2, 10.0)}, 10.0)
    assert list(still.readers) == ["a"]
    still.look({"a": (2, 10.0), "b": (1, 20.0)}, 20.0)
    assert list(still.readers) == ["b"]


@pytest.mark.parametrize(("rate", "seconds"), [(100.0, 10), (0.2, 20), (0.02, 200), (0.005, 300), (1e-9, 300)])
def test_who_has_all_of_a_shard_may_be_reading_it(rate: float, seconds: float) -> None:
    """As long as for four shards, five minutes at most; who takes bytes from us is seen to move."""
    assert patience_s(rate, has_all=True) == seconds
    assert patience_s(rate, has_all=False) == STILL_S


@pytest.mark.parametrize("rate", [0.02, 0.0001])
async def test_a_slow_reader_of_a_descriptor_keeps_its_lead_for_minutes_at_most(tmp_path: Path, rate: float) -> None:
    """While it may be reading; a trainer in a debugger is no reader for ever."""
    async with building(tmp_path / "c", segments=SEGMENTS, prefetch=True) as world:
        slow, listed = reader(job="slow"), shards(world, "slow")
        PlanIntake(world.plans, world.prefetcher, world.events).replace(slow, listed)
        async with world.opened(listed[0].name, slow) as reading:
            await world.taken(reading, SEGMENT)
            plan = world.plans.get(slow)
            assert plan is not None
            plan.pace.rate = rate
            await passes(world, 1)
            patience = min(4 / rate, MOST_STILL_S)
            world.clock.advance(patience - 2)
            await passes(world, 1)
            assert slow not in world.room.admission.idle
            await passes(world, 2)
            assert slow in world.room.admission.idle


async def test_others_have_the_lead_of_who_stands_still(tmp_path: Path) -> None:
    """After seconds, as far as they want it; never more than half of the cache is unread. When it moves it is prefetched again."""
    async with building(tmp_path / "c", segments=SEGMENTS, prefetch=True) as world:
        intake = PlanIntake(world.plans, world.prefetcher, world.events)
        stands, comes = reader(job="stands"), reader(job="comes")
        first, second = shards(world, "stands"), shards(world, "comes")
        intake.replace(stands, first)
        await until(lambda: here(world, first) == SEGMENTS // 2)
        intake.replace(comes, second)
        await passes(world, STILL_S - 2)
        assert here(world, second) == 0
        await passes(world, 4)
        await until(lambda: here(world, second) >= SEGMENTS // 2)
        assert world.room.prefetch_debts.unread_bytes <= SEGMENTS * SEGMENT // 2
        assert here(world, first) == SEGMENTS // 2  # nobody wanted this room yet
        world.room.prefetch_debts.check()

        third = shards(world, "third")
        for shard in second:  # it moves on, and takes what it needs
            await world.get(shard.name, comes)
        intake.replace(comes, third)
        await passes(world, 3)
        await until(lambda: here(world, third) >= SEGMENTS // 2)
        await world.get(first[0].name, stands)
        await passes(world, 2)
        for shard in third:
            await world.get(shard.name, comes)
        intake.withdraw(comes)
        await passes(world, 2)
        await until(lambda: here(world, first[1:3]) == 2 and world.prefetcher.scheduler.ahead_bytes(stands) >= 2 * SEGMENT)
        world.room.prefetch_debts.check()


async def test_what_nobody_took_is_its_lead_again(tmp_path: Path) -> None:
    """As far as half of the cache allows."""
    async with building(tmp_path / "c", segments=SEGMENTS, prefetch=True) as world:
        intake = PlanIntake(world.plans, world.prefetcher, world.events)
        stands, first = reader(job="stands"), shards(world, "stands")
        intake.replace(stands, first)
        await until(lambda: here(world, first) == SEGMENTS // 2)
        await passes(world, STILL_S + 1)
        assert world.room.prefetch_debts.unread_bytes == SEGMENTS * SEGMENT // 2  # nobody wants it
        world.room.admission.give_back(1, None)
        assert (world.room.prefetch_debts.unread_bytes, here(world, first)) == (0, SEGMENTS // 2)
        plan = world.plans.get(stands)
        assert plan is not None
        scheduler = world.prefetcher.scheduler
        assert (plan.need_at(plan.position), width(scheduler, stands)) == (inf, 0)
        assert world.room.admission.has_spare(SEGMENTS * SEGMENT)  # all of the cache is whoever's wants it
        await world.get(first[0].name, stands)
        await passes(world, 1)
        assert plan.need_at(plan.position) < inf
        assert scheduler.readers.shares.paused == set()
        assert world.room.prefetch_debts.unread_bytes >= (SEGMENTS // 2 - 2) * SEGMENT
        assert all(world.origin.sent_twice(shard.name) == 0 for shard in first)


async def test_each_of_two_jobs_has_half_of_what_may_be_ahead(tmp_path: Path) -> None:
    """However many readers one of them has."""
    async with building(tmp_path / "c", segments=64) as world:
        many = [reader(number, job="many") for number in range(7)]
        for number, one in enumerate(many):
            world.plans.replace(one, shards(world, f"many{number}"))
        alone = reader(job="alone")
        world.plans.replace(alone, shards(world, "alone"))
        scheduler = world.prefetcher.scheduler
        scheduler.look_again()
        windows = {name: width(scheduler, name) for name in (alone, many[0])}
        assert windows[alone] == 16 * SEGMENT
        assert sum(scheduler.readers.shares.limit_bytes("many") for _ in many) <= 16 * SEGMENT


async def test_who_reads_on_where_it_stood_has_its_lead_again(tmp_path: Path) -> None:
    """It opens nothing, so no opening tells: bytes of the shard that it is inside do."""
    async with building(tmp_path / "c", segments=SEGMENTS, prefetch=True) as world:
        intake = PlanIntake(world.plans, world.prefetcher, world.events)
        stands, listed = reader(job="stands"), shards(world, "stands")
        world.origin.put(listed[0].name, data_of(4 * SEGMENT))
        intake.replace(stands, listed)
        async with world.opened(listed[0].name, stands) as reading:
            chunks = reading.chunks()
            await anext(chunks)
            await until(lambda: world.room.prefetch_debts.unread_bytes >= SEGMENTS // 4 * SEGMENT)
            await passes(world, STILL_S + 1)
            world.room.admission.give_back(1, None)
            scheduler, plan = world.prefetcher.scheduler, world.plans.get(stands)
            assert plan is not None
            assert (scheduler.readers.shares.paused, plan.need_at(plan.position)) == ({stands}, inf)
            assert world.room.prefetch_debts.unread_bytes == 0
            await passes(world, 1)
            assert scheduler.readers.shares.paused == {stands}  # it has not moved
            await anext(chunks)
            await passes(world, 1)
            assert scheduler.readers.shares.paused == set()
            assert plan.need_at(plan.position) < inf
            assert world.room.prefetch_debts.unread_bytes > 0
            async for _ in chunks:
                pass


async def test_others_may_have_the_room_of_a_lead_in_a_set_that_is_read(tmp_path: Path) -> None:
    """What its job has not read of a set would stay before what was read; an idle reader does not need it soon."""
    async with building(tmp_path / "c", segments=SEGMENTS, prefetch=True) as world:
        intake = PlanIntake(world.plans, world.prefetcher, world.events)
        stands, listed = reader(job="stands"), shards(world, "stands")
        intake.replace(stands, listed)
        await world.get(listed[0].name, stands)  # its set is one that is read
        await until(lambda: world.room.prefetch_debts.unread_bytes >= SEGMENTS // 4 * SEGMENT)
        await passes(world, STILL_S + 1)
        assert not world.room.admission.has_spare(SEGMENTS * SEGMENT)
        world.room.admission.give_back(1, None)
        assert world.room.admission.has_spare(SEGMENTS * SEGMENT)
