"""Where bytes go: into the shard's file segment by segment, or into memory; and what comes back when it ends early."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from support.house import SEGMENT, World, building, data_of, failing
from support.seams import disk_does

from forebay_proxy.cache.fetching.sink import Sink
from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.facts.cache import DiskOperationFailed
from forebay_proxy.policy.eviction.headroom import CEILING_S
from forebay_proxy.store.files import file_io
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.transfer.single_flight import Urgency

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
DATA = data_of(3 * SEGMENT + 9)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with building(tmp_path / "c") as world:
        world.origin.put(A, DATA)
        yield world


async def begun(world: World, index: int = 1) -> tuple[Fetch, Sink]:
    """A fetch of one segment and its sink, of a shard whose first is here."""
    await world.get(A, last=9)
    await world.quiet()
    made = world.segment_fetches.opened(world.entry(A), index, Urgency(0.0))
    assert made is not None
    return made


async def ended(world: World, fetch: Fetch, sink: Sink, index: int = 1) -> None:
    sink.close()
    world.entry(A).in_use.fetching -= 1
    world.fetches.remove(world.entry(A).key, index, fetch)
    await world.quiet()


@pytest.mark.parametrize("size", [1, 1000, SEGMENT])
async def test_what_is_put_is_readable_at_once_and_stored_when_all_of_it_is_there(world: World, size: int) -> None:
    """With the sum of its bytes, however they were cut."""
    fetch, sink = await begun(world, 3 if size == 1 else 1)
    entry, index, data = world.entry(A), fetch.first // SEGMENT, DATA[fetch.first : fetch.end]
    for at in range(0, len(data), size):
        assert not entry.segments.has(index)
        await sink.put(memoryview(data)[at : at + size])
        assert fetch.position == min(fetch.end, fetch.first + at + size)
        buffer = bytearray(fetch.position - fetch.first)
        assert entry.stored.file is fetch.place
        assert await world.cache.parts.segment_reader.read(entry, fetch.first, memoryview(buffer)) == data[: len(buffer)]
    assert entry.segments.sums[index] == xxhash.xxh3_64_intdigest(data)
    assert fetch.stored == {index}
    await ended(world, fetch, sink, index)


async def test_a_sink_that_is_closed_early_gives_all_back(world: World) -> None:
    """Whether its segment was begun or not."""
    for data in (b"", DATA[SEGMENT : SEGMENT + 5000]):
        fetch, sink = await begun(world)
        before = world.allocated()
        await sink.put(data)
        await ended(world, fetch, sink)
        assert (world.ledger.reserved_bytes, world.allocated(), world.entry(A).segments.has(1)) == (0, before, False)


async def test_a_file_that_was_given_up_meanwhile_takes_nothing_more(world: World) -> None:
    """Readers would look for it in the new one."""
    fetch, sink = await begun(world)
    entry = world.entry(A)
    await sink.put(DATA[SEGMENT : SEGMENT + 10])
    file, entry.stored.file = entry.stored.file, None
    with pytest.raises(DiskFailed, match="was given up meanwhile"):
        await sink.put(b"more")
    assert fetch.position == SEGMENT + 10
    entry.stored.file = file
    await ended(world, fetch, sink)


@pytest.mark.parametrize(("name", "told"), [(A, True), ("https://o/a.mp4", False)])
async def test_whether_it_is_a_tar_is_known_before_its_first_page_is_readable(world: World, name: str, told: bool) -> None:
    """Of those that say so by their name; however small the pieces are that come."""
    world.origin.put(name, DATA, chunk_bytes=100)
    async with world.opened(name, last=511) as reading:
        assert await world.taken(reading, 512) == DATA[:512]
        assert bool(reading.entry.trust.no_tar) == told


@pytest.mark.parametrize("leaf", ["allocate", "append", "create"])
@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_failing_disk_costs_no_reader_a_byte(
    world: World, monkeypatch: pytest.MonkeyPatch, leaf: str, ranged: bool, code: int
) -> None:
    """Two readers each of two shards; what cannot be stored passes by."""
    other = data_of(2 * SEGMENT, 1)
    world.origin.put(A, DATA, ranged=ranged)
    world.origin.put(B, other, ranged=ranged)
    with monkeypatch.context() as patch:
        patch.setattr(file_io, leaf, failing(code))
        assert await asyncio.gather(world.get(A), world.get(A)) == [DATA, DATA]
        assert world.of(DiskOperationFailed)
        assert await asyncio.gather(world.get(B), world.get(B)) == [other, other]
    await world.quiet()
    assert world.ledger.stored_bytes == 0
    world.clock.advance(CEILING_S)
    await world.disk_monitor.look()  # what the disk refused is tried again
    assert await world.get(A) == DATA
    await world.quiet()
    assert world.entry(A).segments.complete


@pytest.mark.parametrize("ranged", [True, False])
async def test_a_disk_that_fails_in_the_middle_costs_no_reader_a_byte(world: World, monkeypatch: pytest.MonkeyPatch, ranged: bool) -> None:
    """After some segments, then again later: the bytes are right all the time."""
    real, count = file_io.append, [0]

    def sometimes(*args: Any) -> float:
        count[0] += 1
        if count[0] % 7 == 0:
            raise OSError(errno.EIO, "broken")
        return real(*args)

    monkeypatch.setattr(file_io, "append", sometimes)
    for seed in range(5):
        data = data_of(5 * SEGMENT, seed)
        world.origin.put(f"{A}{seed}", data, ranged=ranged)
        assert await asyncio.gather(*(world.get(f"{A}{seed}") for _ in range(4))) == [data] * 4
        world.clock.advance(20)


async def test_a_disk_that_cannot_be_read_costs_no_reader_a_byte(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is fetched again, and what could not be read leaves."""
    await world.get(A)
    await world.quiet()
    with monkeypatch.context() as patch:
        disk_does(patch, read_now=lambda *args: False, read=failing(errno.EIO))
        assert await asyncio.gather(world.get(A), world.get(A)) == [DATA, DATA]
    await world.quiet()
    assert A not in world.resolver.versions.current or not world.entry(A).segments.complete
    world.clock.advance(60)
    assert await world.get(A) == DATA


async def test_a_slow_disk_read_in_a_thread_is_exact(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loop could not read at once; what comes, and what is here."""
    monkeypatch.setattr(file_io, "read_now", lambda *args: False)
    assert await world.get(A) == DATA
    assert await world.get(A) == DATA


@pytest.mark.parametrize("kind", [{}, {"ranged": False}, {"ranged": False, "identity": False}, {"ranged": False, "length_known": False}])
@pytest.mark.parametrize("at", [None, 20_000, SEGMENT + 5000], ids=["head", "body", "second segment"])
async def test_shutdown_in_the_middle_gives_all_back(world: World, kind: dict[str, bool], at: int | None) -> None:
    """Whatever the origin was doing. Who has a body of its own is ended with its request."""
    gate = world.origin.put(A, DATA, **kind).hold(at)
    reading = asyncio.create_task(world.get(A))
    await gate.reached.wait()
    world.resolver.cancel()
    world.fetches.cancel()
    if at is not None and not {"identity", "length_known"}.isdisjoint(kind):
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    else:
        with pytest.raises(Exception, match="shutting down"):
            await reading
