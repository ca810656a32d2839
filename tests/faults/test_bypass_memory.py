"""Readers who stop, of shards that no room can be granted for: the memory they hold is bounded, also after their flights have ended."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of

from forebay_proxy.transfer.buffers import Share

READERS = 60


async def test_stopped_readers_share_what_there_is_and_all_go_on(tmp_path: Path) -> None:
    """Sixty full windows hold the share and a unit each; who goes on gets every byte; who leaves gives its part back."""
    async with building(tmp_path / "c", segments=0) as world:
        unit = 1024
        share = world.buffers.windows = Share(16 * 4 * unit, per_holder=4, smallest_bytes=unit, largest_bytes=SEGMENT)
        data = [data_of(SEGMENT, number) for number in range(READERS)]
        for number in range(READERS):
            world.origin.put(f"https://o/set/{number}.tar", data[number])
        async with AsyncExitStack() as readers:
            inside = [await readers.enter_async_context(world.opened(f"https://o/set/{number}.tar")) for number in range(READERS)]
            await asyncio.sleep(0.1)  # every flight brings what it may
            assert share.holders == READERS
            assert share.total_bytes // 2 < share.held_bytes <= share.total_bytes + READERS * unit + SEGMENT
            got = await asyncio.gather(*(world.taken(reading, SEGMENT) for reading in inside))
            assert got == data
        await world.quiet()
        assert (share.holders, share.held_bytes) == (0, 0)


async def test_an_ended_window_counts_until_its_reader_has_left(tmp_path: Path) -> None:
    """The origin is done with the last bytes long before a slow reader is."""
    async with building(tmp_path / "c", segments=0) as world:
        world.origin.put("https://o/a.tar", data_of(1000))
        async with world.opened("https://o/a.tar") as reading:
            async with asyncio.timeout(60):
                while len(world.fetches) or not world.buffers.windows.held_bytes:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            assert (world.buffers.windows.holders, world.buffers.windows.held_bytes) == (1, 1000)
            assert await world.taken(reading, 1000) == data_of(1000)
        assert (world.buffers.windows.holders, world.buffers.windows.held_bytes) == (0, 0)


async def test_whoever_comes_too_late_for_such_a_body_has_one_of_its_own(tmp_path: Path) -> None:
    """Its beginning was passed through memory and is gone; nobody is cut off for that."""
    async with building(tmp_path / "c", segments=0) as world:
        data = data_of(3 * SEGMENT)
        world.origin.put("https://o/a.tar", data, ranged=False, length_known=False, identity=False)
        async with world.opened("https://o/a.tar") as first:
            got = await world.taken(first, SEGMENT)
            assert await world.get("https://o/a.tar") == data
            got += b"".join([bytes(chunk) async for chunk in first.chunks()])
            assert got == data


@pytest.mark.parametrize("identity", [False, True])
async def test_whoever_is_slow_is_waited_for_where_nothing_can_be_asked_twice(tmp_path: Path, identity: bool) -> None:
    """A body that names no version, and no room for it half-way: both readers get all of it, however far apart they read.

    Where it can be asked for again the slow one is not waited for, and asks again.
    """
    async with building(tmp_path / "c", segments=2) as world:
        data = data_of(6 * SEGMENT)
        world.origin.put("https://o/a.tar", data, ranged=False, length_known=False, identity=identity)
        async with world.opened("https://o/a.tar") as slow, world.opened("https://o/a.tar") as fast:
            racing = asyncio.create_task(world.taken(fast, len(data)))
            got = await world.taken(slow, 10)
            await asyncio.wait([racing], timeout=30 if identity else 0.2)
            assert racing.done() == identity
            got += b"".join([bytes(chunk) async for chunk in slow.chunks()])
            assert got == data
            assert await racing == data
