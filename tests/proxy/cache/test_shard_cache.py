"""The whole cache: every reader gets exactly the origin's bytes, whatever happens around it."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.house import SEGMENT, building, data_of, reader, shard_of, stored, until
from support.lengths import examples
from support.seams import disk_does

from forebay_proxy.cache.readers.reader import REST_S, ShardReader
from forebay_proxy.core.errors import (
    CacheFull,
    OriginUnavailable,
    ShardChanged,
    ShardError,
    ShardNotFound,
    TruncatedShard,
    VersionLost,
)
from forebay_proxy.core.facts.cache import IntegrityFailed
from forebay_proxy.core.facts.origins import FetchRetried, Refetched
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.store.files import file_io
from forebay_proxy.transfer.buffers import MEMORY_SEGMENTS, Share

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"


async def rest(reading: ShardReader, got: bytearray) -> None:
    """Add what is left of a reading to ``got``, as far as it comes."""
    async for chunk in reading.chunks():
        got += bytes(chunk)


@pytest.mark.parametrize("length", [1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 5 * SEGMENT + 77])
async def test_a_shard_is_read_whole(tmp_path: Path, length: int) -> None:
    """Cold, then warm: the same bytes, and the origin is asked for each once."""
    async with building(tmp_path / "c") as world:
        data = data_of(length)
        world.origin.put(A, data)
        assert await world.get(A) == data
        assert await world.get(A) == data
        assert (world.origin.sent(A), world.origin.sent_twice(A)) == (length, 0)


async def test_an_empty_shard_is_served(tmp_path: Path) -> None:
    """416 with */0 is an empty shard, not an error."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, b"")
        assert await world.get(A) == b""


async def test_an_empty_body_without_a_length_is_an_empty_shard(tmp_path: Path) -> None:
    """No segment of it is claimed to be here."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, b"", ranged=False, length_known=False)
        assert await world.get(A) == b""
        assert not any(entry.segments.stored_count for entry in world.room.entries.values())


@pytest.mark.parametrize("length", [SEGMENT // 2, 2 * SEGMENT, 3 * SEGMENT + 5])
async def test_an_origin_without_range_is_one_fetch(tmp_path: Path, length: int) -> None:
    """One request brings all of it, and it is stored."""
    async with building(tmp_path / "c") as world:
        data = data_of(length)
        world.origin.put(A, data, ranged=False)
        assert await world.get(A) == data
        assert await world.get(A) == data
        assert len(world.origin.asked(A)) == 1
        await world.quiet()
        assert world.entry(A).segments.complete


@pytest.mark.parametrize("how", [{"ranged": False, "length_known": False}, {"identity": False}])
async def test_what_cannot_be_recognised_again_is_passed_through(tmp_path: Path, how: dict[str, bool]) -> None:
    """No length, or no version: each reader has a body of its own, the first one the opening's, and nothing is stored."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT + 5)
        world.origin.put(A, data, **how)
        for _ in range(2):
            async with world.opened(A) as reading:
                assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
                assert reading.outcome is RequestOutcome.BYPASS
        assert len([asked for asked in world.origin.asked(A) if asked is None or asked[1] is None]) <= 2
        assert world.ledger.stored_bytes == 0
        assert not world.of(Refetched)


async def test_outcomes_are_told(tmp_path: Path) -> None:
    """Miss and collapsed while it comes, hit once it is here, partial where some of it is."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, data_of(SEGMENT)).hold(SEGMENT // 2)
        async with world.opened(A) as first:
            await gate.reached.wait()
            async with world.opened(A) as second:
                assert (first.outcome, second.outcome) == (RequestOutcome.MISS, RequestOutcome.COLLAPSED)
            gate.open()
        await world.quiet()
        async with world.opened(A) as third:
            assert third.outcome is RequestOutcome.HIT
        world.origin.put(B, data_of(3 * SEGMENT))
        await world.get(B, first=0, last=9)
        await world.quiet()
        async with world.opened(B) as fourth:
            assert fourth.outcome is RequestOutcome.PARTIAL


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    length=st.sampled_from([1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT, 7 * SEGMENT + 13]),
    spans=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8),
    room=st.sampled_from([0, 1, 2, 3, 6, 100]),
    ranged=st.booleans(),
    seed=st.integers(0, 2**32),
)
async def test_ranges_of_many_readers_are_exact(
    tmp_path_factory: pytest.TempPathFactory, length: int, spans: list[tuple[float, float]], room: int, ranged: bool, seed: int
) -> None:
    """Any readers, ranges, rooms and paces: what is read are the origin's bytes."""
    data, chance = data_of(length), random.Random(seed)
    async with building(tmp_path_factory.mktemp("c") / "c", segments=room) as world:
        remote = world.origin.put(A, data, ranged=ranged)
        remote.chunk_bytes = 5000

        async def read(start: float, size: float) -> None:
            first = min(length - 1, int(start * length))
            last = min(length - 1, first + int(size * length))
            await asyncio.sleep(chance.random() * 0.01)
            async with world.opened(A, first=first, last=last) as reading:
                got = b""
                async for chunk in reading.chunks():
                    got += bytes(chunk)
                    if chance.random() < 0.2:
                        await asyncio.sleep(0.001)
            assert got == data[first : last + 1]

        async with asyncio.TaskGroup() as group:
            for start, size in spans:
                group.create_task(read(start, size))


