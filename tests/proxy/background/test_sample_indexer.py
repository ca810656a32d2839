"""Sample indexes: made once of complete, right shards, kept within bounds, and gone with what they speak of."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.house import World, building, reader, shard_of, until
from support.tarmaking import END, hand_header, pax_block, written

from forebay_proxy.background import sample_index_steps, sample_indexer
from forebay_proxy.background.sample_index_steps import SampleIndexSteps
from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.cache.integrity.segment_reader import Finding
from forebay_proxy.core.errors import IndexNotYet, NoIndex, ShardForbidden
from forebay_proxy.core.facts.cache import IndexDone
from forebay_proxy.core.facts.origins import SegmentFetched
from forebay_proxy.core.shard import Shard
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.sample_index_files import disk_bytes
from forebay_proxy.wire.tar.sample_index import SampleIndex, decode

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"


def tar_of(samples: int = 40, seed: str = "") -> bytes:
    """Three segments and a bit."""
    return written([(f"{seed}{n:05}.{suffix}", os.urandom(size)) for n in range(samples) for suffix, size in (("jpg", 5000), ("cls", 2))])


@asynccontextmanager
async def indexing_in(path: Path, *, ahead: bool = False, **options: object) -> AsyncIterator[tuple[World, SampleIndexer]]:
    async with building(path, **options) as world:  # type: ignore[arg-type]
        made = world.indexer
        running = world.group.create_task(made.run()) if ahead else None
        try:
            yield world, made
        finally:
            made.stop()
            if running is not None:
                running.cancel()
        await world.quiet()
        world.ledger.overhead_bytes = 0  # measured when an index was kept; ``building`` counts segments only


async def asked(made: SampleIndexer, shard: str | Shard = A) -> SampleIndex:
    async with made.asked(shard_of(shard) if isinstance(shard, str) else shard, None) as (encoded, _, _):
        return decode(encoded)


async def warmed(world: World, name: str = A, data: bytes | None = None) -> bytes:
    data = tar_of() if data is None else data
    world.origin.put(name, data)
    assert await world.get(name) == data
    await world.quiet()
    return data


def results(world: World) -> list[str]:
    return [fact.result for fact in world.of(IndexDone)]


async def test_a_complete_shard_has_its_index(tmp_path: Path) -> None:
    """Keys and places of all its samples; the second who asks is answered from the disk, under the shard's ETag."""
    async with indexing_in(tmp_path / "c") as (world, made):
        data = await warmed(world)
        index = await asked(made)
        assert (len(index), index.members, index.length) == (40, 80, len(data))
        for number in range(40):
            files = index.files(number)
            assert index.key(number) == f"{number:05}"
            assert [file.suffix for file in files] == ["jpg", "cls"]
            offset, size = files[0].offset, files[0].size
            assert data[offset - 512 : offset - 507] == f"{number:05}".encode()
            assert size == 5000
        assert len(await asked(made)) == 40
        assert results(world) == ["built", "read"]
        async with made.asked(shard_of(A), None) as (_, etag, version), world.opened(A) as reading:
            assert etag == reading.entry.shown_version.etag(reading.entry.shown_key)
            assert version == reading.entry.shown_version


