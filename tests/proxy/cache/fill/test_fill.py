"""Where flights end: a segment is stored, or its room is given back; and what follows for its version."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from forebay_proxy.cache.fetching.fill import Fill
from forebay_proxy.cache.fetching.segment_writer import SegmentWriter
from forebay_proxy.transfer.flights import Flight
from support.cancelling import When, at_each_await
from support.house import SEGMENT, World, building, data_of, until

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import SegmentMissed, ShardCompleted, VersionOutdated
from forebay_proxy.cache.resident.space import Slice
from forebay_proxy.core.errors import DiskFailed, ForebayError, OriginUnavailable, ShardChanged
from forebay_proxy.core.facts.cache import ReservationRefused
from forebay_proxy.core.facts.origins import SegmentFetched
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files import file_io
from forebay_proxy.store.files.file_io import InTheWay
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.transfer.limiter import DEMAND

A, B = "https://o/set/a.tar", "https://o/set/b.tar"
DATA = data_of(3 * SEGMENT)
NEXT = DATA[SEGMENT : 2 * SEGMENT]


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


def granted(world: World, index: int = 1) -> Grant[Slice]:
    grant = world.storage.grants.demand(world.entry(A), index)
    assert grant is not None
    return grant


def in_the_air(world: World, index: int = 1, need: float = 0.0) -> tuple[Flight, SegmentWriter]:
    """A flight of one segment and its writer, as ``SegmentFlights`` makes them."""
    entry = world.entry(A)
    flight = Flight(index * SEGMENT, (index + 1) * SEGMENT, need, world.clock())
    entry.in_use.flying += 1
    return flight, SegmentWriter(world.storage, world.buffers, entry, flight, granted(world, index))


async def failing(writer: SegmentWriter, error: BaseException) -> None:
    """Half a segment comes, then ``error``."""
    await writer.put(NEXT[: SEGMENT // 2])
    raise error


def refusals(world: World) -> list[str]:
    return [fact.reason for fact in world.of(ReservationRefused)]


def refusing(monkeypatch: pytest.MonkeyPatch, world: World, error: Exception) -> None:
    async def allocate(entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        raise error

    monkeypatch.setattr(world.files, "allocate", allocate)


async def nothing_left(world: World, entry: Entry) -> None:
    """No room is granted, no flight counts, no segment is half here."""
    await world.quiet()
    assert world.ledger.reserved_bytes == 0
    assert (entry.in_use.flying, entry.stored.writing, dict(entry.in_use.leaving)) == (0, set(), {})
    assert world.buffers.fetches.holders == 0


# Room on the disk


async def test_a_prepared_segment_is_allocated_in_its_shards_file(world: World) -> None:
    """Its bytes are the disk's before the first one comes."""
    entry, grant, before = world.entry(A), granted(world), world.allocated()
    assert await world.storage.prepare(entry, 1, grant) is entry.stored.file
    assert entry.stored.writing == {1}
    assert world.allocated() >= before + SEGMENT
    world.storage.give_back(entry, 1, grant)


async def test_room_that_is_given_back_is_free_on_the_disk(world: World) -> None:
    """What was allocated for it, too."""
    entry, grant, before = world.entry(A), granted(world), world.allocated()
    await world.storage.prepare(entry, 1, grant)
    world.storage.give_back(entry, 1, grant)
    await nothing_left(world, entry)
    assert world.allocated() == before


async def test_a_leaving_segment_is_not_begun_anew_before_it_is_gone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim is being withdrawn: its bytes would be punched under the new ones."""
    entry, gate, committed = world.entry(A), asyncio.Event(), world.store.index_writer.committed

    async def slowly() -> None:
        await gate.wait()
        await committed()

    monkeypatch.setattr(world.store.index_writer, "committed", slowly)
    evicting = asyncio.create_task(world.reclaimer.evict(entry))
    await until(lambda: 0 in entry.in_use.leaving)
    grant = granted(world, 0)
    preparing = asyncio.create_task(world.storage.prepare(entry, 0, grant))
    await asyncio.sleep(0.01)
    assert (preparing.done(), entry.stored.writing) == (False, set())
    gate.set()
    assert await preparing is entry.stored.file
    assert await evicting == SEGMENT
    world.storage.give_back(entry, 0, grant)


async def test_a_disk_that_refuses_keeps_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment passes through memory, and its refusal is counted."""
    refusing(monkeypatch, world, DiskFailed("allocate", "EIO", "broken"))
    assert await world.storage.prepare(world.entry(A), 1, granted(world)) is None
    assert refusals(world) == ["disk"]
    await nothing_left(world, world.entry(A))


