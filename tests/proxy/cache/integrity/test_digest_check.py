"""The end of a shard is given out when the whole of it has the digest its origin names, or when nothing can be compared."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import zlib
from pathlib import Path

import pytest
from support.fake_origin import FakeOrigin, Remote
from support.house import SEGMENT, World, building, data_of, failing, reader, shard_of, until
from support.seams import Gate, disk_does, held_in_thread, held_up

from forebay_proxy.cache.resident.digest_state import DigestVerdict
from forebay_proxy.core import digests as digest_module
from forebay_proxy.core.digests import Digest, hasher_of
from forebay_proxy.core.errors import DigestDiffers, ShardNotFound
from forebay_proxy.core.facts.cache import DigestChecked, IntegrityFailed, SegmentVerified
from forebay_proxy.core.shard import Pin, Shard
from forebay_proxy.store.files import file_io

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"


def sha256(data: bytes) -> tuple[Digest, ...]:
    return (Digest("sha-256", hashlib.sha256(data).digest()),)


def put(world: World, data: bytes, name: str = A, **how: object) -> Remote:
    """A shard whose origin names its SHA-256."""
    return world.origin.put(name, data, digests=sha256(data), **how)


def results(world: World) -> list[str]:
    return [fact.result for fact in world.of(DigestChecked)]


@pytest.mark.parametrize("algorithm", digest_module.ALGORITHMS)
@pytest.mark.parametrize("segments", [1, 5])
async def test_a_shard_with_its_digest_is_served(tmp_path: Path, algorithm: str, segments: int) -> None:
    """Every algorithm, shards of one and of several segments: the bytes come, the check is counted."""
    async with building(tmp_path / "c") as world:
        data = data_of(segments * SEGMENT - 7)
        hasher = hasher_of(algorithm)
        hasher.update(data)
        world.origin.put(A, data, digests=(Digest(algorithm, hasher.digest()),))
        assert await world.get(A) == data
        assert results(world) == ["agrees"]


async def test_without_a_digest_nothing_is_held_or_counted(tmp_path: Path) -> None:
    """Most origins name none."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data := data_of(3 * SEGMENT))
        assert await world.get(A) == data
        assert world.entry(A).trust.digest_state is None
        assert not results(world)


async def test_what_cannot_be_computed_is_counted_and_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without awscrt there is no CRC-32C, and no loop of Python in its place."""
    monkeypatch.setattr(digest_module, "find_spec", lambda name: None)
    digest_module._maker.cache_clear()
    try:
        async with building(tmp_path / "c") as world:
            data = data_of(3 * SEGMENT)
            world.origin.put(A, data, digests=(Digest("crc32c", b"1234"),))
            assert await world.get(A) == data
            assert [(fact.algorithm, fact.result) for fact in world.of(DigestChecked)] == [("crc32c", "unchecked")]
    finally:
        digest_module._maker.cache_clear()


async def test_what_is_completed_later_is_compared_all_the_same(tmp_path: Path) -> None:
    """The end was given out unchecked; then the rest came."""
    async with building(tmp_path / "c") as world:
        put(world, data := data_of(4 * SEGMENT))
        await world.get(A, first=3 * SEGMENT)
        assert await world.get(A) == data
        await world.quiet()
        assert results(world) == ["unchecked", "agrees"]


async def test_a_corruption_on_the_way_heals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A reader that was given no byte yet gets the second fetch, and never learns of the first."""
    async with building(tmp_path / "c") as world:
        data = data_of(SEGMENT - 100)
        put(world, data).flip(1000)
        with caplog.at_level(logging.ERROR):
            assert await asyncio.gather(*(world.get(A, reader(n)) for n in range(3))) == [data] * 3
        assert results(world) == ["differs", "agrees"]
        assert world.origin.sent(A) == 2 * len(data)
        assert [fact.stage for fact in world.of(IntegrityFailed)] == ["origin"]
        assert len(caplog.records) == 1


