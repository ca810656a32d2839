"""While plans want more, it is asked for: nearest need first, and never at a reader's cost."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of, until
from support.seams import refuses

from forebay_proxy.background import prefetcher as prefetch
from forebay_proxy.cache.resident.facts import ReaderResumed
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import CacheFull, DigestDiffers, DiskFailed, ShardNotFound
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.transfer.limiter import AHEAD

NAMES = [f"https://o/set/{number}.tar" for number in range(12)]
SHARDS = [shard_of(name) for name in NAMES]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "ROUND_S", 0.0)


def fill(world: World, segments: int = 2) -> None:
    for seed, name in enumerate(NAMES):
        world.origin.put(name, data_of(segments * SEGMENT, seed))


def complete(world: World) -> list[str]:
    return sorted(entry.name for entry in world.room.entries.values() if entry.segments.complete)


async def test_a_reader_that_boards_a_prefetch_makes_it_demand(tmp_path: Path) -> None:
    """It is one fetch, not two."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        gate = world.origin.remotes[NAMES[0]].hold(100)
        world.plans.replace(reader(), SHARDS[:1])
        world.prefetcher.wake()
        await gate.reached.wait()
        reading = asyncio.create_task(world.get(NAMES[0], reader()))
        await until(lambda: any(fetch.subscribers for fetch in world.fetches.all()))
        assert min(fetch.need for fetch in world.fetches.all()) < AHEAD
        gate.open()
        assert await reading == data_of(2 * SEGMENT)
        assert world.origin.sent_twice(NAMES[0]) == 0


async def test_a_full_cache_is_not_churned(tmp_path: Path) -> None:
    """What is needed sooner is not thrown out for what is needed later: each byte is fetched once, the reader waits at most once."""
    async with building(tmp_path / "c", segments=6, prefetch=True) as world:
        fill(world)
        world.plans.replace(reader(), SHARDS)
        world.prefetcher.wake()
        await until(lambda: world.ledger.stored_bytes >= SEGMENT)
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


async def test_an_outage_is_one_line_and_not_one_a_shard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="forebay")
    async with building(tmp_path / "c", prefetch=True) as world:
        world.plans.replace(reader(), SHARDS)
        await until(lambda: len(world.prefetcher.negative_cache) >= 2)
    assert [record.args[0] for record in caplog.records if "ahead of need" in record.msg] == [NAMES[0]]


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
        await world.get(NAMES[0], reader(), first=0, last=0)
        world.plans.replace(reader(), SHARDS[:2])
        world.prefetcher.wake()
        await asyncio.sleep(0.01)
        await world.quiet()
        assert world.ledger.stored_bytes == 0


async def test_what_failed_is_tried_again_without_being_asked(tmp_path: Path) -> None:
    """When its time is over the second's look wakes the prefetcher, and no sooner."""
    async with building(tmp_path / "c", prefetch=True) as world:
        world.plans.replace(reader(), SHARDS[:1])
        world.prefetcher.wake()
        await until(lambda: world.prefetcher.negative_cache)
        fill(world)
        world.clock.advance(prefetch.FAILED_S - 1)
        world.prefetcher.look_again()
        await asyncio.sleep(0.005)
        assert len(world.origin.log) == 1
        world.clock.advance(2)
        world.prefetcher.look_again()
        await until(lambda: complete(world) == NAMES[:1])


async def test_what_is_stored_is_compared_before_its_reader_comes(tmp_path: Path) -> None:
    """By small requests, in the order of the plan; the reader's own opening then asks the origin nothing."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        for name in NAMES[:4]:
            await world.get(name, reader(0, "before"))
        await world.quiet()
        world.origin.log.clear()
        world.plans.replace(reader(0, "now"), SHARDS[:4])
        await until(lambda: world.origin.heads() == 4)
        await world.quiet()
        assert [asked.name for asked in world.origin.log] == NAMES[:4]
        for name in NAMES[:4]:
            async with world.opened(name, reader(0, "now")) as reading:
                assert reading.waited_s == 0.0
        assert len(world.origin.log) == 4


async def test_a_shard_that_changed_is_fetched_anew_ahead_of_its_reader(tmp_path: Path) -> None:
    """The comparison says so, and the new version comes."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        await world.get(NAMES[0], reader(0, "before"))
        world.origin.put(NAMES[0], data_of(2 * SEGMENT, 99), etag='"v2"')
        await world.quiet()
        world.plans.replace(reader(0, "now"), SHARDS[:1])
        await until(lambda: world.origin.heads() == 1)
        current = world.resolver.versions.current  # nothing of that name while the old one leaves
        await until(lambda: (found := current.get(NAMES[0])) and found.version.pin.value == '"v2"' and found.segments.complete)
        asked = len(world.origin.log)
        assert await world.get(NAMES[0], reader(0, "now")) == data_of(2 * SEGMENT, 99)
        assert len(world.origin.log) == asked


