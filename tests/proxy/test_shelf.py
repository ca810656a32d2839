"""What is here is read as it was stored, or leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of, small_segments

from forebay_proxy import events

A = "https://o/set/a.tar"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


async def test_a_segment_found_wrong_by_one_reader_is_no_hole_for_another(tmp_path: Path) -> None:
    """It leaves under a lease: who is inside looks again."""
    async with building(tmp_path / "c") as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A)
        async with world.opened(A) as inside:
            world.buffers.readers.holders = 10_000  # small units
            got = await world.taken(inside, 10)
            assert len(got) < SEGMENT
            await world.clearing.discard(world.entry(A), 0)
            world.buffers.readers.holders = 1
            got += b"".join([bytes(chunk) async for chunk in inside.chunks()])
        assert got == data


async def test_two_verifiers_of_one_bad_segment_discard_it_once(tmp_path: Path) -> None:
    """The second finds it fetched again, and good."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A)
        await world.quiet()
        entry = world.entry(A)
        entry.segments.unverified = {0, 1, 2}
        entry.segments.sums[1] ^= 12345
        assert await asyncio.gather(*(world.get(A) for _ in range(20))) == [data] * 20
        assert len(world.of(events.IntegrityFailed)) <= 20
        assert world.origin.asked(A).count((SEGMENT, 2 * SEGMENT - 1)) == 2
