"""Who reads the end of a shard waits for what can still be compared, and for nothing else."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from pathlib import Path

import pytest
from support.fake_origin import Remote
from support.house import SEGMENT, World, building, data_of, reader, until
from support.seams import disk_does

from forebay_proxy.cache.resident.digest_state import DigestVerdict
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import DigestDiffers, ShardNotFound
from forebay_proxy.core.facts.cache import DigestChecked

A = "https://o/set/a.tar"


def sha256(data: bytes) -> tuple[Digest, ...]:
    return (Digest("sha-256", hashlib.sha256(data).digest()),)


def put(world: World, data: bytes, name: str = A, **how: object) -> Remote:
    """A shard whose origin names its SHA-256."""
    return world.origin.put(name, data, digests=sha256(data), **how)


def results(world: World) -> list[str]:
    return [fact.result for fact in world.of(DigestChecked)]


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

    def hangs(*args: object) -> int:
        raise OSError(errno.ETIMEDOUT, "timed out")

    async with building(tmp_path / "c") as world:
        put(world, data := data_of(3 * SEGMENT))
        disk_does(monkeypatch, digest=hangs)
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
