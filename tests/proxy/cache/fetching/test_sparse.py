"""Parts of segments that are passed through and not stored; and from when on the whole segment is fetched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.fake_origin import reset
from support.house import LAYOUT, SEGMENT, World, building, data_of, reader, shard_of

from forebay_proxy.cache.fetching import sparse
from forebay_proxy.cache.fetching.sparse import SparseParts
from forebay_proxy.core.facts.origins import FetchRetried
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.shard import ByteRange, SparseRange
from forebay_proxy.wire.protocol.plan import ReaderName

A = "https://origin.example/a/a.mp4"
DATA = data_of(4 * SEGMENT + 100)
PART = 1000


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with building(tmp_path / "c", segments=8) as world:
        world.origin.put(A, DATA)
        yield world


async def part(world: World, first: int, size: int = PART, who: ReaderName | None = None) -> RequestOutcome:
    """How bytes that lie alone were come by; they are right."""
    last = first + size - 1
    async with world.cache.open(shard_of(A), who, SparseRange(first, last)) as reading:
        await reading.begin(first, last)
        assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == DATA[first : last + 1]
    await world.quiet()
    return reading.outcome


def ranges(world: World) -> list[tuple[int, int | None] | None]:
    return world.origin.asked(A)


async def test_a_part_of_an_unknown_shard_is_all_that_is_asked_for(world: World) -> None:
    """By the very question that finds the version; nothing is stored or kept."""
    assert await part(world, 5) is RequestOutcome.RELAYED
    assert await part(world, 3 * SEGMENT + 7) is RequestOutcome.RELAYED
    assert ranges(world) == [(5, 5 + PART - 1), (3 * SEGMENT + 7, 3 * SEGMENT + 7 + PART - 1)]
    assert (world.allocated(), len(world.room.entries), world.ledger.reserved_bytes) == (0, 0, 0)


async def test_what_is_here_is_read_from_the_disk(world: World) -> None:
    """And of the next segment only its part is asked for."""
    await world.get(A, last=9)
    await world.quiet()
    assert await part(world, SEGMENT - PART) is RequestOutcome.HIT
    assert await part(world, SEGMENT - 10, 30) is RequestOutcome.RELAYED
    assert ranges(world)[1:] == [(SEGMENT, SEGMENT + 19)]
    assert list(world.entry(A).segments.stored()) == [0]


async def test_what_is_in_the_air_is_waited_for(world: World) -> None:
    """It comes anyway."""
    gate = world.origin.remotes[A].hold(PART)
    async with world.opened(A, last=9), asyncio.TaskGroup() as group:
        second = group.create_task(part(world, 2 * PART))
        await asyncio.sleep(0)
        gate.open()
    assert await second is RequestOutcome.COLLAPSED
    assert ranges(world) == [(0, SEGMENT - 1)]


async def test_across_a_border_each_segment_is_asked_for_its_part(world: World) -> None:
    """What is stored or passed through is decided segment by segment."""
    assert await part(world, SEGMENT - 10, 30) is RequestOutcome.RELAYED
    assert ranges(world) == [(SEGMENT - 10, SEGMENT - 1), (SEGMENT, SEGMENT + 19)]


async def test_a_segment_of_which_half_was_passed_through_is_fetched(world: World) -> None:
    """Whoever asks; from then on it is here. Its neighbours have their own count."""
    quarter = SEGMENT // 4
    outcomes = [await part(world, SEGMENT + at, quarter, reader(at)) for at in (0, quarter, 2 * quarter)]
    assert outcomes == [RequestOutcome.RELAYED, RequestOutcome.RELAYED, RequestOutcome.MISS]
    assert ranges(world)[2] == (SEGMENT, 2 * SEGMENT - 1)
    assert await part(world, SEGMENT, quarter) is RequestOutcome.HIT
    assert await part(world, 0, quarter) is RequestOutcome.RELAYED


async def test_after_it_was_evicted_it_is_rented_anew(world: World) -> None:
    """What was fetched whole has been paid for."""
    half = SEGMENT // 2
    await part(world, 0, half)
    await part(world, 0, half)
    await world.reclaimer.evict(world.entry(A))
    assert await part(world, 0, half) is RequestOutcome.RELAYED


async def test_a_large_part_is_no_part(world: World) -> None:
    """More than half of its segment; the last segment is a short one."""
    assert await part(world, 5, SEGMENT // 2 + 1) is RequestOutcome.MISS
    assert await part(world, 4 * SEGMENT, 51) is RequestOutcome.MISS
    assert ranges(world) == [(0, SEGMENT - 1), (4 * SEGMENT, 4 * SEGMENT + 99)]


async def test_an_object_that_turns_out_to_be_short_is_fetched(world: World) -> None:
    """Its length is not known before the first answer."""
    world.origin.put(A, DATA[:1500])
    assert await part(world, 0) is RequestOutcome.MISS
    assert world.entry(A).segments.complete


async def test_where_the_origin_honours_no_range_all_of_it_is_stored(world: World) -> None:
    world.origin.put(A, DATA[:SEGMENT], ranged=False)
    assert await part(world, 5) is RequestOutcome.MISS
    assert world.entry(A).segments.complete


async def test_where_two_parts_could_not_be_told_to_be_of_one_version_nothing_is(world: World) -> None:
    """As of any other request of such a shard."""
    world.origin.put(A, DATA[:SEGMENT], identity=False)
    assert await part(world, 5) is RequestOutcome.BYPASS
    assert world.allocated() == 0


async def test_what_a_plan_names_is_fetched_whole(world: World) -> None:
    """It is wanted in whole, soon."""
    world.plans.replace(reader(), [shard_of(A)])
    assert await part(world, SEGMENT + 5) is RequestOutcome.MISS
    assert ranges(world)[0] == (SEGMENT, 2 * SEGMENT - 1)


@pytest.mark.parametrize("known", [False, True])
async def test_a_broken_part_is_gone_on_with(world: World, known: bool) -> None:
    """From its next byte, of the same version."""
    if known:
        await world.get(A, last=9)
        await world.quiet()
    world.origin.remotes[A].chunk_bytes = 100
    world.origin.remotes[A].fail(reset, after=300)
    assert await part(world, SEGMENT) is RequestOutcome.RELAYED
    asked = world.origin.log[-1]
    assert (asked.range, asked.pin) == ((SEGMENT + 300, SEGMENT + PART - 1), '"v1"')


async def test_the_begin_of_a_tar_is_not_judged_by_a_part(world: World) -> None:
    """A tar is told by its first 512 bytes."""
    name = "https://origin.example/a/a.tar"
    world.origin.put(name, DATA)
    async with world.cache.open(shard_of(name), None, SparseRange(0, 99)) as reading:
        await reading.begin(0, 99)
        assert [bytes(chunk) async for chunk in reading.chunks()] == [DATA[:100]]
    assert reading.entry.trust.no_tar is None


async def test_a_part_that_nobody_comes_for_is_given_up(world: World) -> None:
    """A client whose version is another has its answer before the first byte; nothing stays behind."""
    async with world.cache.open(shard_of(A), None, SparseRange(5, 99)):
        assert world.origin.open == 1
    await world.quiet()
    assert (len(world.room.entries), world.origin.open) == (0, 0)


async def read(world: World, first: int, last: int) -> bytes:
    async with world.cache.open(shard_of(A), None, SparseRange(first, last)) as reading:
        await reading.begin(first, last)
        return b"".join([bytes(chunk) async for chunk in reading.chunks()])


@pytest.mark.parametrize(("other", "leaves"), [((5, 50), False), ((20, 99), False), ((100, 200), False), ((20, 50), True)])
async def test_a_part_that_comes_is_the_first_readers_whom_it_covers(world: World, other: tuple[int, int], leaves: bool) -> None:
    """Of those who wait for the opening, whoever asked for it; the others ask for their own. Nothing is asked for twice."""
    gate = world.origin.remotes[A].hold()
    first = asyncio.create_task(read(world, 5, 99))
    await gate.reached.wait()
    second = asyncio.create_task(read(world, *other))
    await asyncio.sleep(0)
    if leaves:
        first.cancel()
    gate.open()
    assert await second == DATA[other[0] : other[1] + 1]
    assert leaves or await first == DATA[5:100]
    assert ranges(world) == ([(5, 99)] if leaves else [(5, 99), other])
    assert not world.of(FetchRetried)


def test_the_count_has_a_bound() -> None:
    """The segment that was asked for longest ago is forgotten."""
    found = SparseParts()
    names = [str(number) for number in range(sparse.MOST_SEGMENTS + 1)]
    assert all(found.take(name, 0, 50, 100) for name in names)
    assert (found.take(names[0], 0, 50, 100), found.take(names[-1], 0, 50, 100)) == (True, False)


@pytest.mark.parametrize("want", [None, ByteRange(5, 9), SparseRange(0, SEGMENT)])
def test_what_is_no_part(want: ByteRange | None) -> None:
    """A reader that does not say so wants the segment around it; so does one that asks for more than half of it."""
    assert SparseParts().asked_at_opening(A, want, LAYOUT) is None
