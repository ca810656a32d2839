"""Making room: nobody keeps what leaves, nothing leaves that somebody holds, and what cannot leave is put back."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of, small_segments, until

from forebay_proxy import fileio, room
from forebay_proxy.errors import CacheFull, DiskFailed
from forebay_proxy.room import DISPLACED_PER_READER, STUCK_S

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
C = "https://o/set/c.tar"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


def failing(code: int, times: int = 10**9) -> Callable[..., Any]:
    """A leaf of the disk that fails the first ``times``, then does nothing."""
    left = [times]

    def leaf(*args: object) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(code, os.strerror(code))

    return leaf


async def stored(world: World, name: str, segments: int, seed: int = 0) -> bytes:
    """A shard that is here whole."""
    data = data_of(segments * SEGMENT, seed)
    world.origin.put(name, data)
    assert await world.get(name) == data
    await world.quiet()
    return data


async def test_who_was_opened_last_leaves_first(tmp_path: Path) -> None:
    """A set that does not fit keeps a fixed part; LRU would keep nothing of it."""
    async with building(tmp_path / "c", segments=4) as world:
        for name in (A, B, C):
            await stored(world, name, 2)
        assert {entry.name for entry in world.room.entries.values()} == {A, C}


async def test_the_tail_leaves_before_the_head(tmp_path: Path) -> None:
    """A partly evicted shard answers its first byte at once."""
    async with building(tmp_path / "c", segments=4) as world:
        await stored(world, A, 3)
        await stored(world, B, 2, 1)
        assert list(world.entry(A).segments.stored()) == [0, 1]


async def test_a_shard_without_range_leaves_whole(tmp_path: Path) -> None:
    """Part of it could not be completed."""
    async with building(tmp_path / "c", segments=4) as world:
        world.origin.put(A, data_of(3 * SEGMENT), ranged=False)
        await world.get(A)
        await stored(world, B, 2, 1)
        assert A not in world.openings.current


async def test_what_is_leased_never_leaves(tmp_path: Path) -> None:
    """There is no room then."""
    async with building(tmp_path / "c", segments=1) as world:
        await stored(world, A, 1)
        async with world.opened(A) as held:
            await world.taken(held, 10)
            with pytest.raises(CacheFull):
                world.room.reserve(SEGMENT)


async def test_nobody_finds_what_is_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken out of use when it is decided, and written again only once it is gone."""
    async with building(tmp_path / "c") as world:
        data, entry, gate = await stored(world, A, 2), world.entry(A), asyncio.Event()
        real = world.store.claims.committed

        async def committed() -> None:
            await gate.wait()
            await real()

        monkeypatch.setattr(world.store.claims, "committed", committed)
        leaving = asyncio.create_task(world.room.discard(entry, 1))
        await asyncio.sleep(0)
        assert not entry.segments.has(1)
        again = asyncio.create_task(world.get(A))
        await asyncio.sleep(0.01)
        assert not again.done()
        gate.set()
        assert await again == data
        await leaving


async def test_a_claim_is_withdrawn_before_its_bytes_are_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in between loses bytes, and never leaves a claim without them."""
    order: list[str] = []
    async with building(tmp_path / "c", segments=2) as world:
        await stored(world, A, 2)
        commit, punch = world.store._index.commit, fileio.punch

        def noted_commit(changes: Any) -> None:
            order.append("commit")
            commit(changes)

        def noted_punch(*args: Any) -> None:
            order.append("punch")
            punch(*args)

        monkeypatch.setattr(world.store._index, "commit", noted_commit)
        monkeypatch.setattr(fileio, "punch", noted_punch)
        grant = world.room.reserve(SEGMENT)
        await world.room.clear(grant)
        world.ledger.release(grant)
    assert order[:2] == ["commit", "punch"]


async def test_what_cannot_be_removed_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, verified before it is read, left alone for a while, and then offered again."""
    async with building(tmp_path / "c", segments=2) as world:
        data = await stored(world, A, 2)
        with monkeypatch.context() as patch:
            patch.setattr(fileio, "punch", failing(errno.EIO))
            with pytest.raises(CacheFull):
                await world.room.clear(world.room.reserve(SEGMENT))
        entry = world.entry(A)
        assert (entry.segments.has(1), entry.segments.unverified) == (True, {1})
        with pytest.raises(CacheFull):
            world.room.reserve(SEGMENT)
        assert await world.get(A) == data
        assert not entry.segments.unverified
        world.clock.advance(STUCK_S)
        grant = world.room.reserve(SEGMENT)
        await world.room.clear(grant)
        world.ledger.release(grant)
        assert len(world.origin.asked(A)) == 2


