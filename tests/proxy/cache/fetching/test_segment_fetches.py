"""Which fetch brings a segment, when another begins, and what each one gives back."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cancelling import When, at_each_await
from support.house import SEGMENT, World, building, data_of, failing, reader, shard_of, stored, until

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import SegmentMissed, VersionOutdated
from forebay_proxy.core.errors import CacheFull, DiskFailed, ForebayError, OriginUnavailable
from forebay_proxy.core.facts.cache import ReservationRefused
from forebay_proxy.core.facts.origins import FetchRetried, Refetched
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.shard import ByteRange
from forebay_proxy.store.files import file_io
from forebay_proxy.transfer.buffers import MEMORY_SEGMENTS
from forebay_proxy.transfer.fetches import WHOLE, Answer, Fetch
from forebay_proxy.transfer.limiter import AHEAD
from forebay_proxy.transfer.single_flight import Urgency

A, B = "https://origin.example/a/a.tar", "https://origin.example/b/b.tar"
DATA = data_of(4 * SEGMENT)
AHEAD = AHEAD + 1


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Of a shard of four segments the first is here; there is room for three."""
    async with building(tmp_path / "c", segments=3) as world:
        await first_stored(world)
        yield world


@pytest.fixture
async def wide(tmp_path: Path) -> AsyncIterator[World]:
    """Room for everything, and nothing is here."""
    async with building(tmp_path / "c") as world:
        yield world


async def first_stored(world: World) -> Entry:
    world.origin.put(A, DATA)
    await world.get(A, last=9)
    await world.quiet()
    world.facts.clear()
    return world.entry(A)


@contextmanager
def full(world: World) -> Iterator[None]:
    """All of the room is somebody's who keeps it."""
    world.entry(A).segments.lease(0)
    grant = world.ledger.reserve(world.ledger.free_bytes, list)
    try:
        yield
    finally:
        world.ledger.release(grant)
        world.entry(A).segments.release(0)


@contextmanager
def failing_disk(world: World) -> Iterator[None]:
    world.cache.disk.failed(DiskFailed("write", "EROFS", "read-only"))
    yield
    world.clock.advance(60)
    world.cache.disk.look()


def ensure(world: World, index: int) -> Fetch | None:
    return world.segment_fetches.ensure(world.entry(A), index, shard_of(A), need=AHEAD, need_at=None, reader=None)


def launched(world: World, index: int = 1) -> Fetch:
    return world.segment_fetches.launch(world.entry(A), index, shard_of(A))


def refusals(world: World) -> list[str]:
    return [fact.reason for fact in world.of(ReservationRefused)]


# Which one


async def test_ahead_of_need_a_missing_segment_is_fetched_once(world: World) -> None:
    """What is here or on its way is not asked for again."""
    assert ensure(world, 0) is None
    fetch = ensure(world, 1)
    assert fetch is not None
    assert world.segment_fetches.find(world.entry(A), 1) is fetch
    assert ensure(world, 1) is None
    await world.quiet()
    assert len(world.origin.asked(A)) == 2
    assert 1 in world.entry(A).segments.unread


async def test_ahead_of_need_nothing_begins_where_it_cannot_stay(world: World) -> None:
    """Of a version that nobody could complete, while the disk fails, or where there is no room."""
    entry, fetches = world.entry(A), world.segment_fetches
    entry.ranged = False
    with pytest.raises(CacheFull, match="cannot be completed"):
        ensure(world, 1)
    entry.ranged = True
    with failing_disk(world), pytest.raises(CacheFull, match="disk is failing"):
        ensure(world, 1)
    with full(world):
        with pytest.raises(CacheFull):
            ensure(world, 1)
        for plan in (None, [shard_of(A)]):  # further inside the shard a reader is in, with and without a plan
            world.plans.replace(reader(), plan or [])
            assert not fetches.launch_ahead(entry, 2, shard_of(A), 1.0, reader())
    assert len(world.origin.asked(A)) == 1


async def test_a_segment_that_left_again_is_not_on_its_way(world: World) -> None:
    """The body that brought it goes on, and below its watermark there is a hole."""
    entry, fetch = world.entry(A), Fetch(0, 4 * SEGMENT, 0.0)
    world.fetches.add(entry.key, WHOLE, fetch)
    assert world.segment_fetches.find(entry, 2) is fetch
    fetch.stored.add(2)
    assert world.segment_fetches.find(entry, 2) is None
    world.fetches.remove(entry.key, WHOLE, fetch)


