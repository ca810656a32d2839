"""Files and places that were given up while something was being written: nobody reads what is in the new one instead."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of, stored, until
from support.seams import held_in_thread, held_up

from forebay_proxy.cache.fetching import segment_storage
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.core.facts.cache import DiskOperationFailed
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.store import store as store_module
from forebay_proxy.store.files import file_io

A = "https://o/set/a.tar"
DATA = data_of(SEGMENT)
MIB = 2**20


@pytest.mark.parametrize("moved", [False, True], ids=["removed", "moved away"])
async def test_a_fetch_over_a_directory_that_is_gone(tmp_path: Path, *, moved: bool) -> None:
    """Its reader gets the rest through memory, nothing more is promised, and no directory is made."""
    async with building(tmp_path / "c", segments=8, segment_bytes=SEGMENT_BYTES) as world:
        data = data_of(3 * SEGMENT_BYTES + 5)
        remote = world.origin.put(A, data)
        remote.chunk_bytes = MIB
        stalls = remote.hold(SEGMENT_BYTES + 7 * MIB)
        async with world.opened(A) as reading:
            got = await world.taken(reading, SEGMENT_BYTES)
            entry = world.entry(A)
            fetch = world.fetches.find(entry.key, 1)
            assert fetch is not None
            await until(lambda: fetch.position >= SEGMENT_BYTES + 4 * MIB)
            if moved:
                world.path.rename(tmp_path / "old")
            else:
                shutil.rmtree(world.path)
            await world.disk_monitor.look()
            assert await world.get(A, first=2 * SEGMENT_BYTES, last=2 * SEGMENT_BYTES + 99) == data[2 * SEGMENT_BYTES :][:100]
            async for chunk in reading.chunks():
                got += bytes(chunk)
                if len(got) > SEGMENT_BYTES + 3 * MIB:
                    stalls.open()
            assert got == data
        await world.quiet()
        assert not world.path.exists()
        assert entry.stored.charged_bytes == world.ledger.stored_bytes
        assert await world.get(A) == data


@pytest.mark.parametrize("opened", [False, True], ids=["before the file was opened", "after it was"])
async def test_room_that_was_made_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, opened: bool) -> None:
    """The disk hung, the fetch went on without it; what is freed for it afterwards is not what the next fetch is writing."""
    async with building(tmp_path / "c", segments=8, segment_bytes=SEGMENT_BYTES) as world:
        data = data_of(SEGMENT_BYTES)
        remote = world.origin.put(A, data)
        remote.chunk_bytes = MIB
        with monkeypatch.context() as patch:
            patch.setattr(segment_storage, "HUNG_S", 0.01)
            gate = held_up(patch, OpenFiles, "allocate", after=opened)
            assert await world.get(A) == data
            await until(lambda: not world.resolver.running)
        world.clock.advance(60)
        world.cache.disk.look()  # it answers again
        stalls = remote.hold(5 * MIB)
        async with world.opened(A) as reading:
            got = await world.taken(reading, MIB)
            if not opened:
                await stalls.reached.wait()
            gate.open()
            await until(lambda: len(world.tasks) == 0)
            stalls.open()
            assert got + b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
        await world.quiet()
        assert await world.get(A) == data
        await world.quiet()
        assert await world.get(A) == data
        entry = world.entry(A)
        assert entry.segments.complete
        assert entry.stored.charged_bytes == world.ledger.stored_bytes


async def test_a_file_that_was_made_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it any more: it leaves at the next pass, and not at the next start only."""
    monkeypatch.setattr(store_module, "PATIENCE_S", 0.01)
    gate, shards = held_in_thread(monkeypatch, file_io, "create"), tmp_path / "c" / "shards"
    async with building(tmp_path / "c", segments=8) as world:
        world.origin.put(A, DATA)
        assert await world.get(A) == DATA
        gate.open()
        await until(lambda: list(shards.iterdir()) and not world.store.files.open)
    assert list(shards.iterdir()) == []


async def test_a_reader_that_comes_while_a_file_leaves_that_cannot_be_punched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a file of its own; that the old one could not be thinned out for it is no fault of the disk's."""
    async with building(tmp_path / "c", segments=8) as world:
        world.store.abilities = replace(world.store.abilities, punch=False)
        data = await stored(world, A, 3)
        entry, gate = world.entry(A), held_up(monkeypatch, world.store.index_writer, "committed")
        leaving = asyncio.ensure_future(world.reclaimer.evict(entry))
        await asyncio.sleep(0)
        coming = asyncio.ensure_future(world.get(A))
        await until(lambda: entry.in_use.fetching)
        gate.open()
        assert await coming == data
        assert await leaving == 3 * SEGMENT
        assert not world.of(DiskOperationFailed)