async def test_an_index_that_cannot_be_written_lets_nothing_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is stuck, nothing is lost, and all bytes come."""
    async with building(tmp_path / "c", segments=2) as world:
        data, other = await stored(world, A, 2), data_of(2 * SEGMENT, 1)
        world.origin.put(B, other)
        with monkeypatch.context() as patch:

            async def commit(changes: object) -> None:
                raise DiskFailed("index commit", "ENOSPC", "full")

            patch.setattr(world.store.claims, "_commit", commit)
            assert await world.get(B) == other
            await until(lambda: not world.entry(A).leaving)
            assert world.entry(A).segments.complete
        assert await world.get(A) == data


async def test_an_unfinished_segment_that_cannot_be_freed_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted as long as it is there, and found wrong when it is wanted."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data).fail(after=30_000)
        world.origin.put(B, data_of(10))
        async with world.opened(A) as inside:
            with monkeypatch.context() as patch:
                patch.setattr(fileio, "punch", failing(errno.EIO))
                patch.setattr(fileio, "unlink", failing(errno.EIO))
                with pytest.raises(Exception, match="reset"):
                    async for _ in inside.chunks():
                        pass
                await world.quiet()
            assert 0 in world.entry(A).segments.unverified
        assert await world.get(A) == data
        assert not world.entry(A).segments.unverified


async def test_a_file_somebody_deleted_is_fetched_again(tmp_path: Path) -> None:
    """Whether it was open or not: no hole is read, no error is told."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 3)
        entry = world.entry(A)
        path = world.shard_file(A)
        assert entry.file is not None
        file, entry.file = entry.file, None
        await file.aclose()
        path.unlink()
        assert await asyncio.gather(*(world.get(A) for _ in range(5))) == [data] * 5
        world.clock.advance(60)
        assert await world.get(A) == data
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_prefetch_displaces_at_most_two_a_reader(tmp_path: Path) -> None:
    """And only what is needed later than what it fetches; reading them makes room for two more."""
    async with building(tmp_path / "c", segments=4) as world:
        await stored(world, A, 4)
        late, near = reader(1), reader(2)
        world.plans.replace(near, [shard_of(B)])
        world.plans.replace(late, [shard_of(C), shard_of(A)])
        now = world.clock()
        for number in range(DISPLACED_PER_READER):
            grant = world.room.reserve_ahead(SEGMENT, now, near)
            assert world.room.displacing(grant)
            world.room.note_displacer(world.entry(A), 100 + number, near)
            await world.room.clear(grant)
            world.ledger.release(grant)
            taken = world.room.ledger.reserve(SEGMENT, list)  # somebody else had that room
            world.ledger.commit(taken)
        with pytest.raises(CacheFull):
            world.room.reserve_ahead(SEGMENT, now, near)
        world.room.settle_displacer(world.entry(A), 100)
        world.room.settle_displacer(world.entry(A), 100)
        world.room.settle_displacer(world.entry(A), 101)
        assert not world.room._displaced
        with pytest.raises(CacheFull):
            world.room.reserve_ahead(SEGMENT, now + 10**6, near)
        world.ledger.doom(2 * SEGMENT)
        world.ledger.gone(2 * SEGMENT)


async def test_a_displacement_that_fails_is_not_counted_for_ever(tmp_path: Path) -> None:
    """The flight failed: its reader may displace again."""
    async with building(tmp_path / "c", segments=5, retry_budget_s=0.0) as world:
        await stored(world, A, 4)
        world.origin.put(B, data_of(3 * SEGMENT, 1))
        world.plans.replace(reader(2), [shard_of(B)])
        world.plans.replace(reader(1), [shard_of(C), shard_of(A)])
        entry, _ = await world.openings.entry(shard_of(B), "job", need=2000.0)
        await world.quiet()
        world.origin.remotes[B].fail(times=10)
        assert world.cache.ensure(entry, 1, shard_of(B), need=2000.0, need_at=world.clock(), reader=reader(2)) is not None
        assert world.room._displaced
        await world.quiet()
        assert not world.room._displaced