async def test_a_fetch_is_hurried_and_never_slowed(world: World) -> None:
    """The nearest need of all who wait is its need."""
    entry, fetch = world.entry(A), ensure(world, 1)
    assert fetch is not None
    for need, now in ((5.0, 5.0), (2.0, 2.0), (9.0, 2.0)):
        world.segment_fetches.hurry(entry, fetch, need)
        assert fetch.need == now
    await world.quiet()


async def test_only_a_reader_with_a_plan_has_announced_itself(world: World) -> None:
    """A name alone says nothing of the future."""
    known = world.segment_fetches.announced
    assert (known(None), known(reader())) == (None, None)
    world.plans.replace(reader(), [shard_of(A)])
    assert known(reader()) == reader()


# One segment


async def test_a_broken_fetch_leaves_no_part_of_its_segment(world: World) -> None:
    """It is reported missing: its reader's cursor goes back to it. Who waits hears of it."""
    before, fails = world.allocated(), world.origin.remotes[A].fail
    fails(lambda name: OriginUnavailable(name, "gone", hopeless=False), after=SEGMENT // 2)
    fails(times=10_000)
    fetch = launched(world)
    with pytest.raises(OriginUnavailable):
        await fetch.grown_beyond(2 * SEGMENT)
    await world.quiet()
    world.origin.remotes[A].failures.clear()
    assert (world.entry(A).segments.has(1), world.allocated()) == (False, before)
    assert [(fact.index, fact.fetch) for fact in world.of(SegmentMissed)] == [(1, fetch)]


async def test_a_file_that_was_cut_under_a_fetch_ends_its_version(world: World) -> None:
    """It cannot be mended while it is read."""
    gate = world.origin.remotes[A].hold(SEGMENT + 100)
    fetch = launched(world)
    await gate.reached.wait()
    os.truncate(world.shard_file(A), 100)
    gate.open()
    with pytest.raises(DiskFailed, match="ENODATA"):
        await fetch.grown_beyond(2 * SEGMENT)
    await world.quiet()
    assert len(world.of(VersionOutdated)) == 1


@pytest.mark.parametrize("when", list(When))
async def test_a_fetch_holds_nothing_wherever_it_is_cancelled(tmp_path: Path, when: When) -> None:
    """Its segment is stored whole, or nothing of it is here; its subscribers hear of the end of the sidecar, and its answer is closed."""
    async for cut in at_each_await(when):
        async with building(tmp_path / f"{cut.number}", segments=2) as world:
            entry = await first_stored(world)
            await stored(world, B, 1, 1)
            entry.segments.lease(0)  # so the other shard is the victim
            begun = world.segment_fetches.opened(entry, 1, Urgency(0.0))
            assert begun is not None
            fetch, sink = begun
            async with AsyncExitStack() as held:
                want = ByteRange(SEGMENT, 2 * SEGMENT - 1)
                body, slot = await held.enter_async_context(world.fetcher.ask(shard_of(A), want, entry.version.pin, fetch))
                answer = Answer(body, slot, held.pop_all())
            await cut.run(world.segment_fetches.run(entry, 1, shard_of(A), fetch, sink, answer))
            assert world.origin.open == 0
            entry.segments.release(0)
            await world.quiet()
            world.check()
            assert world.ledger.stored_bytes == SEGMENT * (1 + entry.segments.has(1) + (B in world.resolver.versions.current))
            assert entry.segments.has(1) or type(fetch.error) is ForebayError


# One body that brings the whole shard


async def test_a_whole_shard_comes_in_one_fetch_and_is_all_stored(wide: World) -> None:
    """However many read it and wherever they begin; broken, it is gone on with from its next byte."""
    remote = wide.origin.put(A, DATA, ranged=False)
    remote.fail(after=SEGMENT + 1000)
    remote.fail(after=2 * SEGMENT)
    got = await asyncio.gather(wide.get(A), wide.get(A, first=2 * SEGMENT + 5), wide.get(A, last=9))
    assert got == [DATA, DATA[2 * SEGMENT + 5 :], DATA[:10]]
    await wide.quiet()
    assert (wide.entry(A).segments.complete, wide.origin.asked(A)) == (True, [(0, SEGMENT - 1), None, None])
    assert [fact.resumed for fact in wide.of(FetchRetried)] == [True, True]
    assert {asked.pin for asked in wide.origin.log[1:]} == {'"v1"'}


@pytest.mark.parametrize("segments", [0, 1, 3])
async def test_a_whole_shard_for_which_there_is_no_room_is_passed_through(tmp_path: Path, segments: int) -> None:
    """From its first byte on: part of it would be of no use. The answer that is there is the first reader's; said and counted."""
    async with building(tmp_path / "c", segments=segments) as world:
        world.origin.put(A, DATA, ranged=False)
        async with world.opened(A) as reading:
            assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == DATA
            assert reading.outcome is RequestOutcome.BYPASS
        await world.quiet()
        assert (world.allocated(), world.origin.asked(A), refusals(world)) == (0, [(0, SEGMENT - 1)], ["no-room"])
        assert (world.buffers.memory.taken, world.ledger.reserved_bytes) == (0, 0)


@pytest.mark.parametrize("leaf", ["allocate", "append"])
async def test_a_whole_shard_whose_disk_fails_in_the_middle_is_read_on(wide: World, monkeypatch: pytest.MonkeyPatch, leaf: str) -> None:
    """By bodies of the readers' own; nothing of it stays, and the version is opened anew."""
    real = getattr(file_io, leaf)

    def fails(fd: int, offset: int, *args: Any) -> Any:
        if offset >= 2 * SEGMENT:
            raise OSError(errno.EIO, "broken")
        return real(fd, offset, *args)

    wide.origin.put(A, DATA, ranged=False)
    with monkeypatch.context() as patch:
        patch.setattr(file_io, leaf, fails)
        assert await asyncio.gather(wide.get(A), wide.get(A)) == [DATA, DATA]
    await wide.quiet()
    assert (wide.allocated(), wide.ledger.reserved_bytes) == (0, 0)
    wide.clock.advance(60)
    assert await wide.get(A) == DATA
    await wide.quiet()
    assert wide.entry(A).segments.complete


async def test_what_a_whole_body_brought_before_its_first_reader_is_unread(wide: World) -> None:
    gate = wide.origin.put(A, DATA, ranged=False).hold(2 * SEGMENT)
    await wide.resolver.entry(shard_of(A), "", need=AHEAD)
    await until(lambda: wide.entry(A).segments.stored_count == 2)
    reading = asyncio.create_task(wide.get(A, first=3 * SEGMENT))
    await until(lambda: wide.fetches.all()[0].subscribers)
    gate.open()
    assert await reading == DATA[3 * SEGMENT :]
    await wide.quiet()
    assert wide.entry(A).segments.unread == {0, 1}


@pytest.mark.parametrize("disk", ["full", "failing"])
async def test_ahead_of_need_an_opening_that_finds_no_room_is_refused_before_the_origin_is_asked(world: World, disk: str) -> None:
    world.origin.put(B, DATA)
    with full(world) if disk == "full" else failing_disk(world), pytest.raises(CacheFull):
        await world.resolver.entry(shard_of(B), "", need=AHEAD)
    assert world.origin.asked(B) == []


@pytest.mark.parametrize("ranged", [True, False])
async def test_ahead_of_need_an_opening_of_more_than_fits_gives_all_back(world: World, ranged: bool) -> None:
    """A whole shard that is larger than the room is not begun; of one in pieces the first is."""
    world.origin.put(B, DATA, ranged=ranged)
    await world.resolver.entry(shard_of(B), "", need=AHEAD)
    await world.quiet()
    assert len(world.of(SegmentMissed)) == (not ranged), "whoever asked ahead leaves it alone for a while"
    assert world.ledger.reserved_bytes == 0
    assert world.ledger.stored_bytes == SEGMENT * (1 + ranged)


# Into memory


async def test_what_is_needed_now_comes_without_room_too(world: World) -> None:
    """And is not stored; who reads it can read all of it after its fetch has ended."""
    with full(world):
        fetch = launched(world)
        with fetch.subscribed():
            await world.quiet()
            assert (fetch.bypass, fetch.done, world.buffers.memory.taken, refusals(world)) == (True, True, 1, ["no-room"])
            buffer = memoryview(bytearray(SEGMENT))
            fetch.place.read(SEGMENT, buffer)  # type: ignore[attr-defined]
            assert bytes(buffer) == DATA[SEGMENT : 2 * SEGMENT]
        assert (world.buffers.memory.taken, world.entry(A).segments.has(1)) == (0, False)


@pytest.mark.parametrize("leaves", ["before it began", "in the middle"])
async def test_a_bypass_whose_last_subscriber_leaves_early_gives_its_memory_back_at_its_end(world: World, leaves: str) -> None:
    gate = world.origin.remotes[A].hold(SEGMENT + 100)
    with full(world):
        fetch = launched(world)
        with fetch.subscribed():
            if leaves == "in the middle":
                await gate.reached.wait()
        await gate.reached.wait()
        assert world.buffers.memory.taken == 1
        gate.open()
        await world.quiet()
    assert (fetch.done, world.buffers.memory.taken) == (True, 0)


async def test_a_bypass_that_nobody_comes_for_ends(world: World) -> None:
    """A moment later than it came."""
    with full(world):
        fetch = launched(world)
        await until(lambda: fetch.position == fetch.end)
        assert (fetch.done, world.buffers.memory.taken) == (False, 1)
        await world.quiet()
    assert (fetch.done, fetch.error, world.buffers.memory.taken) == (True, None, 0)


async def test_who_finds_no_memory_has_a_body_of_its_own(world: World) -> None:
    """An origin that is silent, or readers that are slow, hold up no other."""
    world.origin.put(B, DATA)
    with full(world), ExitStack() as held:
        for _ in range(MEMORY_SEGMENTS):
            world.buffers.memory.take(0, held)
        assert await world.get(B) == DATA
    assert B not in world.resolver.versions.current


async def test_what_nobody_waits_for_is_given_up_where_the_disk_refuses_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the origin is asked."""
    with monkeypatch.context() as patch:
        patch.setattr(file_io, "allocate", failing(errno.EIO))
        fetch = ensure(world, 2)
        assert fetch is not None
        with pytest.raises(CacheFull, match="nobody waits for"):
            await fetch.grown_beyond(2 * SEGMENT)
    assert len(world.origin.asked(A)) == 1
    world.clock.advance(60)
    world.cache.disk.look()


# Past the cache, for one reader


async def test_a_body_of_its_own_is_found_by_nobody_else(world: World) -> None:
    """It ends where it is told to, and counts as fetched twice; but not where only a part was wanted."""
    entry = world.entry(A)
    for sparse, told in ((False, 1), (True, 0)):
        world.facts.clear()
        async with aclosing(world.segment_fetches.alone(entry, SEGMENT + 10, 2 * SEGMENT, shard_of(A), sparse=sparse)) as pieces:
            first = bytes(await anext(pieces))
            assert world.segment_fetches.find(entry, 1) is None
            assert first + b"".join([bytes(piece) async for piece in pieces]) == DATA[SEGMENT + 10 : 2 * SEGMENT]
        assert len(world.of(Refetched)) == told


@pytest.mark.parametrize("kind", [{"identity": False}, {"ranged": False, "length_known": False}], ids=str)
async def test_what_cannot_be_kept_is_brought_to_each_reader_by_a_body_of_its_own(wide: World, kind: dict[str, bool]) -> None:
    """The opening's is the first one's; the others' are new, and nothing is stored."""
    wide.origin.put(A, DATA, **kind)
    async with wide.opened(A) as one, wide.opened(A) as two:
        before = len(wide.origin.asked(A))
        assert wide.origin.open == 2
        got = await asyncio.gather(wide.taken(one, len(DATA)), wide.taken(two, len(DATA)))
        assert got == [DATA, DATA]
        assert (one.outcome, two.outcome) == (RequestOutcome.BYPASS,) * 2
        assert len(wide.origin.asked(A)) == before
    await wide.quiet()
    assert (wide.allocated(), len(wide.room.entries), wide.ledger.reserved_bytes) == (0, 0, 0)


async def test_an_answer_that_nobody_comes_for_is_closed(wide: World) -> None:
    """After a moment; ahead of need at once, as nobody will."""
    wide.origin.put(A, DATA, identity=False)
    entry, _ = await wide.resolver.entry(shard_of(A), "")
    assert (wide.origin.open, entry.in_use.answer is None) == (1, False)
    await wide.quiet()
    assert (wide.origin.open, entry.in_use.answer) == (0, None)
    entry, _ = await wide.resolver.entry(shard_of(A), "", need=AHEAD)
    assert (wide.origin.open, entry.in_use.answer) == (0, None)
