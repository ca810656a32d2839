"""The disk under sinks: a segment is stored, or its room is given back; and what follows for its version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, shard_of, until
from support.seams import held_in_thread, held_up, refuses

from forebay_proxy.cache.fetching import segment_storage
from forebay_proxy.cache.fetching.segment_storage import SegmentStorage
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import ShardCompleted, VersionOutdated
from forebay_proxy.cache.resident.space import Slice
from forebay_proxy.core.errors import DiskFailed, ForebayError, ShardChanged
from forebay_proxy.core.facts.cache import ReservationRefused
from forebay_proxy.core.facts.origins import SegmentFetched
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files import file_io
from forebay_proxy.store.files.file_io import InTheWay
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.transfer.fetches import Fetch

A, B = "https://o/set/a.tar", "https://o/set/b.tar"
DATA = data_of(3 * SEGMENT)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Of a shard of three segments the first is stored."""
    async with building(tmp_path / "c") as world:
        await first_stored(world)
        yield world


async def first_stored(world: World) -> Entry:
    world.origin.put(A, DATA)
    await world.get(A, last=SEGMENT - 1)
    await world.quiet()
    world.facts.clear()
    return world.entry(A)


def granted(world: World) -> Grant[Slice]:
    return world.room.reserve(SEGMENT)


def launched(world: World, index: int = 1) -> Fetch:
    return world.segment_fetches.launch(world.entry(A), index, shard_of(A))


def refusals(world: World) -> list[str]:
    return [fact.reason for fact in world.of(ReservationRefused)]


async def nothing_left(world: World, entry: Entry) -> None:
    """No room is granted, no fetch counts, no segment is half here."""
    await world.quiet()
    assert world.ledger.reserved_bytes == 0
    assert (entry.in_use.fetching, entry.stored.writing, dict(entry.in_use.leaving)) == (0, set(), {})


# Room on the disk


async def test_a_prepared_segment_is_allocated_in_its_shards_file(world: World) -> None:
    """Its bytes are the disk's before the first one comes."""
    entry, grant, before = world.entry(A), granted(world), world.allocated()
    assert await world.storage.prepare(entry, 1, grant) is entry.stored.file
    assert entry.stored.writing == {1}
    assert world.allocated() >= before + SEGMENT
    world.storage.give_back(entry, 1, grant)


async def test_a_leaving_segment_is_not_begun_anew_before_it_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim is being withdrawn: its bytes would be punched under the new ones."""
    entry, gate = world.entry(A), held_up(monkeypatch, world.store.index_writer, "committed")
    evicting = asyncio.create_task(world.reclaimer.evict(entry))
    await until(lambda: 0 in entry.in_use.leaving)
    grant = granted(world)
    preparing = asyncio.create_task(world.storage.prepare(entry, 0, grant))
    await asyncio.sleep(0.01)
    assert (preparing.done(), entry.stored.writing) == (False, set())
    gate.open()
    assert await preparing is entry.stored.file
    assert await evicting == SEGMENT
    world.storage.give_back(entry, 0, grant)


async def test_a_disk_that_refuses_keeps_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal is counted."""
    refuses(monkeypatch, world.files, DiskFailed("allocate", "EIO", "broken"), "allocate")
    assert await world.storage.prepare(world.entry(A), 1, granted(world)) is None
    assert refusals(world) == ["disk"]
    await nothing_left(world, world.entry(A))


async def test_a_file_that_is_in_the_way_is_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor of an earlier life holds it: the entry may be retired once that is closed."""
    refuses(monkeypatch, world.files, InTheWay("an earlier file is held"), "allocate")
    assert await world.storage.prepare(world.entry(A), 1, granted(world)) is None
    assert (world.entry(A).stored.misplaced, refusals(world)) == (True, ["no-room"])


async def test_a_disk_that_hangs_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it makes too late is given back."""
    monkeypatch.setattr(segment_storage, "HUNG_S", 0.01)
    entry, before, gate = world.entry(A), world.allocated(), held_up(monkeypatch, world.files, "allocate")
    assert await world.storage.prepare(entry, 1, granted(world)) is None
    assert (refusals(world), world.ledger.reserved_bytes) == (["disk"], SEGMENT)
    gate.open()
    await nothing_left(world, entry)
    assert world.allocated() == before
    world.clock.advance(60)
    world.cache.disk.look()