async def test_a_shrunk_capacity_is_worked_off_segment_by_segment(tmp_path: Path) -> None:
    """No more leaves than must."""
    async with building(tmp_path / "c", segments=8) as world:
        await stored(world, A, 6)
        world.ledger.capacity_bytes = 4 * SEGMENT
        await world.room.work_off()
        assert list(world.entry(A).segments.stored()) == [0, 1, 2, 3]


async def test_working_off_ends_when_nothing_can_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leased, or the disk says no."""
    async with building(tmp_path / "c", segments=8) as world:
        await stored(world, A, 2)
        world.ledger.capacity_bytes = 0
        with monkeypatch.context() as patch:
            patch.setattr(fileio, "punch", failing(errno.EIO))
            patch.setattr(fileio, "unlink", failing(errno.EIO))
            async with asyncio.timeout(5):
                await world.room.work_off()
        assert world.entry(A).segments.stored_count == 2


async def test_idle_files_are_closed_beyond_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unused first; they open again when wanted."""
    monkeypatch.setattr(room, "OPEN_FILES", 2)
    async with building(tmp_path / "c") as world:
        data = [await stored(world, name, 1, seed) for seed, name in enumerate((A, B, C))]
        await world.room.close_idle()
        assert [world.entry(name).file is None for name in (A, B, C)] == [True, False, False]
        assert await world.get(A) == data[0]
        await world.house.evict(None)
        await world.room.close_idle()


@pytest.mark.parametrize("step", ["commit", "punch"])
async def test_an_eviction_whose_caller_is_cancelled_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A client that hangs up leaves nothing half-removed."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 3)
        reached, gate = asyncio.Event(), asyncio.Event()
        target: Any = world.store.claims if step == "commit" else world.room
        name = "committed" if step == "commit" else "_remove"
        real = getattr(target, name)

        async def held(*args: Any) -> Any:
            reached.set()
            await gate.wait()
            return await real(*args)

        monkeypatch.setattr(target, name, held)
        task = asyncio.create_task(world.house.evict(None))
        await reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (world.ledger.doomed_bytes, world.ledger.stored_bytes) == (0, 0)
        monkeypatch.undo()
        small_segments(monkeypatch)
        assert await world.get(A) == data


@pytest.mark.parametrize("step", ["_remove", "_allocate", "open_file"])
async def test_a_flight_cancelled_while_it_prepares_gives_all_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Shutdown in the middle of making room."""
    async with building(tmp_path / "c", segments=2) as world:
        await stored(world, A, 2)
        world.origin.put(B, data_of(2 * SEGMENT, 1))
        await world.openings.entry(shard_of(B), "", head=True)
        reached, gate = asyncio.Event(), asyncio.Event()
        real = getattr(world.room, step)

        async def held(*args: Any) -> Any:
            if step != "_allocate":
                reached.set()
                await gate.wait()
                return await real(*args)
            result = await real(*args)  # allocated, and then cancelled
            reached.set()
            await gate.wait()
            return result

        monkeypatch.setattr(world.room, step, held)
        reading = asyncio.create_task(world.get(B))
        await reached.wait()
        world.flights.cancel()
        world.openings.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(Exception, match="shutting down"):
            await reading


async def test_a_flight_cancelled_while_it_waits_for_a_segment_to_leave(tmp_path: Path) -> None:
    """Its own victims come back or go, but are not forgotten."""
    async with building(tmp_path / "c", segments=3) as world:
        await stored(world, A, 3)
        grant = world.room.reserve(SEGMENT)
        entry = world.entry(A)
        reading = asyncio.create_task(world.get(A, first=2 * SEGMENT, last=3 * SEGMENT - 1))
        await until(lambda: world.flights.find(entry.key, 2))
        await asyncio.sleep(0)
        world.flights.cancel()
        with pytest.raises(Exception, match="shutting down"):
            await reading
        await world.room.clear(grant)
        world.ledger.release(grant)