async def test_a_reader_inside_is_cut_off(tmp_path: Path) -> None:
    """Bytes it was given may be wrong: the error names the algorithm and both digests, and its ETag is good for nothing more."""
    async with building(tmp_path / "c") as world:
        data = data_of(4 * SEGMENT)
        put(world, data).flip(SEGMENT + 3)
        wrong = bytearray(data)
        wrong[SEGMENT + 3] ^= 0x40
        async with world.opened(A) as reading:
            etag = reading.entry.shown_version.etag(reading.entry.shown_key)
            with pytest.raises(DigestDiffers) as raised:
                async for _ in reading.chunks():
                    pass
            assert reading.position == 3 * SEGMENT
        for words in ("sha-256", hashlib.sha256(data).hexdigest(), hashlib.sha256(wrong).hexdigest()):
            assert words in str(raised.value)
        assert raised.value.retryable
        async with world.opened(A) as again:
            assert again.entry.shown_version.etag(again.entry.shown_key) != etag
            assert b"".join([bytes(chunk) async for chunk in again.chunks()]) == data
        await world.quiet()
        assert [entry.segments.complete for entry in world.room.entries.values()] == [True]


async def test_everybody_inside_is_cut_off(tmp_path: Path) -> None:
    """Also who is far from the end."""
    async with building(tmp_path / "c") as world:
        put(world, data_of(4 * SEGMENT)).flip(5)
        async with world.opened(A, reader(1)) as slow:
            world.buffers.readers.holders = 10_000
            await world.taken(slow, 10)
            world.buffers.readers.holders = 2
            with pytest.raises(DigestDiffers):
                await world.taken(await _begun(world, slow), 4 * SEGMENT)
            with pytest.raises(DigestDiffers):
                async for _ in slow.chunks():
                    pass


async def _begun(world: World, beside: object) -> object:
    async with world.opened(A, reader(2)) as reading:
        async for _ in reading.chunks():
            pass
    return beside


async def test_the_second_time_is_an_error(tmp_path: Path) -> None:
    """It says what to do, is remembered for a while, and asked again after that."""
    async with building(tmp_path / "c") as world:
        data = data_of(SEGMENT)
        put(world, data).flip(7, times=3)
        with pytest.raises(DigestDiffers, match="sha-256") as raised:
            await world.get(A)
        assert raised.value.status == 502
        assert not raised.value.retryable
        assert "--no-origin-digests" in raised.value.next_step
        asked = len(world.origin.log)
        assert asked == 2
        with pytest.raises(DigestDiffers):
            await world.get(A)
        assert len(world.origin.log) == asked
        world.clock.advance(31)
        with pytest.raises(DigestDiffers):
            await world.get(A)
        world.clock.advance(31)
        assert await world.get(A) == data
        assert results(world) == ["differs"] * 3 + ["agrees"]


async def test_a_wrong_digest_never_gives_a_clean_end(tmp_path: Path) -> None:
    """Several segments, no Range, no length: whatever the origin is like."""
    for number, how in enumerate([{}, {"ranged": False}, {"ranged": False, "length_known": False}, {"identity": False}]):
        async with building(tmp_path / f"c{number}") as world:
            data = data_of(3 * SEGMENT + 9)
            world.origin.put(A, data, digests=sha256(b"other"), **how)
            for _ in range(2):
                with pytest.raises(DigestDiffers):
                    await world.get(A)
            await world.quiet()
            assert not world.ledger.stored_bytes


@pytest.mark.parametrize("known", [True, False])
async def test_what_comes_in_one_body_is_compared_too(tmp_path: Path, known: bool) -> None:
    """An origin without Range: once where it tells a length, and is stored; else each body."""
    async with building(tmp_path / "c") as world:
        put(world, data := data_of(3 * SEGMENT + 9), ranged=False, length_known=known)
        assert await asyncio.gather(*(world.get(A, reader(n)) for n in range(3))) == [data] * 3
        await world.quiet()
        assert results(world) == ["agrees"] * (1 if known else 3)


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay_proxy.cache.integrity.digest_check.AT_ONCE", 1)


