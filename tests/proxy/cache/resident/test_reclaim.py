"""Making room: nobody keeps what leaves, and what cannot leave is put back."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from support.crashing import copy_tree
from support.fake_origin import FakeOrigin
from support.house import SEGMENT, building, data_of, failing, shard_of, stored, until
from support.seams import disk_does, held_up, refuses

from forebay_proxy.cache.resident.space import STUCK_S
from forebay_proxy.core.errors import CacheFull, DiskFailed, ForebayError
from forebay_proxy.store.files import file_io

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"


async def test_nobody_finds_what_is_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken out of use when it is decided, and written again only once it is gone."""
    async with building(tmp_path / "c") as world:
        data, entry = await stored(world, A, 2), world.entry(A)
        gate = held_up(monkeypatch, world.store.index_writer, "committed")
        leaving = asyncio.create_task(world.reclaimer.discard(entry, 1))
        await asyncio.sleep(0)
        assert not entry.segments.has(1)
        again = asyncio.create_task(world.get(A))
        await asyncio.sleep(0.01)
        assert not again.done()
        gate.open()
        assert await again == data
        await leaving


async def test_a_claim_is_withdrawn_before_its_bytes_are_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in between loses bytes, and never leaves a claim without them."""
    order: list[str] = []
    async with building(tmp_path / "c", segments=2) as world:
        await stored(world, A, 2)
        await world.store.index_writer.committed()  # of what was claimed: else that comes between
        commit, punch = world.store._index.commit, file_io.punch

        def noted_commit(changes: Any) -> None:
            order.append("commit")
            commit(changes)

        def noted_punch(*args: Any) -> None:
            order.append("punch")
            punch(*args)

        monkeypatch.setattr(world.store._index, "commit", noted_commit)
        disk_does(monkeypatch, punch=noted_punch)
        grant = world.room.reserve(SEGMENT)
        await world.reclaimer.clear(grant)
        world.ledger.release(grant)
    assert order[:2] == ["commit", "punch"]


async def test_what_cannot_be_removed_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, verified before it is read, left alone for a while, and then offered again."""
    async with building(tmp_path / "c", segments=2) as world:
        data = await stored(world, A, 2)
        with monkeypatch.context() as patch:
            disk_does(patch, punch=failing(errno.EIO))
            with pytest.raises(CacheFull):
                await world.reclaimer.clear(world.room.reserve(SEGMENT))
        entry = world.entry(A)
        assert (entry.segments.has(1), entry.segments.unverified) == (True, {1})
        with pytest.raises(CacheFull):
            world.room.reserve(SEGMENT)
        assert await world.get(A) == data
        assert not entry.segments.unverified
        world.clock.advance(STUCK_S)
        grant = world.room.reserve(SEGMENT)
        await world.reclaimer.clear(grant)
        world.ledger.release(grant)
        assert len(world.origin.asked(A)) == 2


async def test_an_index_that_cannot_be_written_lets_nothing_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is stuck, nothing is lost, and all bytes come."""
    async with building(tmp_path / "c", segments=2) as world:
        data, other = await stored(world, A, 2), data_of(2 * SEGMENT, 1)
        world.origin.put(B, other)
        with monkeypatch.context() as patch:
            refuses(patch, world.store.index_writer, DiskFailed("index commit", "ENOSPC", "full"), "_commit")
            assert await world.get(B) == other
            await until(lambda: not world.entry(A).in_use.leaving)
            assert world.entry(A).segments.complete
        assert await world.get(A) == data


async def test_a_fault_of_ours_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What was given up, and could not be freed for no known reason, is waited for by nobody; its bytes stay counted."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        data = data_of(SEGMENT)
        world.origin.put(A, data).fail(after=30_000)
        with monkeypatch.context() as patch:
            refuses(patch, world.reclaimer, ZeroDivisionError(), "_free")
            with pytest.raises(ForebayError):
                await world.get(A)
            await world.quiet()
        assert all(not entry.in_use.leaving for entry in world.room.entries.values())
        assert world.ledger.stored_bytes == SEGMENT
        assert "for no reason that is known" in caplog.text
        async with asyncio.timeout(60):
            assert await world.get(A) == data


async def test_an_unfinished_segment_that_cannot_be_freed_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted as long as it is there, and found wrong when it is wanted."""
    async with building(tmp_path / "c", retry_budget_s=0.0) as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data).fail(after=30_000)
        world.origin.put(B, data_of(10))
        async with world.opened(A) as inside:
            with monkeypatch.context() as patch:
                disk_does(patch, punch=failing(errno.EIO), unlink=failing(errno.EIO))
                with pytest.raises(Exception, match="reset"):
                    async for _ in inside.chunks():
                        pass
                await world.quiet()
            assert 0 in world.entry(A).segments.unverified
        assert await world.get(A) == data
        assert not world.entry(A).segments.unverified


async def test_a_shrunk_capacity_is_worked_off_segment_by_segment(tmp_path: Path) -> None:
    """No more leaves than must."""
    async with building(tmp_path / "c", segments=8) as world:
        await stored(world, A, 6)
        world.ledger.capacity_bytes = 4 * SEGMENT
        await world.reclaimer.work_off()
        assert list(world.entry(A).segments.stored()) == [0, 1, 2, 3]