async def test_two_readers_make_one_fetch(tmp_path: Path) -> None:
    """The second follows what the first asked for."""
    async with building(tmp_path / "c") as world:
        data = data_of(4 * SEGMENT)
        world.origin.put(A, data)
        assert await asyncio.gather(world.get(A), world.get(A)) == [data, data]
        assert world.origin.sent_twice(A) == 0


async def test_who_leaves_costs_nobody_anything(tmp_path: Path) -> None:
    """64 readers of one cold shard, 63 leave anywhere: the last reads all, each byte is fetched once, and everything is given back."""
    async with building(tmp_path / "c") as world:
        data, chance = data_of(6 * SEGMENT + 1), random.Random(5)
        world.origin.put(A, data)

        async def leave_early() -> None:
            async with world.opened(A) as reading:
                await world.taken(reading, chance.randrange(len(data)))

        async with asyncio.TaskGroup() as group:
            early = [group.create_task(leave_early()) for _ in range(63)]
            whole = group.create_task(world.get(A))
            for task in early:
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
                    task.cancel()
        assert whole.result() == data
        assert world.origin.sent_twice(A) == 0


async def test_a_slow_reader_slows_nobody(tmp_path: Path) -> None:
    """One stands still after its first bytes, the other ends."""
    async with building(tmp_path / "c") as world:
        data = data_of(20 * SEGMENT)
        world.origin.put(A, data)
        async with world.opened(A) as slow:
            await world.taken(slow, 10)
            assert await world.get(A) == data


async def test_a_slow_reader_of_a_bypass_slows_nobody(tmp_path: Path) -> None:
    """Without room a segment lands in memory: who stands in it keeps it, and others go on with the next ones."""
    async with building(tmp_path / "c", segments=0) as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        async with world.opened(A) as slow:
            got = bytearray(await world.taken(slow, 10))
            assert await world.get(A) == data
            assert slow.outcome is RequestOutcome.BYPASS
            await rest(slow, got)
        assert got == data
        assert world.origin.asked(A).count((0, SEGMENT - 1)) == 1


async def test_a_lone_slow_reader_makes_a_bypass_wait(tmp_path: Path) -> None:
    """The origin is not read further ahead than its segment."""
    async with building(tmp_path / "c", segments=0) as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data)
        async with world.opened(A) as slow:
            got = bytearray(await world.taken(slow, 10))
            await world.quiet()
            assert world.origin.sent(A) == SEGMENT
            await rest(slow, got)
        assert got == data


async def test_eight_bypasses_have_memory_and_the_next_has_a_body_of_its_own(tmp_path: Path) -> None:
    """A reader that is stuck gives its memory back, and has every byte right all the same when it goes on."""
    async with building(tmp_path / "c", segments=0) as world, AsyncExitStack() as held:
        world.buffers.readers = Share(smallest_bytes=4096, largest_bytes=4096)
        names = [f"https://o/set/{number}.tar" for number in range(MEMORY_SEGMENTS + 1)]
        for number, name in enumerate(names):
            world.origin.put(name, data_of(2 * SEGMENT, number))
        readings = [await held.enter_async_context(world.opened(name)) for name in names[:-1]]
        got = [bytearray(await world.taken(reading, 10)) for reading in readings]
        assert await world.get(names[-1]) == data_of(2 * SEGMENT, MEMORY_SEGMENTS)
        assert world.buffers.memory.taken == MEMORY_SEGMENTS
        stuck = readings[3].chunks()
        chunk = await anext(stuck)
        before = bytes(chunk)
        assert world.cache.readers.let_rest(time.monotonic() + REST_S + 1) > 0
        assert await world.get(names[-1]) == data_of(2 * SEGMENT, MEMORY_SEGMENTS)
        assert bytes(chunk) == before
        got[3] += before
        async for chunk in stuck:
            got[3] += bytes(chunk)
        for reading, so_far in zip(readings, got, strict=True):
            await rest(reading, so_far)
        assert got == [data_of(2 * SEGMENT, number) for number in range(MEMORY_SEGMENTS)]


