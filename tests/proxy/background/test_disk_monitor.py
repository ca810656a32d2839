"""The disk looked after: how full it is, whether it is where it was, whether it works again."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.house import SEGMENT, World, building, data_of, stored
from support.seams import disk_does, held_up

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.facts.cache import DiskChanged, DiskOperationFailed
from forebay_proxy.policy.eviction import headroom
from forebay_proxy.store.directory import Look
from forebay_proxy.store.files import file_io
from forebay_proxy.store.health import PAUSE_S

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
WELL = Look(free_bytes=10**9, size_bytes=10**10, free_files=10**6, in_place=True)


def seeing(world: World, monkeypatch: pytest.MonkeyPatch, look: Look | DiskFailed | Callable[[], Awaitable[Look]]) -> None:
    """The next looks find this."""

    async def found(patience_s: float) -> Look:
        if isinstance(look, DiskFailed):
            raise look
        return look if isinstance(look, Look) else await look()

    monkeypatch.setattr(world.store, "look", found)


async def test_what_others_take_is_worked_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes promised but not yet on the disk are free there still, and ours."""
    async with building(tmp_path / "c", segments=8) as world:
        await stored(world, A, 6)
        seeing(world, monkeypatch, replace(WELL, free_bytes=0))
        grant = world.room.reserve(SEGMENT)
        await world.disk_monitor.look()
        assert world.ledger.capacity_bytes == 6 * SEGMENT, "the promised one is not on the disk"
        await world.quiet()
        assert list(world.entry(A).segments.stored()) == [0, 1, 2, 3, 4]
        world.ledger.release(grant)
        seeing(world, monkeypatch, WELL)
        await world.disk_monitor.look()
        assert world.ledger.capacity_bytes == 8 * SEGMENT


async def test_what_comes_and_goes_while_the_disk_is_counted_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system's count and the books' are taken at two moments: what landed or left in between was free and held, or neither."""
    async with building(tmp_path / "c", segments=8) as world:
        await stored(world, A, 3)
        disk = 6 * SEGMENT

        async def writer() -> Look:
            counted = replace(WELL, free_bytes=disk - world.ledger.stored_bytes)
            await stored(world, B, 2)
            return counted

        async def leaving() -> Look:
            await world.reclaimer.evict(world.entry(B))
            counted = replace(WELL, free_bytes=disk - world.ledger.stored_bytes)
            await stored(world, B, 2)
            return counted

        for look in (replace(WELL, free_bytes=disk - 3 * SEGMENT), writer, leaving):
            seeing(world, monkeypatch, look)
            await world.disk_monitor.look()
            assert world.ledger.capacity_bytes == disk


async def test_a_quota_is_learned_from_its_first_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows in no free-space figure: afterwards segments replace one another, instead of each of them failing.

    What was learned is tried again after five minutes, of which this takes twenty: so not each look finds it.
    """
    monkeypatch.setattr(headroom, "MARGIN_BYTES", SEGMENT)
    real, quota, held = file_io.allocate, 6 * SEGMENT, [0]

    def allocate(fd: int, offset: int, length: int, abilities: Any) -> None:
        held[0] = 0
        for file in (tmp_path / "c/shards").iterdir():
            with suppress(FileNotFoundError):  # another thread may be removing it
                held[0] += file.stat().st_blocks * 512
        if held[0] + length > quota:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        real(fd, offset, length, abilities)

    disk_does(monkeypatch, allocate=allocate)
    async with building(tmp_path / "c", segments=64) as world:
        seeing(world, monkeypatch, WELL)
        learned = kept = 0
        for number in range(20):
            name, data = f"https://o/set/{number}.tar", data_of(2 * SEGMENT, number)
            world.origin.put(name, data)
            assert await world.get(name) == data
            await world.quiet()
            await world.disk_monitor.look()
            await world.quiet()
            learned += world.ledger.capacity_bytes <= quota
            kept += (entry := world.resolver.versions.current.get(name)) is not None and entry.segments.complete
            world.clock.advance(PAUSE_S)
        assert min(learned, kept) >= 10
        assert len(world.of(DiskOperationFailed)) <= 8, "of 34 that find no room: at each of four tries two, which were under way together"
        assert world.ledger.stored_bytes >= quota // 2