async def test_working_off_ends_when_nothing_can_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leased, or the disk says no."""
    async with building(tmp_path / "c", segments=8) as world:
        await stored(world, A, 2)
        world.ledger.capacity_bytes = 0
        with monkeypatch.context() as patch:
            disk_does(patch, punch=failing(errno.EIO), unlink=failing(errno.EIO))
            async with asyncio.timeout(60):
                await world.reclaimer.work_off()
        assert world.entry(A).segments.stored_count == 2


async def test_a_disk_that_others_filled_is_left_without_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has no block for it: whole shards lose their files, and no next life believes the rows that still claim them."""
    origin = FakeOrigin()
    async with building(tmp_path / "c", segments=8, origin=origin) as world:
        data = {name: await stored(world, name, 3, seed) for seed, name in enumerate((A, B))}
        await world.store.index_writer.committed()
        world.ledger.capacity_bytes = 4 * SEGMENT
        full = DiskFailed("index commit", "EIO", "disk I/O error")
        with monkeypatch.context() as patch:
            refuses(patch, world.store, full, "_commit")
            patch.setattr(world.store.index_writer, "_commit", world.store._commit)
            await world.reclaimer.work_off()
            assert world.ledger.excess_bytes() <= 0
            assert [(entry.name, entry.segments.stored_count) for entry in world.room.entries.values()] == [(A, 3)]
            assert await world.get(B) == data[B]
            copy = copy_tree(tmp_path / "c", tmp_path / "killed")
            files = [path.stat().st_size for path in (copy / "shards").iterdir()]
            assert files == [3 * SEGMENT], "B passed by: its file is not made again while a row speaks for the old one"
    async with building(copy, segments=8, origin=origin) as world:
        assert sum(entry.segments.stored_count for entry in world.room.entries.values()) == 3
        for name in (A, B):
            assert await world.get(name) == data[name]


@pytest.mark.parametrize("step", ["commit", "punch"])
async def test_an_eviction_whose_caller_is_cancelled_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A client that hangs up leaves nothing half-removed."""
    async with building(tmp_path / "c") as world:
        data = await stored(world, A, 3)
        commits = step == "commit"
        gate = held_up(monkeypatch, world.store.index_writer if commits else world.reclaimer, "committed" if commits else "_remove")
        task = asyncio.create_task(world.operations.evict(None))
        await gate.reached.wait()
        task.cancel()
        await asyncio.sleep(0)
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (world.ledger.doomed_bytes, world.ledger.stored_bytes) == (0, 0)
        monkeypatch.undo()
        assert await world.get(A) == data


@pytest.mark.parametrize("step", ["_remove", "allocate", "open"])
async def test_a_flight_cancelled_while_it_prepares_gives_all_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Shutdown in the middle of making room."""
    async with building(tmp_path / "c", segments=2) as world:
        await stored(world, A, 2)
        world.origin.put(B, data_of(2 * SEGMENT, 1))
        await world.resolver.entry(shard_of(B), "", head=True)
        # allocated, and then cancelled
        gate = held_up(monkeypatch, world.reclaimer if step == "_remove" else world.files, step, after=step == "allocate")
        reading = asyncio.create_task(world.get(B))
        await gate.reached.wait()
        world.fetches.cancel()
        world.resolver.cancel()
        await asyncio.sleep(0)
        gate.open()
        with pytest.raises(Exception, match="shutting down"):
            await reading


async def test_a_flight_cancelled_while_it_waits_for_a_segment_to_leave(tmp_path: Path) -> None:
    """Its own victims come back or go, but are not forgotten."""
    async with building(tmp_path / "c", segments=3) as world:
        await stored(world, A, 3)
        grant = world.room.reserve(SEGMENT)
        entry = world.entry(A)
        reading = asyncio.create_task(world.get(A, first=2 * SEGMENT, last=3 * SEGMENT - 1))
        await until(lambda: world.fetches.find(entry.key, 2))
        await asyncio.sleep(0)
        world.fetches.cancel()
        with pytest.raises(Exception, match="shutting down"):
            await reading
        await world.reclaimer.clear(grant)
        world.ledger.release(grant)


async def test_a_segment_put_back_and_taken_again_is_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be written while its bytes are freed, and a hole be stored as a segment."""
    async with building(tmp_path / "c", segments=8) as world:
        await stored(world, A, 2)
        entry, commit = world.entry(A), world.store.index_writer.committed
        refuse, go_on = asyncio.Event(), asyncio.Event()
        taken_again: list[asyncio.Task[None]] = []
        first_time = [True]

        async def committed() -> None:
            if first_time and first_time.pop():
                await refuse.wait()
                raise DiskFailed("index commit", "ENOSPC", "full")
            await go_on.wait()
            await commit()

        monkeypatch.setattr(world.store.index_writer, "committed", committed)
        first = asyncio.create_task(world.reclaimer.discard(entry, 1))
        await until(lambda: 1 in entry.in_use.leaving)
        entry.in_use.leaving[1].add_done_callback(lambda _: taken_again.append(asyncio.create_task(world.reclaimer.discard(entry, 1))))
        grant = world.room.reserve(SEGMENT)
        preparing = asyncio.create_task(world.storage.prepare(entry, 1, grant))
        await asyncio.sleep(0.01)
        refuse.set()
        await first
        await until(lambda: taken_again and (1 in entry.in_use.leaving or preparing.done()))
        await asyncio.sleep(0.01)
        waited = not preparing.done()
        go_on.set()
        await asyncio.wait([preparing, *taken_again])
        assert waited or preparing.result() is None
        if preparing.result() is not None:
            entry.in_use.withdraw(1)
            await world.reclaimer.abandon(entry, 1, grant)


async def test_nothing_is_put_back_where_nothing_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body was empty, and the place made for its first segment cannot be freed: there is no segment all the same."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, b"", ranged=False, length_known=False)
        disk_does(monkeypatch, punch=failing(errno.EIO))
        async with world.opened(A) as reading:
            await world.quiet()
            assert (reading.entry.segments.stored_count, world.ledger.stored_bytes) == (0, 0)