async def test_a_file_that_is_in_the_way_is_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor of an earlier life holds it: the entry may be retired once that is closed."""
    refusing(monkeypatch, world, InTheWay("an earlier file is held"))
    assert await world.storage.prepare(world.entry(A), 1, granted(world)) is None
    assert (world.entry(A).stored.misplaced, refusals(world)) == (True, ["no-room"])


async def test_a_file_that_was_cut_ends_its_version(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be mended while it is read."""
    entry = world.entry(A)
    refusing(monkeypatch, world, DiskFailed("read", "ENODATA", "shorter than it was"))
    assert await world.storage.prepare(entry, 1, granted(world)) is None
    assert [fact.entry for fact in world.of(VersionOutdated)] == [entry]


@pytest.mark.parametrize("when", list(When))
async def test_preparing_holds_nothing_wherever_it_is_cancelled(tmp_path: Path, when: When) -> None:
    """At each await, with a victim to remove first: the grant is free again, and the victim gone."""
    async for cut in at_each_await(when):
        async with building(tmp_path / f"{cut.number}", segments=2) as world:
            entry = await first_stored(world)
            world.origin.put(B, data_of(SEGMENT, 1))
            await world.get(B)
            await world.quiet()
            entry.segments.lease(0)  # so the other shard is the victim
            grant = granted(world)
            assert grant.victims
            if await cut.run(world.storage.prepare(entry, 1, grant)) is not None:
                world.storage.give_back(entry, 1, grant)
            await nothing_left(world, entry)
            entry.segments.release(0)
            assert world.ledger.stored_bytes == SEGMENT


# Flights that end


async def test_a_whole_segment_is_stored(world: World) -> None:
    """It is readable, paid for, and reported."""
    entry = world.entry(A)
    flight, writer = in_the_air(world)
    await world.storage.run_flight(entry, flight, writer, writer.put(NEXT))
    await nothing_left(world, entry)
    assert entry.segments.has(1)
    assert world.ledger.stored_bytes == 2 * SEGMENT
    assert [(fact.bytes, fact.stored, fact.prefetched) for fact in world.of(SegmentFetched)] == [(SEGMENT, True, False)]
    assert flight.error is None


async def test_a_prefetched_segment_is_unread(world: World) -> None:
    """Until a reader has had it; what was demanded is read at once."""
    entry = world.entry(A)
    for index, need in ((1, DEMAND + 1), (2, 0.0)):
        flight, writer = in_the_air(world, index, need)
        flight.passengers.followed = not need
        await world.storage.run_flight(entry, flight, writer, writer.put(DATA[index * SEGMENT : (index + 1) * SEGMENT]))
    assert [index in entry.segments.unread for index in (1, 2)] == [True, False]


async def test_the_last_segment_completes_its_shard_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sync a shard, off the readers' path."""
    synced, entry = list[str](), world.entry(A)

    async def sync(file: ShardFile) -> None:
        synced.append(file.key)

    monkeypatch.setattr(ShardFile, "sync", sync)
    for index in (1, 2):
        flight, writer = in_the_air(world, index)
        await world.storage.run_flight(entry, flight, writer, writer.put(DATA[index * SEGMENT : (index + 1) * SEGMENT]))
    await world.quiet()
    assert synced == [entry.key]
    assert [fact.entry for fact in world.of(ShardCompleted)] == [entry]


async def test_a_broken_flight_leaves_no_part_of_its_segment(world: World) -> None:
    """Half of it had come and was on its way to the disk."""
    entry, before = world.entry(A), world.allocated()
    flight, writer = in_the_air(world)
    with pytest.raises(OriginUnavailable):
        await world.storage.run_flight(entry, flight, writer, failing(writer, OriginUnavailable(A, "gone")))
    await nothing_left(world, entry)
    assert (entry.segments.has(1), world.allocated()) == (False, before)


async def test_a_segment_that_did_not_come_is_reported_missing(world: World) -> None:
    """Its reader's cursor goes back to it."""
    flight, writer = in_the_air(world)
    with pytest.raises(OriginUnavailable):
        await world.storage.run_flight(world.entry(A), flight, writer, failing(writer, OriginUnavailable(A, "gone")))
    assert [(fact.index, fact.flight) for fact in world.of(SegmentMissed)] == [(1, flight)]


