"""How much room a shard's first segment takes: what the head of its answer says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.house import SEGMENT, building, reader, shard_of

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.segments import BLOCK_BYTES
from forebay_proxy.transfer.limiter import AHEAD

TINY = 2000


def name(number: int, folder: str = "tiny") -> str:
    return f"https://origin.example/{folder}/{number:05}.tar"


async def test_tiny_shards_take_the_room_of_tiny_shards(tmp_path: Path) -> None:
    """In a full cache one leaves for one; with a whole segment for each, all others would leave."""
    async with building(tmp_path / "c", segments=2) as world:
        for number in range(60):
            world.origin.put(name(number), bytes([number]) * TINY)
            assert await world.get(name(number), reader()) == bytes([number]) * TINY
            assert len(world.room.entries) == min(number + 1, 2 * SEGMENT // BLOCK_BYTES)


@pytest.mark.parametrize(("folders", "large"), [(1, None), (1, 0), (100, None), (100, 20)])
async def test_wherever_they_lie(tmp_path: Path, folders: int, large: int | None) -> None:
    """In a folder each, beside a large one, or both: one leaves for one, and the cache stays full."""
    async with building(tmp_path / "c", segments=4) as world:
        tiny = [name(number, f"tiny{number % folders}") for number in range(100)]
        for number, one in enumerate(tiny):
            world.origin.put(one, bytes([number]) * TINY)
            if number == large:
                world.origin.put(name(999, "tiny0"), bytes(SEGMENT))
                await world.get(name(999, "tiny0"), reader())
            assert await world.get(one, reader()) == bytes([number]) * TINY
        assert world.ledger.free_bytes < BLOCK_BYTES


@pytest.mark.parametrize("room", [True, False])
async def test_one_larger_than_those_before(tmp_path: Path, *, room: bool) -> None:
    """Its room is there before any of its body is taken; where there is none it passes by."""
    data = bytes(range(256)) * (SEGMENT // 512)
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(name(0), bytes(TINY))
        world.origin.put(name(1), data)
        await world.get(name(0), reader())
        grant = None if room else world.ledger.reserve(world.ledger.free_bytes - BLOCK_BYTES, list)
        assert await world.get(name(1), reader()) == data
        if grant is not None:
            world.ledger.release(grant)
        await world.quiet()
        assert sum(entry.segments.complete for entry in world.room.entries.values()) == 1 + room


async def test_ahead_of_need_a_larger_one_waits_for_room(tmp_path: Path) -> None:
    """Nothing of it passes through memory for nobody, and its length is known then."""
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(name(0), bytes(TINY))
        world.origin.put(name(1), bytes(SEGMENT))
        await world.get(name(0), reader())
        grant = world.ledger.reserve(world.ledger.free_bytes - BLOCK_BYTES, list)
        with pytest.raises(CacheFull):
            await world.resolver.entry(shard_of(name(1)), "job", need=AHEAD + 1, reader=reader())
        world.ledger.release(grant)
        await world.quiet()
        assert (world.ledger.reserved_bytes, world.room.read_ahead.unread_bytes) == (0, 0)
        assert await world.get(name(1), reader()) == bytes(SEGMENT)
