"""Files are opened when wanted, closed when there are many, and missed when somebody deleted them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.house import building, small_segments
from support.shelves import stored

from forebay_proxy import openfiles

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
C = "https://o/set/c.tar"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


async def test_a_file_somebody_deleted_is_fetched_again(tmp_path: Path) -> None:
    """Whether it was open or not: no hole is read, no error is told."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 3)
        entry = world.entry(A)
        path = world.shard_file(A)
        assert entry.file is not None
        file, entry.file = entry.file, None
        await file.aclose()
        path.unlink()
        assert await asyncio.gather(*(world.get(A) for _ in range(5))) == [data] * 5
        world.clock.advance(60)
        assert await world.get(A) == data
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_idle_files_are_closed_beyond_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unused first; they open again when wanted."""
    monkeypatch.setattr(openfiles, "OPEN_FILES", 2)
    async with building(tmp_path / "c") as world:
        data = [await stored(world, name, 1, seed) for seed, name in enumerate((A, B, C))]
        await world.files.close_idle()
        assert [world.entry(name).file is None for name in (A, B, C)] == [True, False, False]
        assert await world.get(A) == data[0]
        await world.house.evict(None)
        await world.files.close_idle()