async def test_a_whole_shard_takes_the_room_it_needs_and_no_more(tmp_path: Path) -> None:
    """Of shards that leave whole too: one leaves for one, and what leaves is gone before the body comes, however long that takes."""
    async with building(tmp_path / "c", segments=16) as world:
        for number in range(2):
            world.origin.put(f"https://o/set/{number}.tar", data_of(8 * SEGMENT, number), ranged=False)
            assert await world.get(f"https://o/set/{number}.tar") == data_of(8 * SEGMENT, number)
        await world.quiet()
        gate = world.origin.put(A, data_of(4 * SEGMENT, 7), ranged=False).hold(SEGMENT)
        async with world.opened(A) as reading:
            await gate.reached.wait()
            assert (world.ledger.stored_bytes, world.ledger.doomed_bytes) == (9 * SEGMENT, 0)
            gate.open()
            got = bytearray()
            await rest(reading, got)
        assert got == data_of(4 * SEGMENT, 7)
        await world.quiet()
        assert world.ledger.stored_bytes == 12 * SEGMENT


async def test_a_bypass_is_stored_nowhere(tmp_path: Path) -> None:
    """Its outcome says so."""
    async with building(tmp_path / "c", segments=0) as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data)
        async with world.opened(A) as reading:
            assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
            assert reading.outcome is RequestOutcome.BYPASS
        assert world.ledger.stored_bytes == 0


async def test_everything_leased_means_bypass(tmp_path: Path) -> None:
    """A reader that stands in the only segment keeps it; the next one reads through memory."""
    async with building(tmp_path / "c", segments=1) as world:
        world.origin.put(A, data_of(SEGMENT))
        world.origin.put(B, data_of(SEGMENT, 1))
        async with world.opened(A) as held:
            await world.taken(held, 10)
            await world.quiet()
            assert await world.get(B) == data_of(SEGMENT, 1)
            assert world.entry(A).segments.has(0)


async def test_a_stream_whose_tail_finds_no_room_is_read_whole(tmp_path: Path) -> None:
    """Two readers, one of them slow; the body is asked for at most once more for the slow one, not once a segment."""
    async with building(tmp_path / "c", segments=2) as world:
        data = data_of(8 * SEGMENT)
        world.origin.put(A, data, ranged=False)
        async with world.opened(A) as slow:
            got = await world.taken(slow, 10)
            assert await world.get(A) == data
            got += b"".join([bytes(chunk) async for chunk in slow.chunks()])
        assert got == data
        assert len(world.origin.asked(A)) <= 2


async def test_a_broken_body_is_resumed(tmp_path: Path) -> None:
    """The next request starts at the next missing byte, held to the same version."""
    async with building(tmp_path / "c") as world:
        data = data_of(SEGMENT)
        world.origin.put(A, data).fail(after=20_000)
        assert await world.get(A) == data
        assert world.origin.asked(A) == [(0, SEGMENT - 1), (20_000, SEGMENT - 1)]
        assert world.origin.log[1].pin == '"v1"'
        assert world.of(FetchRetried)[0].resumed


async def test_a_stream_is_resumed_by_its_second_body(tmp_path: Path) -> None:
    """Without Range the whole body is asked again, and what has arrived is passed over."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data, ranged=False).fail(after=SEGMENT + 9)
        assert await world.get(A) == data


async def test_a_short_body_is_resumed(tmp_path: Path) -> None:
    """A body that ends too early without an error is as good as broken."""
    async with building(tmp_path / "c") as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data).cut(after=100)
        assert await world.get(A) == data


async def test_the_first_body_of_an_origin_is_resumed_with_the_full_budget(tmp_path: Path) -> None:
    """That it had never answered before is over once it has."""
    async with building(tmp_path / "c") as world:
        data = data_of(SEGMENT)
        remote = world.origin.put(A, data)
        remote.fail(after=20_000)
        gate = remote.hold(16384)
        reading = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        world.clock.advance(60.0)
        gate.open()
        assert await reading == data


async def test_a_broken_body_without_identity_is_not_resumed(tmp_path: Path) -> None:
    """Nothing would tell another version's bytes from these: the reader past 0 is aborted."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(3 * SEGMENT), identity=False).fail(after=SEGMENT, times=2)
        with pytest.raises(VersionLost):
            await world.get(A)