@pytest.mark.usefixtures("one_at_a_time")
async def test_another_shards_hashing_does_not_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one place to hash in, the shard at whose end somebody waits is next, however many were there before."""
    order: list[str] = []
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        put(world, data, B)
        remote = put(world, data, A)
        look = world.segment_reader.verify

        async def noted(entry, index, why, **how):  # type: ignore[no-untyped-def]
            order.append(entry.name)
            if len(order) == 1:
                await held.passed()
            return await look(entry, index, why, **how)

        held = Gate()
        monkeypatch.setattr(world.segment_reader, "verify", noted)
        async with asyncio.TaskGroup() as group:
            group.create_task(world.get(B, reader(1), last=2 * SEGMENT - 1))
            await held.reached.wait()
            group.create_task(world.get(A, reader(2)))
            await until(lambda: A in world.resolver.versions.current and remote)
            await until(lambda: world.entry(A).trust.digest_state and world.entry(A).trust.digest_state.waiting)  # type: ignore[union-attr]
            await until(lambda: world.entry(B).segments.has(1) and not len(world.fetches))
            held.open()
        await world.quiet()
    assert order[:4] == [B, A, A, A]


async def test_a_segment_that_comes_again_must_be_the_same(tmp_path: Path) -> None:
    """It was compared, evicted, and fetched anew with other bytes: the version ends."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = put(world, data)
        assert await world.get(A) == data
        await world.reclaimer.discard(world.entry(A), 2)
        remote.flip(2 * SEGMENT + 1)
        with pytest.raises(DigestDiffers, match="segment 2"):
            await world.get(A)
        assert await world.get(A) == data


async def test_an_end_that_comes_again_is_compared_without_reading_the_rest(tmp_path: Path) -> None:
    """Its checksum is that of the first time: nothing is hashed anew."""
    async with building(tmp_path / "c") as world:
        put(world, data := data_of(3 * SEGMENT))
        assert await world.get(A) == data
        await world.reclaimer.discard(world.entry(A), 2)
        verified = len(world.of(SegmentVerified))
        assert await world.get(A) == data
        await world.quiet()
        assert len(world.of(SegmentVerified)) == verified
        assert results(world) == ["agrees"]


async def test_a_rotten_disk_is_not_the_origins_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that changed between landing and hashing: that segment leaves, the origin is not blamed, the reader is cut off."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = put(world, data)
        gate = remote.hold(2 * SEGMENT)
        real, spoilt = file_io.digest, []

        def rotten(fd: int, offset: int, length: int, *how: object) -> int:
            if offset == SEGMENT and not spoilt:
                spoilt.append(offset)
                return 1
            return real(fd, offset, length, *how)  # type: ignore[arg-type]

        disk_does(monkeypatch, digest=rotten)
        whole = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        await until(lambda: spoilt)
        gate.open()
        await asyncio.wait([whole])
        assert "differs" not in results(world)
        assert [fact.stage for fact in world.of(IntegrityFailed)] == ["read"]
        assert await world.get(A) == data


async def test_what_is_being_hashed_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else of it may: a hole under the hasher would be taken for the origin's fault."""
    async with building(tmp_path / "c") as world:
        put(world, data := data_of(3 * SEGMENT))
        gate = held_in_thread(monkeypatch, file_io, "digest")
        await world.get(A, last=2 * SEGMENT - 1)
        await until(gate.reached.is_set)
        await world.reclaimer.evict(world.entry(A))
        assert [world.entry(A).segments.has(index) for index in range(2)] == [True, False]
        gate.open()
        await world.quiet()
        assert await world.get(A) == data
        assert results(world) == ["agrees"]


async def test_the_index_claims_no_end_before_the_verdict(tmp_path: Path) -> None:
    """A kill in between: the next process fetches the last segment again."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = put(world, data)
        gate = remote.hold(SEGMENT // 2)
        reading = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        entry = world.entry(A)
        await until(lambda: world.entry(A).segments.has(1))
        await world.get(A, reader(3), first=SEGMENT, last=SEGMENT + 1)
        end = asyncio.create_task(world.get(A, reader(2), first=2 * SEGMENT))
        await until(lambda: entry.segments.has(2))
        assert list(entry.row("boot").sums) == [1]
        gate.open()
        await asyncio.gather(reading, end)
        assert list(entry.row("boot").sums) == [0, 1, 2]


async def test_a_shard_of_one_segment_is_not_claimed_before_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing of it to claim."""
    async with building(tmp_path / "c") as world:
        put(world, data := data_of(SEGMENT))
        held = held_up(monkeypatch, world.segment_reader, "verify")
        reading = asyncio.create_task(world.get(A))
        await held.reached.wait()
        assert world.entry(A).segments.complete
        assert not world.entry(A).durable
        held.open()
        assert await reading == data
        assert world.entry(A).stored.claimed