async def test_many_who_ask_make_one(tmp_path: Path) -> None:
    """And who leaves cancels nothing for the others."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        asking = [asyncio.create_task(asked(made)) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert [len(index) for index in found[1:] if isinstance(index, SampleIndex)] == [40] * 4
        assert results(world).count("built") == 1


async def test_what_is_not_all_here_has_none_yet(tmp_path: Path) -> None:
    """409: a part is here. Nothing of it is fetched for that."""
    async with indexing_in(tmp_path / "c") as (world, made):
        world.origin.put(A, tar_of())
        await world.get(A, first=0, last=10)
        await world.quiet()
        before = len(world.origin.asked(A))
        with pytest.raises(IndexNotYet, match="1 of its 5 segments are here") as caught:
            await asked(made)
        assert (caught.value.status, len(world.origin.asked(A))) == (409, before)


@pytest.mark.parametrize(("data", "cause"), [
    (b"\x1f\x8b\x08" + b"x" * 2000, r"not a plain tar .gz."),
    (b"<html>" + b"x" * 2000, "not a tar archive: .* a web page"),
    (written([("a.jpg", b"x"), ("a.jpg", b"y")]), "two files 'jpg'"),
    (written([("a.jpg", b"x")]).rstrip(b"\0") + bytes(511), "not well formed"),
    (written([("a.jpg", b"x")]) + b"behind", "data after the end marker"),
    (hand_header(b"a", 1 << 40, kind=b"L") + END, "longer than 1048576 bytes"),
    (written([("a/" * 400_000 + "b.jpg", b"x")], format=tarfile.GNU_FORMAT), "longer than 4096 characters"),
    (pax_block({"x": "y"}) * 3000 + END, "too many of them tell about one file"),
])  # fmt: skip
async def test_what_is_no_plain_tar_has_none(tmp_path: Path, data: bytes, cause: str) -> None:
    """404 with the cause; read once, the answer is remembered."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world, data=data)
        for _ in range(2):
            with pytest.raises(NoIndex, match=cause) as caught:
                await asked(made)
            assert caught.value.status == 404
        assert results(world) == ["refused"]


async def test_headers_that_take_long_to_read_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one step nobody else gets its thread: a chain of full headers, each read in a moment, took minutes of it."""
    monkeypatch.setattr(sample_index_steps, "MOST_MEMBER_S", -1.0)
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        with pytest.raises(NoIndex, match="too many of them tell about one file"):
            await asked(made)


async def test_an_index_outlives_the_segments(tmp_path: Path) -> None:
    """They leave, nobody is in it, the version is the same: its index is given without fetching the shard."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        await asked(made)
        await world.reclaimer.evict(world.entry(A))
        await world.quiet()
        assert not world.room.entries
        landed = len(world.of(SegmentFetched))
        assert len(await asked(made)) == 40
        assert len(world.of(SegmentFetched)) == landed


async def test_another_version_has_another_index(tmp_path: Path) -> None:
    """The origin has changed: the old one goes, and is not given for the new one."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        await asked(made)
        key = world.entry(A).key
        world.origin.put(A, tar_of(7))
        with pytest.raises(IndexNotYet):
            async with made.asked(shard_of(A), reader()):  # of a job that has not opened it yet, so it is compared
                pass
        await world.quiet()
        assert key not in world.store.samples
        await world.get(A, reader())
        await world.quiet()
        assert len(await asked(made)) == 7


async def test_a_restart_keeps_it(tmp_path: Path) -> None:
    """It is read again, not made again."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        await asked(made)
        origin = world.origin
    async with indexing_in(tmp_path / "c", origin=origin) as (world, made):
        assert len(world.store.samples) == 1
        assert len(await asked(made)) == 40
        assert results(world) == ["read"]


async def test_a_smaller_cache_lets_go_of_indexes_when_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a larger one may hold more than all of it: nothing could be stored then, and no index be made that displaces them."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        await asked(made)
        origin = world.origin
    monkeypatch.setattr(sample_indexer, "SHARE", 1 << 40)
    async with indexing_in(tmp_path / "c", ahead=True, origin=origin) as (world, made):
        await until(lambda: not world.store.samples.bytes)
        assert not list((tmp_path / "c" / "samples").iterdir())


