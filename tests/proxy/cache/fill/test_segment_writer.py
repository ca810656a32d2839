"""Where bytes go: onto the disk segment by segment, or through memory; and what comes back when it ends early."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.house import SEGMENT, building, data_of, reader, shard_of, until

from forebay_proxy.core.facts.cache import DiskOperationFailed
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.policy.eviction.headroom import CEILING_S
from forebay_proxy.store.files import file_io
from forebay_proxy.transfer.buffers import Share

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
UNIT = SEGMENT // 4


@pytest.mark.parametrize("leaf", ["allocate", "write_pieces", "create"])
@pytest.mark.parametrize("ranged", [True, False])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_failing_disk_costs_no_reader_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaf: str, ranged: bool, code: int
) -> None:
    """Two readers each of two shards; what cannot be stored passes through memory."""

    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    async with building(tmp_path / "c") as world:
        data, other = data_of(4 * SEGMENT + 9), data_of(2 * SEGMENT, 1)
        world.origin.put(A, data, ranged=ranged)
        world.origin.put(B, other, ranged=ranged)
        with monkeypatch.context() as patch:
            patch.setattr(file_io, leaf, fail)
            assert await asyncio.gather(world.get(A), world.get(A)) == [data, data]
            assert world.of(DiskOperationFailed)
            assert await asyncio.gather(world.get(B), world.get(B)) == [other, other]
        await world.quiet()
        assert world.ledger.stored_bytes == 0
        world.clock.advance(CEILING_S)
        await world.disk_monitor.look()  # what the disk refused is tried again
        assert await world.get(A) == data
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_a_disk_that_fails_in_the_middle_costs_no_reader_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some segments, then again later: the bytes are right all the time."""
    real, count = file_io.write_pieces, [0]

    def sometimes(*args: Any) -> None:
        count[0] += 1
        if count[0] % 3 == 0:
            raise OSError(errno.EIO, "broken")
        real(*args)

    async with building(tmp_path / "c") as world:
        monkeypatch.setattr(file_io, "write_pieces", sometimes)
        for seed in range(5):
            data = data_of(5 * SEGMENT, seed)
            world.origin.put(f"{A}{seed}", data)
            readings = [world.get(f"{A}{seed}") for _ in range(4)]
            assert await asyncio.gather(*readings) == [data] * 4
            world.clock.advance(20)


async def test_a_disk_that_cannot_be_read_costs_no_reader_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is fetched again, and what could not be read leaves."""

    def fail(*args: object) -> bytes:
        raise OSError(errno.EIO, "broken")

    async with building(tmp_path / "c") as world:
        data = data_of(4 * SEGMENT)
        world.origin.put(A, data)
        await world.get(A)
        await world.quiet()
        with monkeypatch.context() as patch:
            patch.setattr(file_io, "read_now", lambda *args: False)
            patch.setattr(file_io, "read", fail)
            assert await asyncio.gather(world.get(A), world.get(A)) == [data, data]
        await world.quiet()
        assert not world.entry(A).segments.complete if A in world.resolver.versions.current else True
        world.clock.advance(60)
        assert await world.get(A) == data


async def test_a_slow_disk_read_in_a_thread_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the loop could not read at once."""
    async with building(tmp_path / "c") as world:
        data = data_of(4 * SEGMENT)
        world.origin.put(A, data)
        monkeypatch.setattr(file_io, "read_now", lambda *args: False)
        assert await world.get(A) == data
        assert await world.get(A) == data


async def test_a_closing_landing_waits_for_its_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while a thread writes: the segment is freed after the write, not before it; its readers had the bytes already."""
    real, reached, gate = file_io.write_pieces, threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        reached.set()
        gate.wait(60)
        real(*args)

    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(SEGMENT))
        monkeypatch.setattr(file_io, "write_pieces", slow)
        assert await world.get(A) == data_of(SEGMENT)
        await until(reached.is_set)
        world.resolver.cancel()
        await asyncio.sleep(0.01)
        assert world.ledger.reserved_bytes == SEGMENT
        gate.set()
        await world.quiet()
        assert world.ledger.stored_bytes == 0


async def test_a_unit_comes_while_the_one_before_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One further and no more: what waits for the disk is bounded."""
    reached, gate = hanging_writes(monkeypatch)
    async with building(tmp_path / "c") as world:
        world.buffers.fetches = Share(UNIT, per_holder=1, smallest_bytes=UNIT)
        world.origin.put(A, data_of(SEGMENT)).chunk_bytes = UNIT // 2
        reading = asyncio.create_task(world.get(A))
        await until(reached.is_set)
        (flight,) = world.fetches.all()
        await until(lambda: flight.position == 2 * UNIT)
        assert flight.on_disk.end == 0
        gate.set()
        assert await reading == data_of(SEGMENT)
        await world.quiet()
        assert world.entry(A).segments.complete