# Segments that have come


async def test_a_whole_segment_is_stored(world: World) -> None:
    """It is readable before its readers go on, paid for, and reported."""
    entry, fetch = world.entry(A), launched(world)
    assert await fetch.grown_beyond(2 * SEGMENT - 1)
    assert (entry.segments.has(1), fetch.done) == (True, False)
    await nothing_left(world, entry)
    assert world.ledger.stored_bytes == 2 * SEGMENT
    assert [(fact.stored, fact.prefetched) for fact in world.of(SegmentFetched)] == [(True, False)]


@pytest.mark.parametrize("followed", [True, False])
async def test_a_segment_that_nobody_followed_is_unread(world: World, followed: bool) -> None:
    """Also where its one reader has left before it was whole."""
    fetch = launched(world)
    if followed:
        with fetch.subscribed():
            await asyncio.sleep(0)
    await world.quiet()
    assert (1 in world.entry(A).segments.unread) != followed


async def test_the_last_segment_completes_its_shard_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync a shard, off the readers' path."""
    synced, entry = list[str](), world.entry(A)

    async def sync(file: ShardFile) -> None:
        synced.append(file.key)

    monkeypatch.setattr(ShardFile, "sync", sync)
    for index in (1, 2):
        launched(world, index)
    await world.quiet()
    assert synced == [entry.key]
    assert [fact.entry for fact in world.of(ShardCompleted)] == [entry]


async def test_readers_are_stopped_before_the_bytes_are_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetch has its error while its segment is still in the file."""
    errors, real = list[BaseException | None](), SegmentStorage.give_back

    def give_back(storage: SegmentStorage, entry: Entry, index: int | None, grant: Grant[Slice]) -> None:
        errors.append(fetch.error)
        real(storage, entry, index, grant)

    monkeypatch.setattr(SegmentStorage, "give_back", give_back)
    gate = world.origin.remotes[A].hold(SEGMENT + 1000)
    fetch = launched(world)
    await gate.reached.wait()
    world.fetches.cancel()
    await nothing_left(world, world.entry(A))
    assert [type(error) for error in errors] == [ForebayError]


async def test_a_write_under_way_ends_before_its_room_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is writing cannot be stopped: what it writes after the punch would be nobody's. No more is asked for meanwhile."""
    gate = held_in_thread(monkeypatch, file_io, "append")
    entry, before = world.entry(A), world.allocated()
    fetch = launched(world)
    await until(gate.reached.is_set)
    world.fetches.cancel()
    await asyncio.sleep(0.01)
    assert (fetch.done, fetch.position, world.ledger.reserved_bytes) == (False, SEGMENT, SEGMENT)
    assert world.origin.log[-1].sent == 1 << 14
    gate.open()
    await nothing_left(world, entry)
    assert (fetch.done, world.allocated()) == (True, before)


# What follows for the version


async def test_an_outdated_version_is_reported_once(world: World) -> None:
    """Two fetches may learn it."""
    world.room.outdated(entry := world.entry(A))
    world.room.outdated(entry)
    assert [fact.entry for fact in world.of(VersionOutdated)] == [entry]


async def test_an_outdated_version_stays_while_a_reader_is_inside(world: World) -> None:
    """The reader ends with the version it began with; then its bytes leave."""
    entry = world.entry(A)
    async with world.opened(A, last=SEGMENT - 1) as reading:
        world.room.outdated(entry)
        await world.quiet()
        assert world.ledger.stored_bytes == SEGMENT
        assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == DATA[:SEGMENT]
    await until(lambda: world.ledger.stored_bytes == 0)


async def test_another_version_at_the_origin_ends_this_one(world: World) -> None:
    """The fetch that learned it says so; the stored bytes leave, as no reader is inside."""
    entry = world.entry(A)
    world.origin.put(A, DATA, etag='"v2"')
    with pytest.raises(ShardChanged):
        await launched(world).grown_beyond(SEGMENT)
    await world.quiet()
    assert (entry.in_use.stale, world.ledger.stored_bytes) == (True, 0)