async def test_room_that_comes_back_within_the_second_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is looked at as soon as it refuses, so that what others give back before the next look is more than there was then."""
    async with building(tmp_path / "c", segments=8) as world:
        seeing(world, monkeypatch, replace(WELL, free_bytes=0))
        world.disk_monitor.space_refused(DiskFailed("allocate", "ENOSPC", "full"))
        refused_bytes = world.ledger.capacity_bytes
        await world.quiet()
        seeing(world, monkeypatch, WELL)
        await world.disk_monitor.look()
        assert (refused_bytes, world.ledger.capacity_bytes) == (0, 8 * SEGMENT)


async def test_a_file_system_without_inodes_to_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is not few."""
    async with building(tmp_path / "c") as world:
        seeing(world, monkeypatch, replace(WELL, free_files=None, free_bytes=None))
        await world.disk_monitor.look()
        await stored(world, A, 2)
        assert world.entry(A).segments.complete


async def test_a_disk_that_hangs_is_left_alone_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down by a look that did not come back; normal after the pause."""
    async with building(tmp_path / "c") as world:
        seeing(world, monkeypatch, DiskFailed("look", "ETIMEDOUT", "no answer"))
        await world.disk_monitor.look()
        assert (world.cache.disk.state, world.cache.disk.hung) == ("down", True)
        world.origin.put(A, data_of(SEGMENT))
        assert await world.get(A) == data_of(SEGMENT)
        assert world.ledger.stored_bytes == 0
        seeing(world, monkeypatch, WELL)
        world.clock.advance(PAUSE_S)
        await world.disk_monitor.look()
        assert world.cache.disk.state == "normal"
        await world.quiet()


async def test_a_removed_directory_is_passed_by(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not made anew: everything passes through memory and nothing is promised, told once; the next start begins an empty one."""
    path = tmp_path / "c"
    async with building(path) as world:
        data = await stored(world, A, 3)
        world.origin.put(B, data_of(2 * SEGMENT, 1))
        async with world.opened(A) as inside:
            assert (await world.taken(inside, 10))[:10] == data[:10]
            shutil.rmtree(path)
            with caplog.at_level(logging.INFO, "forebay"):
                for _ in range(8):
                    await world.disk_monitor.look()
                    world.clock.advance(20)
            rest = b"".join([bytes(chunk) async for chunk in inside.chunks()])
            assert data.endswith(rest)
        held = world.ledger.used_bytes
        assert [await world.get(B), await world.get(A)] == [data_of(2 * SEGMENT, 1), data]
        await world.quiet()
        assert world.ledger.used_bytes <= held
        assert not path.exists()
        assert (world.cache.disk.state, world.of(DiskChanged)) == ("down", [DiskChanged("down")])
        assert "was removed, replaced or unmounted" in world.cache.disk.reason
        assert sum("removed, replaced" in record.getMessage() for record in caplog.records) == 1
    async with building(path) as world:
        assert not world.room.entries
        await stored(world, A, 3)


async def test_a_directory_that_is_somebody_elses_now(tmp_path: Path) -> None:
    """Nothing of it is touched. Should the very directory come back, the next start uses it, without a byte fetched anew."""
    path = tmp_path / "c"
    async with building(path) as world:
        data = await stored(world, A, 2)
        path.rename(tmp_path / "ours")
        (path / "shards").mkdir(parents=True)
        (path / "shards" / ("0" * 64)).write_bytes(b"another's")
        for _ in range(8):
            await world.disk_monitor.look()
            world.clock.advance(20)
        assert world.cache.disk.state == "down"
        assert await world.get(A) == data, "from the files that are open"
        assert [str(found.relative_to(path)) for found in sorted(path.rglob("*"))] == ["shards", "shards/" + "0" * 64]
        shutil.rmtree(path)
        (tmp_path / "ours").rename(path)
        world.clock.advance(100)
        await world.disk_monitor.look()
        assert world.cache.disk.state == "down"
    async with building(path, origin=world.origin) as again:
        assert await again.get(A) == data
    assert len(world.origin.asked(A)) == 2, "nothing was fetched anew"


async def test_working_off_that_hangs_stops_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever touches the disk is done beside it, one at a time."""
    async with building(tmp_path / "c") as world:
        gate = held_up(monkeypatch, world.reclaimer, "work_off")
        for _ in range(5):
            async with asyncio.timeout(60):
                await world.disk_monitor.look()
            await asyncio.sleep(0)
        assert gate.calls == 1
        gate.open()
        await world.quiet()
        await world.disk_monitor.look()
        await world.quiet()
        assert gate.calls == 2