async def test_a_reader_hurries_a_comparison_made_ahead(tmp_path: Path) -> None:
    """It waits for its turn like demand from then on, not like prefetch."""
    async with building(tmp_path / "c", prefetch=True, connections=2) as world:
        fill(world)
        await world.get(NAMES[0], reader(0, "before"))
        gate = world.origin.remotes[NAMES[1]].hold()
        world.plans.replace(reader(1, "other"), SHARDS[1:2])
        await gate.reached.wait()  # the one slot that prefetch may have is taken
        world.plans.replace(reader(0, "now"), SHARDS[:1])
        await until(lambda: len(world.resolver._checks.calls))
        assert world.origin.heads() == 0
        assert await world.get(NAMES[0], reader(0, "now")) == data_of(2 * SEGMENT)
        assert world.origin.heads() == 1
        gate.open()


async def test_a_dead_readers_window_is_given_back(tmp_path: Path) -> None:
    """Within its expiry: its plan ends, what came for it counts no more, and the window of another that waits grows into it."""
    async with building(tmp_path / "c", segments=16, prefetch=True) as world:
        fill(world)
        world.plans.replace(reader(0), SHARDS[:6])
        world.plans.replace(reader(1), SHARDS[6:])
        await until(lambda: world.room.read_ahead.unread_bytes == 8 * SEGMENT)
        world.clock.advance(59.0)
        world.plans.heard(reader(1))
        world.clock.advance(2.0)
        world.plans.expire(lambda who: False)
        assert world.plans.get(reader(0)) is None

        def has_grown() -> bool:
            world.events.emit(ReaderResumed(reader(1)))  # who was refused room before gets it back by waiting, or by reading on
            world.prefetcher.look_again()
            return world.prefetcher.scheduler.ahead_bytes(world.plans.all()[0].reader) == 8 * SEGMENT

        await until(has_grown)
        assert world.prefetcher.scheduler.readers.window_bytes(reader(0)) == 0
        assert world.room.read_ahead.unread_bytes == 8 * SEGMENT


async def test_a_flight_that_fails_leaves_its_shard_alone_for_a_while(tmp_path: Path) -> None:
    """It is missing again, and asking at once would not help."""
    async with building(tmp_path / "c", prefetch=True, retry_budget_s=0.0, connections=2) as world:
        fill(world, 3)
        gate = world.origin.remotes[NAMES[0]].hold(100)
        world.plans.replace(reader(), SHARDS[:2])
        await gate.reached.wait()
        world.origin.remotes[NAMES[0]].fail(times=50)
        gate.open()
        await until(lambda: complete(world) == NAMES[1:2])
        await until(lambda: NAMES[0] in world.prefetcher.negative_cache)
        asked = len(world.origin.log)
        for _ in range(5):
            world.prefetcher.wake()
            await asyncio.sleep(0.002)
        assert len(world.origin.log) == asked
        world.origin.remotes[NAMES[0]].failures.clear()
        world.clock.advance(prefetch.FAILED_S + 1)
        world.prefetcher.look_again()
        await until(lambda: complete(world) == NAMES[:2])


async def asked_by(world: World, rounds: int = 200) -> int:
    """How many requests the origin has had once prefetch had many rounds to ask in."""
    for _ in range(rounds):
        world.prefetcher.wake()
        await asyncio.sleep(0.001)
    return len(world.origin.log)


