"""What is here is read as it was stored, or leaves."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of
from support.seams import disk_does

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.facts.cache import IntegrityFailed
from forebay_proxy.store.files import file_io
from forebay_proxy.store.files import shard_file as shardfile

A = "https://o/set/a.tar"


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
            await world.reclaimer.discard(world.entry(A), 0)
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
        assert len(world.of(IntegrityFailed)) <= 20
        assert world.origin.asked(A).count((SEGMENT, 2 * SEGMENT - 1)) == 2


async def test_a_wrong_segment_that_cannot_leave_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index cannot be written, so it is still here afterwards: nobody is given its bytes."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A)
        await world.quiet()
        entry = world.entry(A)
        with world.shard_file(A).open("r+b") as file:
            file.seek(SEGMENT)
            file.write(b"\xff" * SEGMENT)
        entry.segments.unverified = {1}
        with monkeypatch.context() as patch:

            async def commit(changes: object) -> None:
                raise DiskFailed("index commit", "ENOSPC", "full")

            patch.setattr(world.store.index_writer, "_commit", commit)
            assert await world.get(A) == data
            parts = await asyncio.gather(*(world.get(A, None, SEGMENT - 5, SEGMENT + 5) for _ in range(4)))
            assert parts == [data[SEGMENT - 5 : SEGMENT + 6]] * 4
            await world.quiet()
            assert entry.segments.has(1)
        assert await world.get(A) == data


async def test_a_disk_that_hangs_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first reader of a segment waits its patience out; from then on nobody asks the disk, and the segment stays."""
    monkeypatch.setattr(shardfile, "PATIENCE_S", 0.2)
    disk_does(monkeypatch, read_now=lambda *args: False)
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A)
        await world.quiet()
        gate, asked, real = threading.Event(), [0], file_io.read

        def hangs(fd: int, offset: int, length: int) -> bytes:
            asked[0] += 1
            assert gate.wait(60)
            return real(fd, offset, length)

        disk_does(monkeypatch, read=hangs)
        try:
            assert await world.get(A) == data
            assert (world.cache.disk.state, asked[0]) == ("down", 1)
            assert await asyncio.gather(*(world.get(A) for _ in range(4))) == [data] * 4
            assert asked[0] == 1
        finally:
            gate.set()
        assert world.entry(A).segments.complete
        world.clock.advance(60)
        await world.disk_monitor.look()
        assert await world.get(A) == data
        assert asked[0] > 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ENODATA])
async def test_a_segment_that_cannot_be_read_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A bad spot, or a file that somebody cut: the reader inside goes on, the next one finds it stored again."""
    disk_does(monkeypatch, read_now=lambda *args: False)
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A)
        await world.quiet()
        real = file_io.read

        def bad_spot(fd: int, offset: int, length: int) -> bytes:
            if SEGMENT <= offset < 2 * SEGMENT:
                raise OSError(code, os.strerror(code))
            return real(fd, offset, length)

        with monkeypatch.context() as patch:
            disk_does(patch, read=bad_spot)
            assert await world.get(A) == data
            await world.quiet()
        assert await world.get(A) == data
        await world.quiet()
        assert world.entry(A).segments.complete
        assert world.origin.asked(A).count((SEGMENT, 2 * SEGMENT - 1)) >= 2
