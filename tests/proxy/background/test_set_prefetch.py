"""Declared sets come by themselves, behind everybody else, and as far as they fit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of, until
from support.tars import tar_shard

from forebay_proxy.background.set_prefetch import FAILED_S, MOST_FAILED, NOT_TAR_S, SetPrefetch
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.space import Slice
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.policy.plans.live_jobs import QUIET_S
from forebay_proxy.policy.plans.registry import SetShardOpened

PATTERN = "https://o/set/{00..11}.tar"
NAMES = [f"https://o/set/{number:02d}.tar" for number in range(12)]


def fill(world: World, names: list[str] = NAMES) -> None:
    for seed, name in enumerate(names):
        world.origin.put(name, shard_data(seed))


def shard_data(seed: int) -> bytes:
    """A segment that begins like a tar."""
    return tar_shard(seed)[:512] + data_of(SEGMENT, seed)[512:]


@asynccontextmanager
async def fetching(world: World, *texts: str, judges: bool = False) -> AsyncIterator[SetPrefetch]:
    """Declared sets, fetched for the length of a ``with``; ``judges``: what is called a tar must be one."""
    sets = SetPrefetch(world.cache, world.resolver, world.plans, texts, world.clock, world.tar_check if judges else None)
    world.events.on(SetShardOpened, sets.read)
    task = world.group.create_task(sets.run())
    try:
        yield sets
    finally:
        task.cancel()


def complete(world: World) -> set[str]:
    return {entry.name for entry in world.room.entries.values() if entry.segments.complete}


async def tick(world: World, sets: SetPrefetch, seconds: float = 1.0) -> None:
    """What the service does each second."""
    world.clock.advance(seconds)
    sets.look_again()
    await asyncio.sleep(0.005)
    await world.quiet()


async def test_a_set_comes_without_a_reader(tmp_path: Path) -> None:
    """All of it where it fits, each byte once; then nothing more is asked."""
    async with building(tmp_path / "c") as world:
        fill(world)
        async with fetching(world, PATTERN) as sets:
            await until(lambda: complete(world) == set(NAMES))
            asked = len(world.origin.log)
            for _ in range(3):
                await tick(world, sets)
            assert len(world.origin.log) == asked
        assert all(world.origin.sent_twice(name) == 0 for name in NAMES)


async def test_what_is_told_of_a_set(tmp_path: Path) -> None:
    """Its pattern without a query, its shards, what its jobs have opened, and what goes on."""
    async with building(tmp_path / "c") as world:
        fill(world)
        idle = SetPrefetch(world.cache, world.resolver, world.plans, [PATTERN + "?sig=secret"], world.clock)
        (told,) = idle.status_rows()
        assert (told["set"], told["shards"], told["opened"]) == (PATTERN, 12, {})
        assert told["state"] == "not fetched ahead: prefetch is off"
        assert (told["complete"], told["stored_bytes"]) == (0, 0)
    async with building(tmp_path / "d") as world:
        fill(world)
        async with fetching(world, PATTERN) as sets:
            await until(lambda: complete(world) == set(NAMES))
            await world.get(NAMES[0], reader())
            await tick(world, sets)
            (told,) = sets.status_rows()
            assert (told["opened"], told["state"]) == ({"job": 1}, "all here")
            assert (told["complete"], told["stored_bytes"]) == (12, 12 * SEGMENT)
            world.clock.advance(QUIET_S + 1)
            assert sets.status_rows()[0]["opened"] == {}  # its job is over


async def test_no_more_than_half_the_cache_is_unread(tmp_path: Path) -> None:
    """What is read makes place for what comes next."""
    async with building(tmp_path / "c", segments=8) as world:
        fill(world)
        async with fetching(world, PATTERN) as sets:
            await until(lambda: len(complete(world)) >= 4)
            await tick(world, sets)
            before = complete(world)
            assert 4 <= len(before) <= 4 + 6  # and what six workers had begun
            for name in sorted(before):
                await world.get(name)
            for _ in range(3):
                await tick(world, sets)
            assert complete(world) - before


async def test_what_an_epoch_has_read_is_not_fetched_again(tmp_path: Path) -> None:
    """Epoch after epoch, by an anonymous reader and with half the room: each costs what does not fit, and little more."""
    async with building(tmp_path / "c", segments=6) as world:
        fill(world)
        costs = []
        async with fetching(world, PATTERN) as sets:
            for _ in range(6):
                before = sum(map(world.origin.sent, NAMES))
                for seed, name in enumerate(NAMES):
                    assert await world.get(name) == shard_data(seed)
                    await tick(world, sets)
                costs.append((sum(map(world.origin.sent, NAMES)) - before) // SEGMENT)
        print(f"{costs} of 12 segments an epoch, 6 fit")
        assert sum(costs[1:]) <= 5 * (12 - 6 + 1)


async def test_an_announced_plan_goes_first(tmp_path: Path) -> None:
    """A declared set never takes the place of a shard that somebody has announced."""
    async with building(tmp_path / "c", segments=9) as world:
        other = [f"https://o/other/{number}.tar" for number in range(4)]
        fill(world, [*NAMES, *other])
        world.plans.replace(reader(), [shard_of(name) for name in other])
        for name in other:
            await world.resolver.entry(shard_of(name), "job")
        await world.quiet()
        held = complete(world)
        async with fetching(world, PATTERN) as sets:
            for _ in range(5):
                await tick(world, sets)
            assert held <= complete(world)
            assert len(complete(world)) == 7  # and two are left for whoever reads now


async def test_what_fails_is_stepped_over(tmp_path: Path) -> None:
    """A missing and a forbidden shard cost one question each for half a minute; the others come."""
    async with building(tmp_path / "c") as world:
        fill(world, NAMES[2:])
        async with fetching(world, PATTERN) as sets:
            await until(lambda: complete(world) == set(NAMES[2:]))
            await tick(world, sets)
            asked = [entry.name for entry in world.origin.log if entry.name in NAMES[:2]]
            assert len(asked) <= 4
            world.origin.put(NAMES[0], data_of(SEGMENT))
            await tick(world, sets, 2 * FAILED_S)
            await until(lambda: NAMES[0] in complete(world))


async def test_an_origin_that_has_lost_the_set_is_left_alone(tmp_path: Path) -> None:
    """After some failures in a row nothing is asked for half a minute, whatever happens."""
    async with building(tmp_path / "c") as world, fetching(world, "https://o/none/{000..999}.tar") as sets:
        await until(lambda: len(world.origin.log) >= MOST_FAILED)
        for _ in range(5):
            await tick(world, sets)
        assert len({entry.name for entry in world.origin.log}) <= MOST_FAILED + 6
        asked = len(world.origin.log)
        await tick(world, sets, FAILED_S)
        assert len(world.origin.log) > asked


async def test_what_is_ahead_is_counted_as_it_comes_and_goes(tmp_path: Path) -> None:
    """The sum that holds fetching back is that of what is unread."""
    async with building(tmp_path / "c") as world:
        fill(world)
        async with fetching(world, PATTERN) as sets:
            await until(lambda: complete(world) == set(NAMES))
            assert sets._unread.bytes == len(NAMES) * SEGMENT
            for name in NAMES[:-1]:
                await world.get(name, reader())
            await tick(world, sets)
            assert sets._unread.bytes == SEGMENT


async def test_long_shards_keep_to_half_the_cache_too(tmp_path: Path) -> None:
    """Six that are begun at once, or one that is longer: it stays in part until there is room."""
    async with building(tmp_path / "c", segments=24) as world:
        for seed, name in enumerate(NAMES):
            world.origin.put(name, data_of(16 * SEGMENT, seed))
        async with fetching(world, PATTERN) as sets:
            for _ in range(20):
                await tick(world, sets)
                assert world.ledger.stored_bytes <= 12 * SEGMENT
            assert world.ledger.stored_bytes == 12 * SEGMENT
            asked = len(world.origin.log)
            for _ in range(20):
                await tick(world, sets)
            assert len(world.origin.log) == asked


async def test_what_plans_had_fetched_counts_first(tmp_path: Path) -> None:
    """Both together are unread, and half the cache is for both."""
    async with building(tmp_path / "c", segments=8, prefetch=True) as world:
        fill(world)
        others = [f"https://o/other/{number}.tar" for number in range(4)]
        fill(world, others)
        world.plans.replace(reader(), [shard_of(name) for name in others])
        await until(lambda: complete(world) == set(others))
        async with fetching(world, PATTERN) as sets:
            for _ in range(5):
                await tick(world, sets)
            assert complete(world) == set(others)
            await world.get(others[0], reader())
            await world.get(others[1], reader())
            await tick(world, sets)
            await tick(world, sets)
            assert len(complete(world) & set(NAMES)) == 2
        world.plans.withdraw(reader())


async def test_what_a_reader_left_unread_behind_it_holds_nothing_back(tmp_path: Path) -> None:
    """It opened every shard and read the first segment of each: the rest is nobody's, and not ahead of anybody."""
    async with building(tmp_path / "c", segments=16) as world:
        for seed, name in enumerate(NAMES):
            world.origin.put(name, data_of(2 * SEGMENT, seed))
        async with fetching(world, PATTERN) as sets:
            async with asyncio.timeout(60):
                while len(first := sorted(complete(world))) < 4:
                    await tick(world, sets)
                await world.quiet()
                for name in first:
                    await world.get(name, reader(), last=100)
                while len(complete(world) - set(first)) < 4:
                    await tick(world, sets)