async def test_a_part_of_what_has_no_version_is_taken_of_a_body_of_its_own(tmp_path: Path) -> None:
    """While another reader has one, and after the origin has changed it."""
    async with building(tmp_path / "c") as world:
        old, new = data_of(3 * SEGMENT), data_of(3 * SEGMENT, 9)
        world.origin.put(A, old, identity=False)
        async with world.opened(A) as first:
            got = bytearray(await world.taken(first, 10))
            assert await world.get(A, first=SEGMENT, last=SEGMENT + 9) == old[SEGMENT : SEGMENT + 10]
            world.origin.put(A, new, identity=False)
            assert await world.get(A) == new
            await rest(first, got)
        assert got == old


async def test_a_version_that_changes_is_never_mixed(tmp_path: Path) -> None:
    """The reader is aborted; the next one reads the new version."""
    async with building(tmp_path / "c") as world:
        old, new = data_of(30 * SEGMENT), data_of(30 * SEGMENT, 3)
        world.origin.put(A, old)
        async with world.opened(A) as reading:
            got = bytearray(await world.taken(reading, 10))
            world.origin.put(A, new, etag='"v2"')
            with pytest.raises(ShardChanged):
                await rest(reading, got)
        assert old.startswith(bytes(got))
        assert await world.get(A) == new


async def test_a_version_that_comes_back_is_read(tmp_path: Path) -> None:
    """v1, v2, v1 again, with v1's segments still here."""
    async with building(tmp_path / "c") as world:
        old, new = data_of(2 * SEGMENT), data_of(2 * SEGMENT, 3)
        world.origin.put(A, old)
        async with world.opened(A, reader(job="1")) as held:
            await world.taken(held, 10)
            await world.quiet()
            world.origin.put(A, new, etag='"v2"')
            assert await world.get(A, reader(job="2")) == new
            world.origin.put(A, old)
            async with asyncio.timeout(60):
                assert await world.get(A, reader(job="3")) == old


async def test_one_identity_with_another_length_is_another_version(tmp_path: Path) -> None:
    """A careless origin keeps its ETag: what is stored under it is not mixed with what it sends now."""
    async with building(tmp_path / "c", revalidate=0.0) as world:
        world.origin.put(A, data_of(2 * SEGMENT))
        async with world.opened(A) as held:
            await world.taken(held, 10)
            longer = data_of(3 * SEGMENT, 4)
            world.origin.put(A, longer)
            async with asyncio.timeout(60):
                assert await world.get(A) == longer


async def test_a_close_delimited_body_without_end_is_an_error(tmp_path: Path) -> None:
    """Neither a length nor a tar's end: that may be a cut."""
    async with building(tmp_path / "c", retry_budget_s=1.0) as world:
        world.origin.put(A, data_of(2000), ranged=False, length_known=False, framed=False)
        with pytest.raises(TruncatedShard):
            await world.get(A)


async def test_a_failing_origin_is_told_to_who_waits_and_forgotten(tmp_path: Path) -> None:
    """The next reader starts anew."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data).fail(times=2)
        with pytest.raises(OriginUnavailable):
            await world.get(A)
        with pytest.raises(OriginUnavailable):
            await world.get(A)
        assert await world.get(A) == data


async def test_a_fetch_that_fails_gives_holes_to_nobody(tmp_path: Path) -> None:
    """What was written below the watermark is freed: a reader that was about to read it hears the error."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        data = data_of(2 * SEGMENT)
        remote = world.origin.put(A, data)
        remote.fail(after=40_000)
        gate = remote.hold(40_000)
        async with world.opened(A) as reading:
            got = bytearray(await world.taken(reading, 10))
            await gate.reached.wait()
            gate.open()
            await until(lambda: world.segment_fetches.find(reading.entry, 0) is None)
            with pytest.raises(OriginUnavailable):
                await rest(reading, got)
        assert data.startswith(bytes(got))
        assert await world.get(A) == data


