"""What a person asks of the cache."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of

A = "https://o/set/a.tar"
B = "https://o/set/b-1.tar"


async def test_shards_are_described(tmp_path: Path) -> None:
    """By name, with what is here of them."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(2 * SEGMENT + 1))
        await world.get(A, first=2 * SEGMENT, last=2 * SEGMENT)
        await world.quiet()
        world.clock.advance(7)
        (told,) = world.operations.shards()
        assert told == {
            "shard": A, "key": world.entry(A).key, "length_bytes": 2 * SEGMENT + 1, "stored_bytes": 1, "segments": 1,
            "segments_total": 3, "complete": False, "in_pieces": True, "identity": 'etag:"v1"', "readers": 0,
            "last_opened_s_ago": told["last_opened_s_ago"],
        }  # fmt: skip
        assert (world.operations.shards(A), world.operations.shards(B)) == ([told], [])


async def test_a_whole_opening_is_dated(tmp_path: Path) -> None:
    """Seconds ago."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(10))
        await world.get(A)
        world.clock.advance(7)
        assert world.operations.shards()[0]["last_opened_s_ago"] == 7


@pytest.mark.parametrize(("pattern", "gone"), [("*", 2), ("*/a.tar", 1), (B, 1), ("*[ab]*", 0), ("*?.tar", 2), ("nothing", 0)])
async def test_patterns_name_what_leaves(tmp_path: Path, pattern: str, gone: int) -> None:
    """``*`` and ``?``; a bracket is a bracket."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(2 * SEGMENT))
        world.origin.put(B, data_of(2 * SEGMENT))
        await world.get(A)
        await world.get(B)
        await world.quiet()
        told = await world.operations.evict([pattern])
        assert told == {"shards": gone, "bytes": gone * 2 * SEGMENT, "leased": 0}
        assert len(world.operations.shards()) == 2 - gone


@pytest.mark.parametrize("command", ["evict", "verify"])
async def test_a_long_list_does_not_hold_the_loop(tmp_path: Path, command: str) -> None:
    """Others have their turn while patterns are made ready, and between the names that they are compared with."""
    async with building(tmp_path / "c") as world:
        for number in range(5):
            world.origin.put(f"https://o/set/{number}.tar", data_of(10))
            await world.get(f"https://o/set/{number}.tar")
        await world.quiet()
        patterns = [f"https://o/other/{number}-*" for number in range(1000)]

        async def ask() -> int:
            if command == "evict":
                return (await world.operations.evict(patterns))["shards"]
            return [event async for event in world.operations.verify(patterns)][-1]["shards"]  # type: ignore[return-value]

        asking = asyncio.create_task(ask())
        turns = 0
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 1000 + 5
        assert asking.result() == 0


async def test_nothing_of_everything_stays(tmp_path: Path) -> None:
    """Not a file, not a row."""
    async with building(tmp_path / "c") as world:
        origin = world.origin
        for number in range(5):
            origin.put(f"{A}{number}", data_of(3 * SEGMENT, number))
            await world.get(f"{A}{number}")
        await world.quiet()
        await world.operations.evict(None)
        await world.quiet()
        assert world.allocated() == 0
        assert not world.room.entries
    async with building(tmp_path / "c", origin=origin) as world:
        assert not world.room.entries
