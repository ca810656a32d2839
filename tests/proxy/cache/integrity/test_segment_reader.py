"""What is here is read as it was stored, or leaves."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of, until
from support.seams import disk_does, held_in_thread, refuses

from forebay_proxy.cache.integrity.segment_reader import Finding
from forebay_proxy.core.errors import DiskFailed, WrongBytes
from forebay_proxy.core.facts.cache import IntegrityFailed, SegmentVerified
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
        data = await stored(world)
        entry = world.entry(A)
        entry.segments.unverified = {0, 1, 2}
        entry.segments.sums[1] ^= 12345
        assert await asyncio.gather(*(world.get(A) for _ in range(20))) == [data] * 20
        assert len(world.of(IntegrityFailed)) <= 20
        assert world.origin.asked(A).count((SEGMENT, 2 * SEGMENT - 1)) == 2


async def test_a_wrong_segment_that_cannot_leave_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index cannot be written, so it is still here afterwards: nobody is given its bytes."""
    async with building(tmp_path / "c") as world:
        data = await stored(world)
        entry = world.entry(A)
        with world.shard_file(A).open("r+b") as file:
            file.seek(SEGMENT)
            file.write(b"\xff" * SEGMENT)
        entry.segments.unverified = {1}
        with monkeypatch.context() as patch:
            refuses(patch, world.store.index_writer, DiskFailed("index commit", "ENOSPC", "full"), "_commit")
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
        data = await stored(world)
        gate = held_in_thread(monkeypatch, file_io, "read")
        try:
            assert await world.get(A) == data
            assert (world.cache.disk.state, gate.calls) == ("down", 1)
            assert await asyncio.gather(*(world.get(A) for _ in range(4))) == [data] * 4
            assert gate.calls == 1
        finally:
            gate.open()
        assert world.entry(A).segments.complete
        world.clock.advance(60)
        await world.disk_monitor.look()
        assert await world.get(A) == data
        assert gate.calls > 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ENODATA])
async def test_a_segment_that_cannot_be_read_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A bad spot, or a file that somebody cut: the reader inside goes on, the next one finds it stored again."""
    disk_does(monkeypatch, read_now=lambda *args: False)
    async with building(tmp_path / "c") as world:
        data = await stored(world)
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


async def stored(world: World, segments: int = 3) -> bytes:
    data = data_of(segments * SEGMENT - 5)
    world.origin.put(A, data)
    await world.get(A)
    await world.quiet()
    return data


def damage(world: World, offset: int) -> None:
    """Another byte on the disk."""
    with world.shard_file(A).open("r+b") as file:
        file.seek(offset)
        value = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([value ^ 1]))


async def test_right_bytes_stay(tmp_path: Path) -> None:
    """Every segment, the short last one too."""
    async with building(tmp_path / "c") as world:
        await stored(world)
        entry = world.entry(A)
        assert [await world.segment_reader.verify(entry, index, "verify", gentle=True) for index in range(3)] == [Finding.RIGHT] * 3
        assert await world.segment_reader.verify(entry, 3, "verify") is Finding.GONE
        assert [fact.right for fact in world.of(SegmentVerified)] == [True] * 3


@pytest.mark.parametrize("gentle", [True, False])
async def test_a_wrong_segment_leaves_and_comes_again(tmp_path: Path, gentle: bool) -> None:
    """The next reader gets the right bytes, of that segment from the origin."""
    async with building(tmp_path / "c") as world:
        data = await stored(world)
        damage(world, SEGMENT + 77)
        entry = world.entry(A)
        asked = len(world.origin.log)
        assert await world.segment_reader.verify(entry, 1, "verify", gentle=gentle) is Finding.WRONG
        assert not entry.segments.has(1)
        assert await world.get(A) == data
        assert world.origin.asked(A)[asked:] == [(SEGMENT, 2 * SEGMENT - 1)]
        assert [fact.stage for fact in world.of(IntegrityFailed)] == ["read"]


async def test_two_wrong_segments_found_at_one_time(tmp_path: Path) -> None:
    """That one leaves says nothing about the other."""
    for number in range(5):
        async with building(tmp_path / f"c{number}") as world:
            await stored(world)
            for index in range(3):
                damage(world, index * SEGMENT)
            looks = [world.segment_reader.verify(world.entry(A), index, "verify") for index in range(3)]
            assert await asyncio.gather(*looks) == [Finding.WRONG] * 3


async def test_it_is_said_once_a_shard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A dying disk has thousands of them."""
    async with building(tmp_path / "c") as world:
        await stored(world)
        for index in range(3):
            damage(world, index * SEGMENT)
        with caplog.at_level(logging.WARNING):
            for index in range(3):
                assert await world.segment_reader.verify(world.entry(A), index, "sample") is Finding.WRONG
        assert [A in record.getMessage() for record in caplog.records if "not a tar" not in record.getMessage()] == [True]