@pytest.mark.usefixtures("one_at_a_time")
async def test_shutdown_does_not_hash_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs ends; what waits is left."""
    async with building(tmp_path / "c") as world:
        put(world, data_of(8 * SEGMENT))
        held = held_up(monkeypatch, world.segment_reader, "verify")
        await world.get(A, last=7 * SEGMENT - 1)
        await held.reached.wait()
        world.digest_check.stop()
        held.open()
        await world.quiet()
        assert held.calls == 1


async def test_prefetched_shards_are_compared_before_anybody_comes(tmp_path: Path) -> None:
    """A reader of a prefetched shard finds its end open."""
    async with building(tmp_path / "c", prefetch=True) as world:
        put(world, data := data_of(3 * SEGMENT))
        world.plans.replace(reader(), [shard_of(A)])
        world.prefetcher.wake()
        await until(lambda: results(world) == ["agrees"])
        async with world.opened(A, reader()) as reading:
            assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
            assert reading.waited_s == 0


def test_crc32_is_zlibs() -> None:
    """Big-endian, as origins write it."""
    hasher = hasher_of("crc32")
    hasher.update(b"123456789")
    assert hasher.digest() == zlib.crc32(b"123456789").to_bytes(4, "big")


@pytest.mark.parametrize(("named_from", "asked"), [(99, 4), (3, 7)])
async def test_an_origin_without_digests_is_asked_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_from: int, asked: int
) -> None:
    """Four answers in a row without one, and no more questions; one with a digest begins the row anew."""
    questions, data, origin = list[str](), data_of(SEGMENT), FakeOrigin()

    async def digests(shard: Shard, pin: Pin) -> tuple[Digest, ...]:
        questions.append(shard.name)
        return sha256(data) if len(questions) == named_from else ()

    monkeypatch.setattr(origin, "digests", digests, raising=False)
    async with building(tmp_path / "c", origin=origin) as world:
        for number in range(8):
            name = f"https://o/set/{number}.tar"
            world.origin.put(name, data)
            assert await world.get(name) == data
        assert len(questions) == asked


async def test_the_last_segment_waits_for_the_verdict(tmp_path: Path) -> None:
    """All of it has landed but the first segment: a reader of the end waits, and goes on once that has come."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = put(world, data)
        gate = remote.hold(SEGMENT // 2)
        async with asyncio.TaskGroup() as group:
            whole = group.create_task(world.get(A, reader(1)))
            await gate.reached.wait()
            end = group.create_task(world.get(A, reader(2), first=2 * SEGMENT))
            middle = await world.get(A, reader(3), first=SEGMENT, last=2 * SEGMENT - 1)
            await until(lambda: world.entry(A).segments.has(2))
            assert middle == data[SEGMENT : 2 * SEGMENT]
            assert world.entry(A).trust.digest_state.waiting == 1  # type: ignore[union-attr]
            assert not end.done()
            gate.open()
        assert (whole.result(), end.result()) == (data, data[2 * SEGMENT :])
        assert results(world) == ["agrees"]


async def test_a_range_at_the_end_alone_does_not_wait(tmp_path: Path) -> None:
    """Nobody asked for the rest, so there is nothing to compare: released, and counted once."""
    async with building(tmp_path / "c") as world:
        put(world, data := data_of(4 * SEGMENT))
        assert await world.get(A, first=3 * SEGMENT + 5) == data[3 * SEGMENT + 5 :]
        assert await world.get(A, first=3 * SEGMENT + 5) == data[3 * SEGMENT + 5 :]
        assert results(world) == ["unchecked"]


async def test_without_room_the_end_is_released(tmp_path: Path) -> None:
    """What passes through memory cannot be read back: served, counted."""
    async with building(tmp_path / "c", segments=0) as world:
        put(world, data := data_of(4 * SEGMENT))
        assert await asyncio.gather(*(world.get(A, reader(n)) for n in range(3))) == [data] * 3
        await world.quiet()
        assert results(world) == ["unchecked"]


@pytest.mark.parametrize("ranged", [True, False])
async def test_a_cache_smaller_than_the_shard_stops_nobody(tmp_path: Path, ranged: bool) -> None:
    """Segments leave before their turn, or pass by: nobody waits for what nobody brings."""
    async with building(tmp_path / "c", segments=3) as world:
        put(world, data := data_of(9 * SEGMENT), ranged=ranged)
        assert await world.get(A) == data
        assert await asyncio.gather(world.get(A, reader(1)), world.get(A, reader(2), first=8 * SEGMENT)) == [data, data[8 * SEGMENT :]]


async def test_a_flight_that_fails_releases_who_waits_for_it(tmp_path: Path) -> None:
    """The reader of the end waited for a segment that will not come."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = put(world, data)
        await world.get(A, first=SEGMENT, last=SEGMENT)
        gate = remote.hold(SEGMENT // 2)
        remote.fail(lambda name: ShardNotFound(name, "gone"), after=SEGMENT // 2)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(_fails(world, last=SEGMENT - 1))
            await gate.reached.wait()
            end = group.create_task(world.get(A, reader(2), first=2 * SEGMENT))
            await until(lambda: world.entry(A).trust.digest_state.waiting)  # type: ignore[union-attr]
            gate.open()
            await first
        assert end.result() == data[2 * SEGMENT :]


async def _fails(world: World, last: int) -> None:
    with pytest.raises(ShardNotFound):
        await world.get(A, reader(1), last=last)


async def test_a_disk_that_does_not_answer_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read back cannot be compared: released, counted, and not blamed on the origin."""
    async with building(tmp_path / "c") as world:
        put(world, data := data_of(3 * SEGMENT))
        disk_does(monkeypatch, digest=failing(errno.ETIMEDOUT))
        assert await world.get(A) == data
        assert results(world) == ["unchecked"]


async def test_who_leaves_the_gate_leaves_nothing(tmp_path: Path) -> None:
    """Cancelled while held: no lease, no waiter; the verdict comes all the same."""
    async with building(tmp_path / "c") as world:
        remote = put(world, data_of(3 * SEGMENT))
        gate = remote.hold(SEGMENT // 2)
        whole = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        end = asyncio.create_task(world.get(A, reader(2), first=2 * SEGMENT))
        await until(lambda: world.entry(A).trust.digest_state.waiting)  # type: ignore[union-attr]
        end.cancel()
        await asyncio.wait([end])
        digest_state = world.entry(A).trust.digest_state
        assert digest_state is not None
        assert (digest_state.waiting, len(digest_state.changed)) == (0, 0)
        gate.open()
        await whole
        assert digest_state.verdict is DigestVerdict.AGREES


async def test_a_known_segment_that_never_lands_is_compared_by_its_reader(tmp_path: Path) -> None:
    """It comes a second time with other bytes, through memory only: its end is given to nobody."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        remote = put(world, data)
        assert await world.get(A) == data
        await until(lambda: results(world) == ["agrees"])
        entry = world.entry(A)
        await world.reclaimer.discard(entry, 1)
        remote.flip(SEGMENT + 10)
        world.cache.disk.state = "down"
        with pytest.raises(DigestDiffers):
            await world.get(A, first=SEGMENT)
        world.cache.disk.state = "normal"
        world.clock.advance(60)
        assert await world.get(A) == data


@pytest.mark.parametrize("index", range(3))
async def test_a_known_segment_that_comes_again_through_memory_is_read(tmp_path: Path, index: int) -> None:
    """The same bytes: whole, from its middle, and to its middle."""
    async with building(tmp_path / "c") as world:
        data = data_of(3 * SEGMENT)
        put(world, data)
        assert await world.get(A) == data
        await until(lambda: results(world) == ["agrees"])
        await world.reclaimer.discard(world.entry(A), index)
        world.cache.disk.state = "down"
        for first, last in ((0, None), (index * SEGMENT, None), (index * SEGMENT + 5, None), (0, index * SEGMENT + 5)):
            end = None if last is None else last + 1
            assert await world.get(A, first=first, last=last) == data[first:end]
        assert results(world) == ["agrees"]