async def test_a_flight_that_ends_early_waits_for_the_write_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while it waits for the origin: its segment is not freed under a thread that writes it."""
    reached, gate = hanging_writes(monkeypatch)
    async with building(tmp_path / "c") as world:
        world.buffers.fetches = Share(UNIT, per_holder=1, smallest_bytes=UNIT)
        remote = world.origin.put(A, data_of(SEGMENT))
        remote.chunk_bytes = UNIT // 2
        stalls = remote.hold(UNIT + UNIT // 2)
        reading = asyncio.create_task(world.get(A))
        await until(reached.is_set)
        await stalls.reached.wait()
        world.resolver.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        await world.tasks.idle()
        assert world.ledger.reserved_bytes == SEGMENT
        gate.set()
        with pytest.raises(Exception, match="shutting down"):
            await reading
        await world.quiet()
        assert world.ledger.reserved_bytes == 0


def hanging_writes(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """(A write has begun, it may go on.)"""
    real, reached, gate = file_io.write_pieces, threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        reached.set()
        gate.wait(60)
        real(*args)

    monkeypatch.setattr(file_io, "write_pieces", slow)
    return reached, gate


@pytest.mark.parametrize("kind", ["ranged", "stream", "nameless stream", "unknown length"])
@pytest.mark.parametrize("at", ["headers", "body", "second segment"])
async def test_shutdown_in_the_middle_gives_all_back(tmp_path: Path, kind: str, at: str) -> None:
    """Whatever the origin was doing."""
    async with building(tmp_path / "c") as world:
        remote = world.origin.put(A, data_of(3 * SEGMENT), ranged=kind == "ranged", identity=kind != "nameless stream")
        remote.length_known = kind != "unknown length"
        gate = remote.hold({"headers": None, "body": 20_000, "second segment": SEGMENT + 5000}[at])
        reading = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        world.resolver.cancel()
        world.fetches.cancel()
        with pytest.raises(Exception, match="shutting down"):
            await reading


async def test_a_stream_of_unknown_length_gives_back_what_its_end_does_not_need(tmp_path: Path) -> None:
    """A whole segment was reserved for the last one."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(SEGMENT + 10), ranged=False, length_known=False)
        await world.get(A)
        await world.quiet()
        assert world.ledger.stored_bytes == SEGMENT + 4096


@pytest.mark.parametrize("at", [SEGMENT, 2 * SEGMENT])
async def test_a_stream_that_breaks_at_a_border_and_ends_there(tmp_path: Path, at: int) -> None:
    """No segment begins where the shard ends."""
    async with building(tmp_path / "c") as world:
        data = data_of(2 * SEGMENT)
        world.origin.put(A, data, ranged=False, length_known=False).fail(after=at)
        assert await world.get(A) == data
        await world.quiet()
        assert (world.entry(A).segments.stored_count, world.entry(A).segments.complete) == (2, True)


async def test_a_bypass_that_began_as_a_stored_flight_says_so(tmp_path: Path) -> None:
    """The outcome in the end is bypass."""
    async with building(tmp_path / "c", segments=1) as world:
        data = data_of(3 * SEGMENT)
        world.origin.put(A, data, ranged=False)
        async with world.opened(A) as reading:
            assert reading.tally.outcome is RequestOutcome.MISS
            assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
            assert reading.tally.outcome is RequestOutcome.BYPASS


async def test_every_bypass_counts_in_the_windows_share(tmp_path: Path) -> None:
    """Openings too: the unit shrinks with each."""
    async with building(tmp_path / "c", segments=0) as world:
        world.origin.put(A, data_of(SEGMENT))
        world.origin.put(B, data_of(SEGMENT))
        async with world.opened(A, reader(1)) as one, world.opened(shard_of(B), reader(2)) as two:
            await world.taken(one, 10)
            await world.taken(two, 10)
            assert world.buffers.windows.holders == 2


async def test_the_disk_is_written_once_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks of the network are gathered as long as nobody waits."""
    real, calls = file_io.write_pieces, list[int]()

    def counted(fd: int, offset: int, pieces: Any, hasher: Any) -> None:
        calls.append(sum(len(piece) for piece in pieces))
        real(fd, offset, pieces, hasher)

    monkeypatch.setattr(file_io, "write_pieces", counted)
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(SEGMENT)).chunk_bytes = 100
        await world.resolver.entry(shard_of(A), "")
        await world.quiet()
        assert calls == [SEGMENT]
