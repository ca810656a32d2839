"""A version whose digest agreed once is fetched again in part; where other bytes come under the same ETag, no reader ends well."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fake_origin import Remote
from support.house import SEGMENT, World, building, data_of, reader

from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import DigestDiffers, ShardNotFound
from forebay_proxy.core.facts.cache import DigestChecked

A = "https://o/set/a.tar"
DATA = data_of(3 * SEGMENT)
AGAIN = 1  # the segment that comes a second time


@asynccontextmanager
async def evicted(path: Path) -> AsyncIterator[tuple[World, Remote]]:
    """A shard that was compared with its digest, less the segment ``AGAIN``."""
    async with building(path) as world:
        remote = world.origin.put(A, DATA, digests=(Digest("sha-256", hashlib.sha256(DATA).digest()),))
        assert await world.get(A, reader(0)) == DATA
        await world.quiet()
        await world.reclaimer.discard(world.entry(A), AGAIN)
        yield world, remote


async def took(reading: ShardReader) -> bytes:
    return b"".join([bytes(chunk) async for chunk in reading.chunks()])


def a_range(first: int, last: int | None) -> Callable[[World], Coroutine[Any, Any, bytes]]:
    return lambda world: world.get(A, reader(1), first=first, last=last)


# A whole shard, whose last segment is here; ranges that end with the segment, in its middle, and with the shard.
READERS = [a_range(0, None), a_range(0, 2 * SEGMENT - 1), a_range(SEGMENT + 5, SEGMENT + 50), a_range(SEGMENT + 5, None)]


@pytest.mark.parametrize("segments", [1024, 0], ids=["stored", "bypass"])
@pytest.mark.parametrize("read", READERS)
async def test_other_bytes_never_end_well(tmp_path: Path, segments: int, read: Callable[[World], Coroutine[Any, Any, bytes]]) -> None:
    """A reader that took them before the segment has landed waits for that before its own end, and is cut off."""
    async with evicted(tmp_path / "c") as (world, remote):
        if not segments:
            world.ledger.capacity_bytes = world.ledger.used_bytes
        remote.flip(SEGMENT + 7)
        gate = remote.hold(2 * SEGMENT - 1)
        reading = asyncio.create_task(read(world))
        await gate.reached.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not reading.done(), "nearly all of it has arrived, and is not proved"
        gate.open()
        with pytest.raises(DigestDiffers, match="segment 1"):
            await reading
        assert await world.get(A, reader(1)) == DATA


@pytest.mark.parametrize("read", READERS)
async def test_the_same_bytes_end_well(tmp_path: Path, read: Callable[[World], Coroutine[Any, Any, bytes]]) -> None:
    """As soon as they have landed."""
    async with evicted(tmp_path / "c") as (world, remote):
        gate = remote.hold(2 * SEGMENT - 1)
        reading = asyncio.create_task(read(world))
        await gate.reached.wait()
        gate.open()
        assert await reading in DATA


async def test_one_that_will_not_land_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A range inside it is whole, and the rest of the segment is not to be had: nothing can be compared."""
    async with evicted(tmp_path / "c") as (world, remote):
        remote.fail(lambda name: ShardNotFound(name, "gone"), after=SEGMENT // 2)
        held = remote.hold(SEGMENT + SEGMENT // 2 - 1)
        reading = asyncio.create_task(world.get(A, reader(1), first=SEGMENT, last=SEGMENT + 99))
        await held.reached.wait()
        held.open()
        async with asyncio.timeout(60):
            assert await reading == DATA[SEGMENT : SEGMENT + 100]


async def test_who_reads_a_shard_for_the_first_time_waits_for_nothing_new(tmp_path: Path) -> None:
    """A range is given out before its segment has landed, as ever: there is nothing yet to compare it with."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, DATA, digests=(Digest("sha-256", hashlib.sha256(DATA).digest()),)).hold(SEGMENT // 2)
        async with asyncio.timeout(60):
            assert await world.get(A, reader(1), last=99) == DATA[:100]
        gate.open()
        assert not world.of(DigestChecked)