@pytest.mark.parametrize("length_known", [True, False])
async def test_a_body_without_ranges_that_finds_no_room_is_not_asked_for_each_second(tmp_path: Path, *, length_known: bool) -> None:
    """It comes whole or not at all: each try brings all of it that fits, for nobody."""
    async with building(tmp_path / "c", segments=8) as world:
        fill(world, NAMES[1:])
        world.origin.put(NAMES[0], data_of(12 * SEGMENT), ranged=False, length_known=length_known)
        async with fetching(world, PATTERN) as sets:
            for _ in range(20):
                await tick(world, sets)
            assert len(world.origin.asked(NAMES[0])) <= 3
            assert len(complete(world)) == 4


async def test_a_body_without_ranges_that_has_no_place_is_not_asked_for_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body is over before whoever asked for it has heard that the shard is open."""
    async with building(tmp_path / "c") as world:
        world.origin.put(NAMES[0], data_of(2 * SEGMENT), ranged=False)

        async def refused(entry: Entry, index: int, grant: Grant[Slice]) -> None:
            world.storage.give_back(entry, None, grant)

        monkeypatch.setattr(world.storage, "prepare", refused)
        async with fetching(world, "https://o/set/{00..00}.tar") as sets:
            for _ in range(20):
                await tick(world, sets)
            assert len(world.origin.asked(NAMES[0])) == 1


PAGE = b"<!DOCTYPE html><html><head><title>Log in</title></head></html>"
PAIR = "https://o/set/{00..01}.tar"


async def test_a_login_page_is_no_shard_of_a_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it stays; it is told once in the log, and with its next step to who asks; later it is asked for again, and is here."""
    async with building(tmp_path / "c", segments=64) as world:
        world.origin.put(NAMES[0], PAGE)
        world.origin.put(NAMES[1], tar_shard(1))
        async with fetching(world, PAIR, judges=True) as sets:
            await until(lambda: complete(world) == {NAMES[1]} and bool(sets.status_rows()[0]["failures"]))
            for _ in range(20):
                await tick(world, sets)
            await tick(world, sets, NOT_TAR_S / 2)
            assert len(world.origin.asked(NAMES[0])) == 1
            (told,) = sets.status_rows()
            (failure,) = told["failures"]  # type: ignore[misc, attr-defined]
            assert (told["complete"], failure["count"], failure["shard"]) == (1, 1, NAMES[0])
            assert "a web page or an error answer" in failure["cause"]
            assert "token" in failure["next_step"]
            (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert f"declared set {PAIR}: shard {NAMES[0]}: not a tar archive" in warned
            assert "nothing of it is kept; ask for its URL with curl" in warned
            world.origin.put(NAMES[0], tar_shard(0), etag='"v2"')
            await tick(world, sets, NOT_TAR_S)
            await until(lambda: complete(world) == {NAMES[0], NAMES[1]})
            await tick(world, sets)
            await tick(world, sets)
            assert (sets.status_rows()[0]["state"], sets.status_rows()[0]["failures"]) == ("all here", [])


async def test_a_set_warns_of_one_login_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not of a thousand; the others are counted."""
    async with building(tmp_path / "c", segments=64) as world:
        for name in NAMES:
            world.origin.put(name, PAGE)
        async with fetching(world, PATTERN, judges=True) as sets:
            await until(lambda: [each["count"] for each in sets.status_rows()[0]["failures"]] == [len(NAMES)])  # type: ignore[attr-defined]
        assert [record.levelname for record in caplog.records if "not a tar" in record.getMessage()] == ["WARNING"]
        assert world.ledger.stored_bytes == 0


@pytest.mark.parametrize("looked", [True, False], ids=["a reader's", "an earlier sidecar's"])
async def test_a_login_page_that_was_stored_before_does_not_stay(tmp_path: Path, *, looked: bool) -> None:
    """A reader has its bytes whatever they are; of a declared set they are no shard."""
    async with building(tmp_path / "c", segments=64) as world:
        world.origin.put(NAMES[0], PAGE)
        world.origin.put(NAMES[1], tar_shard(1))
        assert await world.get(NAMES[0], reader()) == PAGE
        assert await world.get(NAMES[1], reader()) == tar_shard(1)
        await world.quiet()
        if not looked:
            for name in NAMES[:2]:
                world.entry(name).trust.no_tar = None
        asked = len(world.origin.log)
        async with fetching(world, PAIR, judges=True) as sets:
            await until(lambda: complete(world) == {NAMES[1]})
            await tick(world, sets)
            assert len(world.origin.log) == asked  # its bytes are here: the origin need not be asked
            await world.get(NAMES[0], reader())  # it is stored once more, and is not what the set waits for
            await tick(world, sets)
            await tick(world, sets)
            assert sets.status_rows()[0]["complete"] == 1
            assert len(sets.status_rows()[0]["failures"]) == 1  # type: ignore[arg-type]


async def test_the_rest_of_what_is_no_tar_does_not_come(tmp_path: Path) -> None:
    """Its first bytes have told; megabytes more would come for nothing."""
    async with building(tmp_path / "c", segments=256) as world:
        world.origin.put(NAMES[0], b"{" * (100 * SEGMENT))
        async with fetching(world, "https://o/set/{00..00}.tar", judges=True) as sets:
            await until(lambda: bool(sets.status_rows()[0]["failures"]))
            assert len(world.origin.asked(NAMES[0])) < 20
            assert world.ledger.stored_bytes == 0


async def test_what_cannot_be_fetched_is_told_with_its_next_step(tmp_path: Path) -> None:
    """Equal causes together; what is here by now is not told."""
    async with building(tmp_path / "c") as world:
        fill(world, NAMES[3:])
        async with fetching(world, PATTERN) as sets:
            await until(lambda: complete(world) == set(NAMES[3:]) and [each["count"] for each in sets.status_rows()[0]["failures"]] == [3])  # type: ignore[attr-defined]
            (failure,) = sets.status_rows()[0]["failures"]  # type: ignore[misc, attr-defined]
            assert failure["shard"] in NAMES[:3]
            assert failure["cause"]
            assert NAMES[0] not in failure["cause"]
            world.origin.put(NAMES[0], data_of(SEGMENT))
            await tick(world, sets, 2 * FAILED_S)
            await until(lambda: [each["count"] for each in sets.status_rows()[0]["failures"]] == [2])  # type: ignore[attr-defined]