async def test_an_empty_shard_is_not_opened_again_and_again(tmp_path: Path) -> None:
    """Nothing of it is kept, so it is forgotten as soon as it is known; the shards behind it come."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        world.origin.put(NAMES[0], b"")
        world.plans.replace(reader(), SHARDS[:2])
        await until(lambda: complete(world) == NAMES[1:2])
        await world.quiet()
        assert await asked_by(world) <= 4  # its first segment, its whole, and two segments of the other
        assert await world.get(NAMES[0], reader()) == b""


async def test_a_body_without_ranges_that_does_not_fit_is_left_to_its_reader(tmp_path: Path) -> None:
    """It cannot be completed, so it leaves: fetched ahead again it would take the line from all others for ever."""
    async with building(tmp_path / "c", segments=6, prefetch=True) as world:
        fill(world)
        world.origin.put(NAMES[0], data_of(9 * SEGMENT), ranged=False)
        world.plans.replace(reader(), SHARDS[:2])
        await until(lambda: NAMES[0] in world.prefetcher.negative_cache)
        await world.quiet()
        before = world.origin.sent(NAMES[0])
        await asked_by(world)
        assert world.origin.sent(NAMES[0]) == before
        assert await world.get(NAMES[0], reader()) == data_of(9 * SEGMENT)


@pytest.mark.parametrize("how", [{"identity": False}, {"ranged": False, "length_known": False}])
async def test_what_cannot_be_kept_is_opened_ahead_once(tmp_path: Path, how: dict[str, bool]) -> None:
    """Its reader has a body of its own anyway; asked again it would be opened for ever."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world, 2)
        world.origin.put(NAMES[0], data_of(3 * SEGMENT), **how)
        world.plans.replace(reader(), SHARDS[:2])
        await until(lambda: NAMES[0] in world.prefetcher.negative_cache and NAMES[1] in complete(world))
        asked = len(world.origin.asked(NAMES[0]))
        await asked_by(world)
        await world.quiet()
        assert len(world.origin.asked(NAMES[0])) == asked <= 2
        assert await world.get(NAMES[0], reader()) == data_of(3 * SEGMENT)


async def test_a_fault_of_ours_leaves_the_shard_alone_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an opening raises, the shard is tried again later."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world)
        with monkeypatch.context() as patch:
            refuses(patch, world.fetcher, KeyError("a library's"), "ask")
            world.plans.replace(reader(), SHARDS[:1])
            await until(lambda: NAMES[0] in world.prefetcher.negative_cache)
        world.clock.advance(prefetch.FAILED_S + 1)
        world.prefetcher.look_again()
        await until(lambda: complete(world) == NAMES[:1])


async def test_what_is_never_fresh_is_compared_ahead_once(tmp_path: Path) -> None:
    """With a TTL of nothing an answer is stale at once; asking again would go on for ever."""
    async with building(tmp_path / "c", prefetch=True, revalidate=0.0) as world:
        fill(world)
        for name in NAMES[:3]:
            await world.get(name, reader(1))
        world.plans.replace(reader(), SHARDS[:3])
        await asked_by(world)
        assert world.origin.heads() == 3