async def test_a_reader_given_wrong_bytes_is_cut_off(tmp_path: Path) -> None:
    """It stands inside the segment; its ETag changes, so that nobody goes on from there."""
    async with building(tmp_path / "c") as world:
        data = await stored(world)
        async with world.opened(A) as reading:
            world.buffers.readers.holders = 10_000
            etag = reading.entry.shown_version.etag(reading.entry.shown_key)
            await world.taken(reading, SEGMENT + 10)
            damage(world, SEGMENT + 1)
            assert await world.segment_reader.verify(world.entry(A), 1, "verify") is Finding.WRONG
            world.buffers.readers.holders = 1
            with pytest.raises(WrongBytes, match=f"bytes {SEGMENT} to {2 * SEGMENT - 1}"):
                async for _ in reading.chunks():
                    pass
        async with world.opened(A) as again:
            assert again.entry.shown_version.etag(again.entry.shown_key) != etag
            assert b"".join([bytes(chunk) async for chunk in again.chunks()]) == data


async def test_bytes_that_are_lost_have_been_given_to_nobody(tmp_path: Path) -> None:
    """The file was cut: its version keeps its ETag, and whoever has a descriptor of it goes on by Range."""
    async with building(tmp_path / "c") as world:
        data = await stored(world)
        async with world.opened(A) as reading:
            etag = reading.entry.shown_version.etag(reading.entry.shown_key)
        os.truncate(world.shard_file(A), SEGMENT + 10)
        findings = [await world.segment_reader.verify(world.entry(A), index, "verify") for index in range(3)]
        assert findings == [Finding.RIGHT, Finding.LOST, Finding.LOST]
        async with world.opened(A) as again:
            assert again.entry.shown_version.etag(again.entry.shown_key) == etag
            assert b"".join([bytes(chunk) async for chunk in again.chunks()]) == data


async def test_a_reader_that_has_not_come_there_yet_never_notices(tmp_path: Path) -> None:
    """It fetches that segment."""
    async with building(tmp_path / "c") as world:
        data = await stored(world)
        async with world.opened(A) as reading:
            world.buffers.readers.holders = 10_000
            got = await world.taken(reading, 10)
            damage(world, SEGMENT + 1)
            assert await world.segment_reader.verify(world.entry(A), 1, "verify") is Finding.WRONG
            world.buffers.readers.holders = 1
            got += b"".join([bytes(chunk) async for chunk in reading.chunks()])
        assert got == data


async def test_what_another_boot_stored_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty readers, one look a segment; the first of them may leave meanwhile."""
    async with building(tmp_path / "c") as world:
        data = await stored(world)
        world.entry(A).segments.unverified = {0, 1, 2}
        looks, real = [], file_io.digest

        def counted(fd: int, offset: int, length: int, *how: object) -> int:
            looks.append(offset)
            return real(fd, offset, length, *how)  # type: ignore[arg-type]

        disk_does(monkeypatch, digest=counted)
        first = asyncio.create_task(world.get(A, reader(99)))
        others = [asyncio.create_task(world.get(A, reader(n))) for n in range(20)]
        await until(lambda: world.segment_reader._verifying)
        first.cancel()
        assert await asyncio.gather(*others) == [data] * 20
        await asyncio.wait([first])
        assert sorted(set(looks)) == [0, SEGMENT, 2 * SEGMENT]
        assert len(looks) <= 4  # one more where the first left


async def test_a_reader_of_the_next_segment_does_not_wait_for_its_checksum(tmp_path: Path) -> None:
    """After another boot the segments ahead of a reader are verified before it gets there."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, segments=6)
        entry = world.entry(A)
        entry.segments.unverified = set(range(6))
        async with world.opened(A) as reading:
            await until(lambda: 1 not in entry.segments.unverified)
            assert reading.position == 0
            got = b"".join([bytes(chunk) async for chunk in reading.chunks()])
        assert got == data
        assert not entry.segments.unverified


async def test_prefetch_does_not_take_doubtful_bytes_for_present(tmp_path: Path) -> None:
    """They are verified ahead of need, and what is wrong of them is fetched ahead of need."""
    async with building(tmp_path / "c", prefetch=True, revalidate="never") as world:
        data = await stored(world)
        entry = world.entry(A)
        entry.segments.unverified = {0, 1, 2}
        entry.segments.sums[1] ^= 99
        world.plans.replace(reader(), [shard_of(A)])
        world.prefetcher.wake()
        await until(lambda: not entry.segments.unverified and entry.segments.complete)
        await world.quiet()
        asked = len(world.origin.log)
        assert await world.get(A, reader()) == data
        assert len(world.origin.log) == asked


@pytest.mark.parametrize(("code", "finding"), [(errno.ETIMEDOUT, Finding.UNREAD), (errno.EIO, Finding.LOST)])
async def test_a_disk_that_does_not_answer_condemns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, finding: Finding
) -> None:
    """Slow is not wrong; what cannot be read at all is."""

    def fail(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    async with building(tmp_path / "c") as world:
        await stored(world)
        disk_does(monkeypatch, digest=fail)
        assert await world.segment_reader.verify(world.entry(A), 0, "verify") is finding
        assert world.entry(A).segments.has(0) is (finding is Finding.UNREAD)


async def test_what_is_looked_at_does_not_leave_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole that is punched under the look would be taken for rot."""
    async with building(tmp_path / "c") as world:
        await stored(world)
        entry = world.entry(A)
        with world.room.holding(entry, 1):
            await world.reclaimer.evict(entry)
            assert [entry.segments.has(index) for index in range(3)] == [False, True, False]
        await world.reclaimer.evict(entry)
