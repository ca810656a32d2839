"""Who is inside a shard now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader

from forebay_proxy.core.errors import ShardChanged

A = "https://origin.example/a/a.tar"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(A, data_of(2 * SEGMENT))
        yield world


async def test_a_reader_is_inside_until_it_has_left(world: World) -> None:
    """And keeps its version here."""
    async with world.opened(A, reader()):
        assert (len(world.cache.readers), world.entry(A).in_use.readers, world.cache.readers.is_reading(reader())) == (1, 1, True)
        assert not world.cache.readers.is_reading(reader(1))
    assert (len(world.cache.readers), world.entry(A).in_use.readers, world.cache.readers.is_reading(reader())) == (0, 0, False)


async def test_a_reader_that_finds_another_version_ends_this_one(world: World) -> None:
    """However it leaves, nothing of it stays behind."""
    await world.get(A)
    entry = world.entry(A)
    with pytest.raises(ShardChanged):
        async with world.opened(A):
            raise ShardChanged(A, "it is another one")
    assert (entry.in_use.stale, len(world.cache.readers)) == (True, 0)


async def test_seconds_of_waiting_are_the_readings_own(world: World) -> None:
    """While it waits its wait can be seen, afterwards only its length."""
    async with world.opened(A) as reading:
        before = reading.tally.waited_s
        with world.cache.readers.waiting(reading):
            assert reading.tally.wait is not None
            world.clock.advance(3.0)
        assert (reading.tally.wait, reading.tally.waited_s - before) == (None, 3.0)