async def test_a_failed_shard_can_be_stored_again(tmp_path: Path) -> None:
    """Nothing of a failed first fetch stands in the way of the second."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data).fail(after=40_000)
        async with world.opened(A) as reading:
            with pytest.raises(OriginUnavailable):
                await world.taken(reading, len(data))
            await world.quiet()
        assert await world.get(A) == data
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_a_shard_that_left_while_it_was_read_can_be_stored_again(tmp_path: Path) -> None:
    """Its file went with it."""
    async with building(tmp_path / "c", segments=1) as world:
        a, b = data_of(2 * SEGMENT), data_of(SEGMENT, 1)
        world.origin.put(A, a)
        world.origin.put(B, b)
        for _ in range(3):
            assert await world.get(A) == a
            async with world.opened(A, first=SEGMENT, last=SEGMENT + 9) as reading:
                await world.taken(reading, 10)
                await world.operations.evict(None)
            assert await world.get(B) == b


async def test_two_credentials_open_one_shard_at_once(tmp_path: Path) -> None:
    """The second opening finds the first one's flight and goes on."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        gate = world.origin.put(A, data).hold()
        one = asyncio.create_task(world.get(shard_of(A, credential="x")))
        two = asyncio.create_task(world.get(shard_of(A, credential="y")))
        await until(lambda: len(world.origin.log) == 2)
        gate.open()
        async with asyncio.timeout(60):
            assert await asyncio.gather(one, two) == [data, data]
        assert len(world.origin.log) < 10


async def test_missing_segments_of_a_partly_evicted_shard_come_back(tmp_path: Path) -> None:
    """Only what is missing is asked for."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 5)
        entry = world.entry(A)
        await world.reclaimer.discard(entry, 3)
        await world.reclaimer.discard(entry, 1)
        world.origin.log.clear()
        assert await world.get(A) == data
        assert sorted(world.origin.asked(A)) == [(SEGMENT, 2 * SEGMENT - 1), (3 * SEGMENT, 4 * SEGMENT - 1)]


async def test_evicted_by_hand_while_read(tmp_path: Path) -> None:
    """The reader goes on and gets every byte."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 20)
        async with world.opened(A) as reading:
            got = await world.taken(reading, 10)
            told = await world.operations.evict(["*a.tar"])
            assert (told["shards"], told["leased"]) == (1, 1)
            assert told["bytes"] > 0
            got += b"".join([bytes(chunk) async for chunk in reading.chunks()])
        assert got == data


async def test_an_unsatisfiable_range_is_nobody_elses(tmp_path: Path) -> None:
    """Who asks beyond the end does not fail those that share the opening."""
    async with building(tmp_path / "c") as world:
        data = data_of(2 * SEGMENT)
        gate = world.origin.put(A, data).hold()
        beyond = asyncio.create_task(world.get(A, first=99 * SEGMENT, last=None))
        await gate.reached.wait()
        whole = asyncio.create_task(world.get(A))
        await asyncio.sleep(0)
        gate.open()
        assert await whole == data
        assert await beyond == b""


async def test_a_range_beyond_a_length_that_was_unknown_ends(tmp_path: Path) -> None:
    """A stream of unknown length, asked for more than it has."""
    async with building(tmp_path / "c") as world:
        data = data_of(SEGMENT + 10)
        world.origin.put(A, data, ranged=False, length_known=False)
        async with asyncio.timeout(60):
            assert await world.get(A, first=5, last=9 * SEGMENT) == data[5:]


async def test_a_restart_keeps_every_claimed_segment(tmp_path: Path) -> None:
    """Same boot: trusted; the origin is asked for the version only."""
    data = data_of(4 * SEGMENT + 5)
    async with building(tmp_path / "c") as world:
        origin = world.origin
        origin.put(A, data)
        await world.get(A)
    origin.log.clear()
    async with building(tmp_path / "c", origin=origin) as world:
        assert await world.get(A) == data
        assert (origin.asked(A), origin.heads()) == ([], 1)