async def test_a_shard_whose_place_is_taken_is_left_alone_for_a_while(tmp_path: Path) -> None:
    """Somebody's folder has its file's name: its bytes could go nowhere, and would be fetched for nobody again and again."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world, 3)
        await world.get(NAMES[0])
        file = world.shard_file(NAMES[0])
        await world.quiet()
        await world.operations.evict([NAMES[0]])
        file.mkdir()
        asked = len(world.origin.log)
        world.plans.replace(reader(), SHARDS[:2])
        await until(lambda: NAMES[1] in complete(world))
        for _ in range(5):
            world.prefetcher.look_again()
            await asyncio.sleep(0.01)
        await world.quiet()
        assert len([entry for entry in world.origin.log[asked:] if entry.name == NAMES[0]]) <= 3
        assert await world.get(NAMES[0], reader()) == data_of(3 * SEGMENT, 0)
        file.rmdir()
        world.plans.replace(reader(), SHARDS[:1])
        world.clock.advance(prefetch.FAILED_S + 1)
        world.prefetcher.look_again()
        await until(lambda: NAMES[0] in complete(world))


async def test_room_that_was_lost_is_asked_for_again_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched for nobody meanwhile."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world, 2)
        await world.get(NAMES[0], first=0, last=1)
        asked = len(world.origin.asked())
        with monkeypatch.context() as patched:
            refuses(patched, world.files, CacheFull("2 segments could not be removed"), "allocate")
            world.plans.replace(reader(), SHARDS[:1])
            for _ in range(5):
                world.prefetcher.look_again()
                await asyncio.sleep(0.01)
            await world.quiet()
        assert len(world.origin.asked()) == asked == 1
        world.clock.advance(prefetch.CROWDED_S)
        world.prefetcher.look_again()
        await until(lambda: NAMES[0] in complete(world))


async def test_bodies_without_ranges_stay_within_half_the_cache(tmp_path: Path) -> None:
    """Each brings more than the segment that was asked for: all of it is unread, and counts."""
    async with building(tmp_path / "c", segments=20, prefetch=True) as world:
        for number, name in enumerate(NAMES):
            world.origin.put(name, data_of(5 * SEGMENT, number), ranged=False)
        world.plans.replace(reader(), SHARDS)
        await asked_by(world)
        await world.quiet()
        unread = sum(len(entry.segments.unread) for entry in world.room.entries.values())
        assert (unread, world.room.read_ahead.unread_bytes) == (10, 10 * SEGMENT)
        assert await world.get(NAMES[0], reader()) == data_of(5 * SEGMENT, 0)
        world.plans.withdraw(reader())
        assert world.room.read_ahead.unread_bytes == 0


async def test_a_body_without_ranges_ahead_of_need_takes_no_place_of_what_is_needed(tmp_path: Path) -> None:
    """No more than two segments a reader leave for it, in each of its tries."""
    async with building(tmp_path / "c", segments=20, prefetch=True) as world:
        fill(world, 5)
        for name in NAMES[:2]:
            await world.get(name, reader(5))
        await world.quiet()
        world.plans.replace(reader(5), SHARDS[:2])
        for number, name in enumerate(NAMES[2:], 2):
            world.origin.put(name, data_of(12 * SEGMENT, number), ranged=False)
        world.plans.replace(reader(), SHARDS[2:])
        for _ in range(4):
            await asked_by(world, 50)
            world.clock.advance(prefetch.FAILED_S + 12)
            world.prefetcher.look_again()
        await world.quiet()
        kept = [world.entry(name).segments.stored_count for name in NAMES[:2]]
        assert sum(kept) >= 10 - 2
        assert sum(map(world.origin.sent, NAMES[:2])) <= (10 + 2 * 4) * SEGMENT
        assert await world.get(NAMES[2], reader()) == data_of(12 * SEGMENT, 2)


async def test_what_came_in_vain_is_asked_for_the_later_the_longer_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of gigabytes that breaks off is not fetched as far as it goes twice a minute."""
    monkeypatch.setattr(prefetch, "WASTE_BYTES_S", SEGMENT / 10)
    async with building(tmp_path / "c", segments=20, prefetch=True) as world:
        world.origin.put(NAMES[0], data_of(10 * SEGMENT), ranged=False).fail(
            lambda name: ShardNotFound(name, "gone"), after=9 * SEGMENT, times=9
        )
        world.plans.replace(reader(), SHARDS[:1])
        await until(lambda: NAMES[0] in world.prefetcher.negative_cache)
        asked = len(world.origin.log)
        world.clock.advance(prefetch.FAILED_S + 80)
        world.prefetcher.look_again()
        assert await asked_by(world, 50) == asked
        world.clock.advance(20)
        world.prefetcher.look_again()
        assert await asked_by(world, 50) > asked


async def test_a_shard_with_a_wrong_digest_is_fetched_twice_and_left_to_its_reader(tmp_path: Path) -> None:
    """A digest that is wrong at the origin stays so, and each try costs the whole shard."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world, 3)
        world.origin.remotes[NAMES[0]].digests = (Digest("md5", bytes(16)),)
        world.plans.replace(reader(), SHARDS[:2])
        for _ in range(10):
            world.prefetcher.look_again()
            await asked_by(world, 20)
            await world.quiet()
            world.plans.heard(reader())
            world.clock.advance(prefetch.FAILED_S + 1)
        assert world.origin.sent(NAMES[0]) == 2 * 3 * SEGMENT
        with pytest.raises(DigestDiffers):
            await world.get(NAMES[0], reader())


async def test_what_its_file_refuses_is_not_fetched_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such errors are one file's own, and say nothing about the disk: nothing else would end it."""
    async with building(tmp_path / "c", prefetch=True) as world:
        fill(world, 3)
        await world.get(NAMES[0], first=0, last=1)
        append = ShardFile.append

        async def refusing(file: ShardFile, *rest: Any, **how: Any) -> None:
            if NAMES[0] in world.resolver.versions.current and file is world.entry(NAMES[0]).stored.file:
                raise DiskFailed("write", "ENOENT", "the file was given up")
            await append(file, *rest, **how)

        with monkeypatch.context() as patched:
            patched.setattr(ShardFile, "append", refusing)
            world.plans.replace(reader(), SHARDS[:2])
            await until(lambda: NAMES[1] in complete(world))
            await asked_by(world)
            await world.quiet()
            assert len(world.origin.asked(NAMES[0])) <= 6
        world.clock.advance(prefetch.CROWDED_S + 1)
        world.prefetcher.look_again()
        await until(lambda: NAMES[0] in complete(world))
