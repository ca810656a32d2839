"""Who leaves, who may have room: nothing leaves that somebody holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of, reader, shard_of, stored

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import CacheChanged, EntryLeft
from forebay_proxy.core.checksums import Checksums
from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, Version, store_key
from forebay_proxy.policy.eviction.read_ahead import FEW

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
C = "https://o/set/c.tar"
A = "s3://b/a.tar"


async def test_who_was_opened_last_leaves_first(tmp_path: Path) -> None:
    """A set that does not fit keeps a fixed part; LRU would keep nothing of it."""
    async with building(tmp_path / "c", segments=2) as world:
        for name in (A, B, C):
            await stored(world, name, 1)
        assert {entry.name for entry in world.room.entries.values()} == {A, C}


async def test_tails_leave_before_heads_of_other_shards(tmp_path: Path) -> None:
    """What is missing is spread over the set: no shard lacks everything while another has all."""
    async with building(tmp_path / "c", segments=4) as world:
        for name in (A, B, C):
            await stored(world, name, 2)
        assert {entry.name: list(entry.segments.stored()) for entry in world.room.entries.values()} == {A: [0], B: [0], C: [0, 1]}


async def test_the_tail_leaves_before_the_head(tmp_path: Path) -> None:
    """A partly evicted shard answers its first byte at once."""
    async with building(tmp_path / "c", segments=4) as world:
        await stored(world, A, 3)
        await stored(world, B, 2, 1)
        assert list(world.entry(A).segments.stored()) == [0, 1]


async def test_a_shard_without_range_leaves_whole(tmp_path: Path) -> None:
    """Part of it could not be completed."""
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(A, data_of(3 * SEGMENT), ranged=False)
        await world.get(A)
        await world.quiet()
        await stored(world, B, 2, 1)
        assert A not in world.resolver.versions.current


async def test_what_is_leased_never_leaves(tmp_path: Path) -> None:
    """There is no room then."""
    async with building(tmp_path / "c", segments=1) as world:
        await stored(world, A, 1)
        async with world.opened(A) as held:
            await world.taken(held, 10)
            with pytest.raises(CacheFull):
                world.room.reserve(SEGMENT)


async def test_prefetch_displaces_at_most_two_a_reader(tmp_path: Path) -> None:
    """And only what is needed later than what it fetches; reading them makes room for two more."""
    async with building(tmp_path / "c", segments=4) as world:
        await stored(world, A, 4)
        late, near = reader(1), reader(2)
        world.plans.replace(near, [shard_of(B)])
        world.plans.replace(late, [shard_of(C), shard_of(A)])
        now = world.clock()
        for number in range(FEW):
            grant = world.room.reserve_ahead(SEGMENT, now, near, (world.entry(A).key, 100 + number))
            await world.reclaimer.clear(grant)
            world.ledger.release(grant)
            taken = world.room.ledger.reserve(SEGMENT, list)  # somebody else had that room
            world.ledger.commit(taken)
        with pytest.raises(CacheFull):
            world.room.reserve_ahead(SEGMENT, now, near)
        for index in (100, 100, 101):
            world.room.read_ahead.end(world.entry(A).key, index)
        assert not len(world.room.read_ahead)
        with pytest.raises(CacheFull):
            world.room.reserve_ahead(SEGMENT, now + 10**6, near)
        world.ledger.doom(2 * SEGMENT)
        world.ledger.gone(2 * SEGMENT)


async def test_a_displacement_that_fails_is_not_counted_for_ever(tmp_path: Path) -> None:
    """The flight failed: its reader may displace again."""
    async with building(tmp_path / "c", segments=5, retry_budget_s=0.0) as world:
        await stored(world, A, 4)
        world.origin.put(B, data_of(3 * SEGMENT, 1))
        world.plans.replace(reader(2), [shard_of(B)])
        world.plans.replace(reader(1), [shard_of(C), shard_of(A)])
        entry, _ = await world.resolver.entry(shard_of(B), "job", need=2000.0)
        await world.quiet()
        world.origin.remotes[B].fail(times=10)
        assert world.segment_fetches.ensure(entry, 1, shard_of(B), need=2000.0, need_at=world.clock(), reader=reader(2)) is not None
        assert len(world.room.read_ahead) == 1
        await world.quiet()
        assert not len(world.room.read_ahead)


async def test_a_segment_counts_once_however_many_hold_it(tmp_path: Path) -> None:
    """And until the last of them has given it back."""
    async with building(tmp_path / "c") as world:
        await stored(world, A, 2)
        room, entry = world.room, world.entry(A)
        counts = []
        for index, change in ((0, room.lease), (0, room.lease), (1, room.lease), (0, room.release), (0, room.release)):
            change(entry, index)
            counts.append(room.leased_segments)
        assert counts == [1, 1, 2, 2, 1]
        room.release(entry, 1)


async def test_a_change_is_told_while_readers_have_plans(tmp_path: Path) -> None:
    """Without one nothing is fetched ahead, so nothing waits for room."""
    async with building(tmp_path / "c") as world:
        world.room.changed()
        assert not world.of(CacheChanged)
        world.plans.replace(reader(), [shard_of(A)])
        world.room.changed()
        assert world.of(CacheChanged)


async def test_what_is_held_does_not_leave(tmp_path: Path) -> None:
    """For the length of the ``with``; then whoever waits for the end of the version is told."""
    async with building(tmp_path / "c") as world:
        await stored(world, A, 2)
        entry = world.entry(A)
        with world.room.holding(entry, 1):
            assert list(entry.segments.may_leave()) == [0]
            world.facts.clear()
            entry.in_use.stale = True
        assert list(entry.segments.may_leave()) == [1, 0]
        assert world.of(EntryLeft) == [EntryLeft(entry)]


async def test_most_readers_leave_nothing_to_be_done(tmp_path: Path) -> None:
    """A version that stays is put in its place among those that may leave; nothing of it is compared or removed."""
    async with building(tmp_path / "c") as world:
        await stored(world, A, 2)
        world.facts.clear()
        await world.get(A)
        assert not world.of(EntryLeft)


async def test_room_for_a_long_row_is_set_aside_before_its_commit(tmp_path: Path) -> None:
    """A row of 0.8 TB takes more than the step that the index is ahead of itself; the bound is hard all the same."""
    async with building(tmp_path / "c", segment_bytes=SEGMENT_BYTES, measured=True, checked=False) as world:
        shard, version = shard_of(A), Version("etag:v", Pin(), 200_000 * SEGMENT_BYTES)
        entry = Entry(store_key(shard.name, version.identity), shard, version, DEFAULT_LAYOUT, ranged=True)
        for count in (1, 100_000):
            entry.segments.sums = Checksums(n for number in range(count) for n in (0, number + 1))  # each alone: the longest text
            world.room.claim(entry)
            set_aside = world.ledger.overhead_bytes
            await world.store.index_writer.committed()
            assert world.store.measure() <= set_aside