async def test_another_boot_verifies_before_first_use(tmp_path: Path) -> None:
    """A flipped byte costs its segment, which is fetched again; the others are served."""
    data = data_of(4 * SEGMENT)
    async with building(tmp_path / "c") as world:
        origin = world.origin
        origin.put(A, data)
        await world.get(A)
        await world.quiet()
        path = world.shard_file(A)
    with path.open("r+b") as file:
        file.seek(2 * SEGMENT + 5)
        file.write(b"\x00" if data[2 * SEGMENT + 5] else b"\x01")
    origin.log.clear()
    async with building(tmp_path / "c", origin=origin, boot="another") as world:
        assert world.entry(A).segments.unverified == {0, 1, 2, 3}
        assert await asyncio.gather(*(world.get(A) for _ in range(8))) == [data] * 8
        assert origin.asked(A) == [(2 * SEGMENT, 3 * SEGMENT - 1)]
        assert world.of(IntegrityFailed)


async def test_a_shard_that_was_a_stream_and_is_partly_gone_is_read_again(tmp_path: Path) -> None:
    """After a restart nobody remembers that its origin knows no Range: what is missing is taken from a whole body."""
    data = data_of(4 * SEGMENT)
    async with building(tmp_path / "c") as world:
        origin = world.origin
        origin.put(A, data, ranged=False)
        await world.get(A)
    async with building(tmp_path / "c", origin=origin) as world:
        await world.resolver.entry(shard_of(A), "")
        await world.reclaimer.discard(world.entry(A), 3)
        assert await world.get(A) == data


async def test_capacity_is_hard_under_writers(tmp_path: Path) -> None:
    """16 readers through room for 6 segments: at no moment does the disk hold more."""
    async with building(tmp_path / "c", segments=6) as world:
        names = [f"https://o/set/{number}.tar" for number in range(16)]
        for number, name in enumerate(names):
            world.origin.put(name, data_of(5 * SEGMENT + number, number))
        seen = 0
        done = asyncio.Event()

        async def look() -> None:
            nonlocal seen
            while not done.is_set():
                seen = max(seen, world.allocated())
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            looking = group.create_task(look())
            readings = [group.create_task(world.get(name)) for name in names for _ in range(2)]
            await asyncio.wait(readings)
            done.set()
            await looking
        for number, reading in enumerate(readings):
            assert reading.result() == data_of(5 * SEGMENT + number // 2, number // 2)
        assert 0 < seen <= 6 * SEGMENT


async def test_a_reader_keeps_what_it_is_about_to_read(tmp_path: Path) -> None:
    """Prefetch takes no room from the tail of a shard that somebody is inside."""
    async with building(tmp_path / "c", segments=8) as world:
        world.origin.put(A, data_of(7 * SEGMENT))
        world.origin.put(B, data_of(3 * SEGMENT, 1))
        await world.get(A, reader(7, job="earlier"))
        world.plans.replace(reader(), [shard_of(A), shard_of(B)])
        async with world.opened(A, reader()) as reading:
            await world.taken(reading, 10)
            entry, _ = await world.resolver.entry(shard_of(B), "job", need=2000.0)
            await world.quiet()
            for index in range(3):
                with suppress(CacheFull):
                    world.segment_fetches.ensure(entry, index, shard_of(B), need=2000.0, need_at=world.clock() + 100, reader=reader())
            await world.quiet()
            assert world.entry(A).segments.complete


@pytest.mark.parametrize("segments", [0, 1, 3, 8, 40])
async def test_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: int) -> None:
    """Origins that break, change and throttle, a disk that fails, readers that leave, evictions by hand: exact bytes or an error, always.

    In the end the books agree, and a last reader of each shard gets all of it.
    """
    chance = random.Random(segments)
    real_write, real_punch, real_allocate = file_io.append, file_io.punch, file_io.allocate

    def often(real: Any, odds: float) -> Any:
        def leaf(*args: Any) -> Any:
            if trouble and chance.random() < odds:
                raise OSError(errno.EIO, "trouble")
            return real(*args)

        return leaf

    trouble = True
    async with building(tmp_path / "c", segments=segments, retry_budget_s=2.0, prefetch=True) as world:
        disk_does(monkeypatch, append=often(real_write, 0.02), punch=often(real_punch, 0.05), allocate=often(real_allocate, 0.02))
        names = [f"https://o/set/{number}.tar" for number in range(5)]
        serial = dict.fromkeys(names, 0)
        states: dict[str, set[bytes]] = {name: set() for name in names}

        def change(name: str) -> None:
            serial[name] += 1
            data = data_of(chance.choice([10, SEGMENT, 3 * SEGMENT + 5]), serial[name] * 5 + names.index(name))
            states[name].add(data)
            ranged, identity = chance.random() < 0.7, chance.random() < 0.8
            remote = world.origin.put(name, data, etag=f'"v{serial[name]}"', ranged=ranged, identity=identity)
            remote.length_known = chance.random() < 0.8
            for _ in range(chance.randrange(3)):
                remote.fail(after=chance.choice([None, 100, 40_000]))
            if chance.random() < 0.2 and remote.version.length is not None:
                remote.cut(chance.randrange(1, 30_000))

        async def read(name: str, who: int, first: int, last: int | None, connection_rate: float) -> None:
            got = b""
            try:
                async with world.opened(shard_of(name), reader(who, job=f"job{who % 3}"), first, last) as reading:
                    async for chunk in reading.chunks():
                        got += bytes(chunk)
                        if chance.random() < connection_rate:
                            await asyncio.sleep(0.001)
            except ShardError:
                assert any(state[first:].startswith(got) for state in states[name]), (name, first, len(got))
                return
            wanted = {state[first : None if last is None else last + 1] for state in states[name]}
            assert got in wanted, (name, first, last, len(got))

        for name in names:
            change(name)
        world.plans.replace(reader(1, job="job1"), [shard_of(name) for name in names])
        world.prefetcher.wake()
        tasks: list[asyncio.Task[None]] = []
        for _ in range(150):
            name = chance.choice(names)
            first = chance.choice([0, 0, 0, 5, SEGMENT - 1])
            last = chance.choice([None, None, None, first + 10, SEGMENT + 3])
            tasks.append(asyncio.create_task(read(name, chance.randrange(9), first, last, chance.choice([0, 0.1, 0.5]))))
            action = chance.random()
            if action < 0.1:
                change(chance.choice(names))
            elif action < 0.2:
                chance.choice(tasks).cancel()
            elif action < 0.25:
                tasks.append(asyncio.create_task(world.reclaimer.work_off()))
            elif action < 0.3:
                await world.operations.evict(None if chance.random() < 0.5 else [names[0]])
            elif action < 0.4:
                world.clock.advance(11)
            for _ in range(chance.randrange(20)):
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            results = await asyncio.gather(*tasks, return_exceptions=True)
        wrong = [result for result in results if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError)]
        assert not wrong, wrong[0]
        trouble = False
        await world.quiet()
        world.clock.advance(100)
        for name in names:
            world.origin.put(name, data_of(3 * SEGMENT, 99), etag='"last"')
            assert await world.get(name, reader(job="last")) == data_of(3 * SEGMENT, 99)


