"""What of the declared sets nobody has read yet."""

from __future__ import annotations

from pathlib import Path

from support.house import SEGMENT, building, data_of, reader, shard_of

from forebay_proxy.background.unread_ahead import SPARE, UnreadAhead
from forebay_proxy.transfer.limiter import DEMAND

A = "https://o/set/a.tar"
SEGMENTS = 16


async def test_what_is_fetched_counts_until_it_is_read(tmp_path: Path) -> None:
    """As asked for while it comes, then as what is here of it."""
    async with building(tmp_path / "c", segments=SEGMENTS) as world:
        world.origin.put(A, data_of(SEGMENT))
        unread = UnreadAhead(world.room, world.resolver.versions, world.plans)
        unread.begin(A)
        assert (unread.is_coming(A), unread.is_asked(A), unread.bytes) == (True, False, 0)
        unread.ask(A, 3 * SEGMENT)
        assert (unread.is_asked(A), unread.bytes) == (True, 3 * SEGMENT)
        await world.resolver.entry(shard_of(A), "job", need=DEMAND + 1)
        await world.quiet()
        unread.end(A)
        unread.recount()
        assert (unread.coming, unread.bytes) == (0, SEGMENT)
        await world.get(A, reader())
        unread.recount()
        assert unread.bytes == 0


async def test_no_more_than_half_of_the_cache(tmp_path: Path) -> None:
    """All shards together."""
    async with building(tmp_path / "c", segments=SEGMENTS) as world:
        unread = UnreadAhead(world.room, world.resolver.versions, world.plans)
        unread.ask(A, (SEGMENTS // 2 - 1) * SEGMENT)
        assert [unread.may_have(size) for size in (SEGMENT, SEGMENT + 1)] == [True, False]


async def test_room_for_the_readers_is_left(tmp_path: Path) -> None:
    """A few segments each, and one for every shard that is coming."""
    async with building(tmp_path / "c", segments=SEGMENTS) as world:
        unread = UnreadAhead(world.room, world.resolver.versions, world.plans)
        most = (SEGMENTS - 1) // SPARE
        assert [unread.has_room(readers) for readers in (most, most + 1)] == [True, False]
        for number in range(SPARE):
            unread.begin(f"{number}")
        assert [unread.has_room(readers) for readers in (most - 1, most)] == [True, False]