@pytest.mark.parametrize("harm", ["flip", "cut", "gone", "another", "empty"])
async def test_a_harmed_file_is_made_again(tmp_path: Path, harm: str) -> None:
    """Whatever is wrong with it: nobody is given it."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        await warmed(world, B, tar_of(9))
        first = await asked(made)
        await asked(made, B)
        file = tmp_path / "c" / "samples" / world.entry(A).key
        content = bytearray(file.read_bytes())
        match harm:
            case "flip":
                content[len(content) // 2] ^= 1
                file.write_bytes(content)
            case "cut":
                file.write_bytes(content[:-1])
            case "empty":
                file.write_bytes(b"")
            case "another":
                file.write_bytes((file.parent / world.entry(B).key).read_bytes())
            case "gone":
                file.unlink()
        assert list(await asked(made)) == list(first)
        assert results(world) == ["built", "built", "built"]
        assert list(await asked(made)) == list(first)
        assert results(world)[-1] == "read"


async def test_bytes_that_were_wrong_take_the_index_with_them(tmp_path: Path) -> None:
    """It may have been made of them."""
    async with indexing_in(tmp_path / "c") as (world, made):
        data = await warmed(world)
        await asked(made)
        entry = world.entry(A)
        with world.shard_file(A).open("r+b") as file:
            file.write(b"wrong")
        assert await world.segment_reader.verify(entry, 0, "verify") is Finding.WRONG
        await world.quiet()
        assert entry.key not in world.store.samples
        assert await world.get(A) == data
        await world.quiet()
        assert len(await asked(made)) == 40


async def test_bytes_found_wrong_while_the_index_is_written_take_it_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no file yet that could be removed."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        entry = world.entry(A)
        write = world.store.samples.write

        async def found_wrong(key: str, encoded: bytes) -> None:
            made.drop(entry)
            await asyncio.sleep(0.05)  # the removal finds nothing
            await write(key, encoded)

        monkeypatch.setattr(world.store.samples, "write", found_wrong)
        await asked(made)
        await world.quiet()
        assert entry.key not in world.store.samples


async def test_what_another_boot_stored_is_verified_first(tmp_path: Path) -> None:
    """A header that rotted on the disk is in no index."""
    async with indexing_in(tmp_path / "c", boot="one") as (world, _):
        await warmed(world)
        origin, path = world.origin, world.shard_file(A)
    with path.open("r+b") as file:
        file.write(b"99999")  # the first key; the checksum of the header would tell, that of the segment does
    async with indexing_in(tmp_path / "c", origin=origin, boot="two") as (world, made):
        with pytest.raises(IndexNotYet, match="not what had been stored"):
            await asked(made)
        await world.get(A)
        await world.quiet()
        assert (await asked(made)).key(0) == "00000"


async def test_a_private_shard_has_a_private_index(tmp_path: Path) -> None:
    """Whoever the origin refuses the shard gets no index of it, however complete it is here."""
    async with indexing_in(tmp_path / "c") as (world, made):
        mine = shard_of(A, credential="Bearer mine")
        world.origin.put(A, tar_of()).allowed = {mine.credential}
        await world.get(mine)
        await world.quiet()
        assert len(await asked(made, mine)) == 40
        for credential in ("Bearer yours", ""):
            with pytest.raises(ShardForbidden):
                await asked(made, shard_of(A, credential=credential))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_index_steps, "STEP_S", 0.0)


@pytest.mark.usefixtures("small_steps")
async def test_a_part_that_left_meanwhile_spoils_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps: holes read as zeros, and nothing of that is told."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        entry = world.entry(A)
        pausing, between = made._reader._pause, list[Callable[[], Awaitable[object]]]()

        async def pause(worked_s: float) -> None:
            await (between.pop()() if between else pausing(worked_s))

        monkeypatch.setattr(made._reader, "_pause", pause)
        between.append(lambda: world.reclaimer.discard(entry, 2))
        with pytest.raises(IndexNotYet, match="4 of its 5 segments"):
            await asked(made)
        await world.get(A)
        await world.quiet()

        async def and_again() -> None:
            world.clock.advance(1)
            await world.reclaimer.discard(entry, 2)
            await world.get(A)
            await until(lambda: entry.segments.complete)

        between.append(and_again)
        with pytest.raises(IndexNotYet, match="left, and came again"):
            await asked(made)
        assert len(await asked(made)) == 40


async def test_a_part_that_leaves_while_it_is_read_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole looks like the end of the tar, with data behind it: that is no reason to say for ever that the shard has no index."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        entry, inspect, leaves = world.entry(A), ShardFile.inspect, [0]

        async def leaving(file: ShardFile, function: Any) -> Any:
            if leaves:
                await world.reclaimer.discard(entry, leaves.pop())
            return await inspect(file, function)

        monkeypatch.setattr(ShardFile, "inspect", leaving)
        with pytest.raises(IndexNotYet, match="4 of its 5 segments"):
            await asked(made)
        await world.get(A)
        await world.quiet()
        assert len(await asked(made)) == 40


async def test_indexes_keep_to_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the capacity, counted as overhead: the longest unused leaves first."""
    async with indexing_in(tmp_path / "c", segments=300) as (world, made):
        names = [f"https://o/set/{number}.tar" for number in range(4)]
        for name in names:
            await warmed(world, name)
        size = disk_bytes(2000)
        monkeypatch.setattr(sample_indexer, "SHARE", world.ledger.configured_bytes // (3 * size))
        for name in names[:3]:
            await asked(made, name)
        await asked(made, names[0])
        await asked(made, names[3])
        keys = [world.entry(name).key for name in names]
        assert [key in world.store.samples for key in keys] == [True, False, True, True]
        folder = tmp_path / "c" / "samples"
        assert {file.name for file in folder.iterdir()} == {keys[0], keys[2], keys[3]}
        assert world.store.samples.bytes == sum(file.stat().st_blocks * 512 for file in folder.iterdir())
        assert world.ledger.overhead_bytes >= world.store.samples.bytes


async def test_without_room_it_is_given_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound stands above it."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        monkeypatch.setattr(sample_indexer, "SHARE", 1 << 40)
        assert len(await asked(made)) == len(await asked(made)) == 40
        assert (len(world.store.samples), results(world)) == (0, ["built", "built"])


async def test_the_index_ahead_begins_after_the_response(tmp_path: Path) -> None:
    """Not while a reader is inside the shard, though all of it is here; that of a shard nobody reads goes first meanwhile."""
    async with indexing_in(tmp_path / "c", ahead=True) as (world, made):
        data = tar_of()
        world.origin.put(A, data)
        async with world.opened(A) as reading:
            assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
            await until(lambda: reading.entry.segments.complete)
            await world.quiet()
            await warmed(world, B)
            await until(lambda: world.entry(B).key in world.store.samples)
            assert world.entry(A).key not in world.store.samples
            assert repr(made).endswith("1 to be made>")
        await until(lambda: world.entry(A).key in world.store.samples)


async def test_a_fault_with_odd_tars_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked for them: it is counted and logged, and the next shard has its index."""
    real, met = sample_index_steps.SampleIndexSteps, list[int]()

    def steps(length: int) -> SampleIndexSteps:
        met.append(length)
        if len(met) <= 4:
            raise RuntimeError("a fault of ours")
        return real(length)

    monkeypatch.setattr(sample_index_steps, "SampleIndexSteps", steps)
    async with indexing_in(tmp_path / "c", ahead=True) as (world, _):
        for number in range(5):
            await warmed(world, f"https://o/set/{number}.tar")
            await until(lambda so_far=number: len(results(world)) > so_far)  # type: ignore[misc]
        assert results(world) == ["failed"] * 4 + ["built"]


async def test_ahead_pauses_while_others_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nineteen times what a step took; twice when somebody waits for it, not at all when nobody else is here."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        slept = list[float]()

        class Timeout:
            def __init__(self, seconds: float) -> None:
                slept.append(seconds)

            async def __aenter__(self) -> None:
                raise TimeoutError

            async def __aexit__(self, *_: object) -> None: ...

        with monkeypatch.context() as patching:
            patching.setattr(asyncio, "timeout", Timeout)
            await made._reader._pause(0.002)
            async with world.cache.open(shard_of(A), None, None):
                await made._reader._pause(0.002)
                await made._reader._pause(3.0)
                made._reader._asking = 1
                async with world.cache.open(shard_of(A), None, None):
                    await made._reader._pause(0.002)
                made._reader._asking = 0
        assert slept == [0.0, 0.038, 1.0, 0.004]


@pytest.mark.usefixtures("small_steps")
async def test_an_end_waits_for_no_index(tmp_path: Path) -> None:
    """What is being made ends with its step."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        made.stop()
        with pytest.raises(IndexNotYet, match="shutting down"):
            await asked(made)


async def test_large_answers_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow clients keep no more than this in memory, and at least one is served."""
    async with indexing_in(tmp_path / "c") as (world, made):
        await warmed(world)
        monkeypatch.setattr(sample_indexer, "MOST_OUT_BYTES", 100)
        async with made.asked(shard_of(A), None):
            with pytest.raises(IndexNotYet, match="on their way already"):
                await asked(made)
        assert len(await asked(made)) == 40