async def test_a_shard_forgotten_between_its_opening_and_its_first_read(tmp_path: Path) -> None:
    """One entry a key, always: the reader's own comes back, or it takes the newer one."""
    async with building(tmp_path / "c", segments=0) as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data)
        async with world.cache.open(shard_of(A), None, None) as early:
            await world.quiet()
            async with world.cache.open(shard_of(A), None, None) as late:
                assert early.entry is late.entry
                for reading in (early, late):
                    await reading.begin(0, None)
                    assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data


async def test_not_found_is_told(tmp_path: Path) -> None:
    """404 stays 404."""
    async with building(tmp_path / "c") as world:
        with pytest.raises(ShardNotFound):
            await world.get(A)


async def test_what_left_under_a_lingering_fetch_is_fetched_again(tmp_path: Path) -> None:
    """All bytes came, the end of the body did not: the segment may leave meanwhile, and below the fetch's watermark are holes then."""
    async with building(tmp_path / "c") as world:
        data = data_of(SEGMENT)
        gate = world.origin.put(A, data).hold(SEGMENT)
        assert await world.get(A) == data
        await gate.reached.wait()
        assert await world.reclaimer.evict(world.entry(A)) > 0
        assert await world.get(A) == data
        gate.open()


async def test_what_leaves_under_its_reader_is_fetched_again(tmp_path: Path) -> None:
    """Found wrong between two of its chunks, while the fetch that brought it waits for the end of the body."""
    async with building(tmp_path / "c") as world:
        data = data_of(SEGMENT)
        gate = world.origin.put(A, data).hold(SEGMENT)
        async with world.opened(A) as reading:
            await gate.reached.wait()
            await world.reclaimer.discard(world.entry(A), 0)
            assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
        gate.open()