async def test_readers_are_stopped_before_the_bytes_are_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flight has its error while its segment is still in the file."""
    flight, writer = in_the_air(world)
    errors, real = list[BaseException | None](), Fill.give_back

    def give_back(fill: Fill, entry: Entry | None, index: int | None, grant: Grant[Slice]) -> None:
        errors.append(flight.error)
        real(fill, entry, index, grant)

    monkeypatch.setattr(Fill, "give_back", give_back)
    with pytest.raises(OriginUnavailable):
        await world.storage.run_flight(world.entry(A), flight, writer, failing(writer, OriginUnavailable(A, "gone")))
    assert [type(error) for error in errors] == [OriginUnavailable]


async def test_another_version_at_the_origin_ends_this_one(world: World) -> None:
    """The flight that learned it says so; the stored bytes leave, as no reader is inside."""
    entry = world.entry(A)
    flight, writer = in_the_air(world)
    with pytest.raises(ShardChanged):
        await world.storage.run_flight(entry, flight, writer, failing(writer, ShardChanged(A, "another ETag")))
    await world.quiet()
    assert entry.in_use.stale
    assert world.ledger.stored_bytes == 0


async def test_a_disk_that_fails_in_a_flight_is_told_to_its_health(world: World) -> None:
    """Its reader goes on past the cache."""
    flight, writer = in_the_air(world)
    with pytest.raises(DiskFailed):
        await world.storage.run_flight(world.entry(A), flight, writer, failing(writer, DiskFailed("write", "EROFS", "read-only")))
    assert not world.cache.disk.usable
    world.clock.advance(60)
    world.cache.disk.look()


@pytest.mark.parametrize("when", list(When))
async def test_a_flight_holds_nothing_wherever_it_is_cancelled(tmp_path: Path, when: When) -> None:
    """At each await: its segment is stored whole, or nothing of it is here; and its readers hear of the end of the sidecar."""

    async def filling(writer: SegmentWriter) -> None:
        for part in (NEXT[:100], NEXT[100:-100], NEXT[-100:]):
            await writer.put(part)
            await asyncio.sleep(0)

    async for cut in at_each_await(when):
        async with building(tmp_path / f"{cut.number}") as world:
            entry = await first_stored(world)
            flight, writer = in_the_air(world)
            await cut.run(world.storage.run_flight(entry, flight, writer, filling(writer)))
            await nothing_left(world, entry)
            assert world.ledger.stored_bytes == SEGMENT * (1 + entry.segments.has(1))
            assert entry.segments.has(1) or type(flight.error) is ForebayError


async def test_a_write_under_way_ends_before_its_room_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is writing cannot be stopped: what it writes after the punch would belong to nothing."""
    real, reached, gate = file_io.write_pieces, threading.Event(), threading.Event()

    def slowly(*args: Any) -> None:
        reached.set()
        gate.wait(60)
        real(*args)

    monkeypatch.setattr(file_io, "write_pieces", slowly)
    entry, before = world.entry(A), world.allocated()
    flight, writer = in_the_air(world)

    async def filling() -> None:
        await writer.put(NEXT[: SEGMENT // 2])
        await writer._begin_write()
        raise OriginUnavailable(A, "gone")

    flying = asyncio.create_task(world.storage.run_flight(entry, flight, writer, filling()))
    await until(reached.is_set)
    await asyncio.sleep(0.01)
    assert (flying.done(), world.ledger.reserved_bytes) == (False, SEGMENT)
    gate.set()
    with pytest.raises(OriginUnavailable):
        await flying
    await nothing_left(world, entry)
    assert world.allocated() == before


# What follows for the version


async def test_an_outdated_version_is_reported_once(world: World) -> None:
    """Two flights may learn it."""
    world.storage.outdated(entry := world.entry(A))
    world.storage.outdated(entry)
    assert [fact.entry for fact in world.of(VersionOutdated)] == [entry]


async def test_an_outdated_version_stays_while_a_reader_is_inside(world: World) -> None:
    """The reader ends with the version it began with; then its bytes leave."""
    entry = world.entry(A)
    async with world.opened(A, last=SEGMENT - 1) as reading:
        world.storage.outdated(entry)
        await world.quiet()
        assert world.ledger.stored_bytes == SEGMENT
        assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == DATA[:SEGMENT]
    await until(lambda: world.ledger.stored_bytes == 0)


async def test_a_length_that_becomes_known_completes_the_shard(world: World) -> None:
    """A body without a length ended: all of it may be claimed now, and is synced."""
    whole = await world.get(A)
    await world.quiet()
    assert whole == DATA
    world.facts.clear()
    world.storage.length_known(world.entry(A))
    await world.quiet()
    assert [fact.entry for fact in world.of(ShardCompleted)] == [world.entry(A)]
