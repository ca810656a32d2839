"""Files are opened when wanted, closed when there are many, missed when somebody deleted them, and gone with what was in them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, stored

from forebay_proxy.cache.resident import open_files
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.facts.cache import IntegrityFailed
from forebay_proxy.store.files import fallocate

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
C = "https://o/set/c.tar"


async def test_a_file_somebody_deleted_is_fetched_again(tmp_path: Path) -> None:
    """Whether it was open or not: no hole is read, no error is told."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 3)
        entry = world.entry(A)
        path = world.shard_file(A)
        assert entry.stored.file is not None
        file, entry.stored.file = entry.stored.file, None
        await file.aclose()
        path.unlink()
        assert await asyncio.gather(*(world.get(A) for _ in range(5))) == [data] * 5
        world.clock.advance(60)
        assert await world.get(A) == data
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_idle_files_are_closed_beyond_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unused first; they open again when wanted."""
    monkeypatch.setattr(open_files, "OPEN_FILES", 2)
    async with building(tmp_path / "c") as world:
        data = [await stored(world, name, 1, seed) for seed, name in enumerate((A, B, C))]
        await world.files.close_idle()
        assert [world.entry(name).stored.file is None for name in (A, B, C)] == [True, False, False]
        assert await world.get(A) == data[0]
        await world.operations.evict(None)
        await world.files.close_idle()


async def closed(world: World, name: str) -> Path:
    """The shard's file, after it was closed as the idle ones are."""
    entry = world.entry(name)
    assert entry.stored.file is not None
    file, entry.stored.file = entry.stored.file, None
    await file.aclose()
    return world.shard_file(name)


async def test_a_hole_where_something_is_claimed_is_found_when_the_file_is_opened(tmp_path: Path) -> None:
    """An index older than its files, or somebody's punch: those segments are verified, found wrong and fetched; the others are trusted."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 4)
        with (await closed(world, A)).open("r+b") as file:
            fallocate.punch(file.fileno(), SEGMENT + 4096, 4096)
            fallocate.punch(file.fileno(), 3 * SEGMENT, SEGMENT)
        world.origin.log.clear()
        assert await asyncio.gather(*(world.get(A) for _ in range(5))) == [data] * 5
        assert set(world.origin.asked(A)) == {(SEGMENT, 2 * SEGMENT - 1), (3 * SEGMENT, 4 * SEGMENT - 1)}
        assert len(world.of(IntegrityFailed)) >= 2
        await world.quiet()
        assert not world.entry(A).segments.unverified


async def test_a_file_that_is_another_when_it_is_opened_again_is_missed(tmp_path: Path) -> None:
    """One of another length took its name: nothing of it is served."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 2)
        (await closed(world, A)).write_bytes(b"!" * (2 * SEGMENT - 1))
        assert await world.get(A) == data
        world.clock.advance(60)
        assert await world.get(A) == data
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_a_file_that_was_cut_while_open_leaves(tmp_path: Path) -> None:
    """A short read is no end of the shard, a write beyond the cut makes no hole of it, and the next opening has a file of its own again."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 4)
        os.truncate(world.shard_file(A), SEGMENT + 100)
        for _ in range(4):
            assert await world.get(A) == data
            await world.quiet()
            world.clock.advance(60)
        assert world.entry(A).segments.complete
        assert world.shard_file(A).stat().st_size == len(data)
        world.origin.log.clear()
        assert await world.get(A) == data
        assert world.origin.asked(A) == []


async def test_a_disk_that_hangs_is_not_asked(tmp_path: Path) -> None:
    """Until its pause is over."""
    async with building(tmp_path / "c") as world:
        await stored(world, A, 1)
        world.cache.disk.hung = True
        with pytest.raises(CacheError, match="does not answer"):
            await world.files.stored(world.entry(A))
        world.cache.disk.hung = False
        assert await world.files.stored(world.entry(A)) is world.entry(A).stored.file


async def test_who_holds_the_file_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What removes something of it may hang with the disk."""
    monkeypatch.setattr(open_files, "PATIENCE_S", 0.01)
    async with building(tmp_path / "c") as world:
        await stored(world, A, 1)
        entry = world.entry(A)
        async with entry.stored.lock:
            with pytest.raises(DiskFailed, match="no answer within"):
                await world.files.stored(entry)


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
        monkeypatch.setattr(world.store.files, "reopen", refused)
        victims = list(world.room.candidates.victims_of(entry))
        world.room.vacate(victims)
        world.room.removal_ended(entry, [0], removed=True)
        world.ledger.gone(victims[0].bytes)
        world.reclaimer.retire(entry)
        await asyncio.sleep(0.05)
        assert (tries, world.room.entries, len(world.tasks)) == (1, {}, 0)
