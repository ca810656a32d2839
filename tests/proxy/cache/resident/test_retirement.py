"""What nothing is left of is forgotten, and its file with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.house import building, small_segments
from support.shelves import stored

from forebay_proxy.core.errors import DiskFailed

A = "https://o/set/a.tar"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


async def test_an_empty_file_that_cannot_be_opened_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried once: nobody turns round and round over it."""
    async with building(tmp_path / "c", checked=False) as world:
        await stored(world, A, 1)
        entry, tries = world.entry(A), 0

        async def refused(key: str, *claimed: object) -> None:
            nonlocal tries
            tries += 1
            raise DiskFailed("open", "EMFILE", "too many open files")

        file, entry.stored.file = entry.stored.file, None
        assert file is not None
        await file.aclose()
        monkeypatch.setattr(world.store, "reopen", refused)
        victims = list(world.room.victims_of(entry))
        world.room.vacate(victims)
        world.room.parted(entry, [0], removed=True)
        world.ledger.gone(victims[0].bytes)
        world.retirement.retire(entry)
        await asyncio.sleep(0.05)
        assert (tries, world.room.entries, len(world.tasks)) == (1, {}, 0)
