"""One reader inside one shard: what it asks ahead, what it holds, where it waits."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from forebay_proxy.cache.readers.file_stretch import FileStretch
from support.house import SEGMENT, building, data_of, reader, shard_of, until

from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.core.facts.origins import FlightBoarded
from forebay_proxy.core.facts.requests import ReaderWaited
from forebay_proxy.core.segments import FIRST_BREADTH
from forebay_proxy.store.files import file_io
from forebay_proxy.transfer.bandwidth import MOST_RANGES

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"


async def test_a_whole_read_begins_with_four_ranges(tmp_path: Path) -> None:
    """Until it has read one segment it may be somebody who looks and leaves."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(40 * SEGMENT))
        async with world.opened(A) as reading:
            await world.taken(reading, 10)
            await world.quiet()
            assert len(world.origin.asked(A)) == FIRST_BREADTH
            assert len(reading.entry.segments.leases) == FIRST_BREADTH
        assert len(world.origin.asked(A)) == FIRST_BREADTH


async def test_then_it_has_sixteen(tmp_path: Path) -> None:
    """And holds no more than that."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(40 * SEGMENT))
        async with world.opened(A) as reading:
            await world.taken(reading, SEGMENT + 1)
            await world.quiet()
            assert set(reading.entry.segments.leases) == set(range(1, 1 + MOST_RANGES))


async def test_a_reader_of_a_whole_shard_leases_the_next_segment_alone(tmp_path: Path) -> None:
    """It has nothing to ask for, and what it does not hold yet is room for others; once something left it holds as much as it asks for."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(40 * SEGMENT))
        await world.get(A)
        await world.quiet()
        async with world.opened(A) as reading:
            await world.taken(reading, SEGMENT + 1)
            assert set(reading.entry.segments.leases) == {1, 2}
            await world.reclaimer.discard(reading.entry, 30)
            await world.taken(reading, SEGMENT)
            assert set(reading.entry.segments.leases) == set(range(2, 2 + MOST_RANGES))


async def test_a_range_asks_for_its_segments_only(tmp_path: Path) -> None:
    """Not for what lies behind."""
    async with building(tmp_path / "c") as world:
        data = data_of(10 * SEGMENT)
        world.origin.put(A, data)
        assert await world.get(A, first=SEGMENT - 5, last=SEGMENT + 4) == data[SEGMENT - 5 : SEGMENT + 5]
        await world.quiet()
        assert sorted(world.origin.asked(A)) == [(0, SEGMENT - 1), (SEGMENT, 2 * SEGMENT - 1)]


async def test_a_small_cache_is_shared_evenly(tmp_path: Path) -> None:
    """Each reader's ranges in the air are an even part of what could be granted, and at least one."""
    async with building(tmp_path / "c", segments=8) as world:
        for number in range(4):
            world.origin.put(f"{A}{number}", data_of(20 * SEGMENT, number)).hold()
        tasks = [asyncio.create_task(world.get(f"{A}{number}")) for number in range(4)]
        await until(lambda: len(world.cache.readers) == 0 and len(world.origin.log) == 4)
        world.origin.release()
        assert await asyncio.gather(*tasks) == [data_of(20 * SEGMENT, number) for number in range(4)]
        entry = next(iter(world.room.entries.values()))
        assert world.cache.breadth(entry, bypassing=True) == 1
        assert 1 <= world.cache.breadth(entry, bypassing=False) <= 8


async def test_waiting_is_measured_and_told(tmp_path: Path) -> None:
    """Per reader and as a fact; reading what is here waits for nothing."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, data_of(SEGMENT)).hold(100)
        async with world.cache.open(shard_of(A), reader(), None) as reading:
            await reading.begin(0, None)
            task = asyncio.create_task(world.taken(reading, SEGMENT))
            await gate.reached.wait()
            world.clock.advance(2.5)
            gate.open()
            await task
            assert reading.tally.waited_s == 2.5
        await world.quiet()
        told = len(world.of(ReaderWaited))
        assert sum(fact.seconds for fact in world.of(ReaderWaited)) == 2.5
        async with world.opened(A, reader()) as reading:
            await world.taken(reading, SEGMENT)
            assert (reading.tally.waited_s, reading.tally.hit_bytes) == (0.0, SEGMENT)
        assert len(world.of(ReaderWaited)) == told


async def test_boarding_somebody_elses_flight_is_counted(tmp_path: Path) -> None:
    """One origin request fewer each time; what a reader asked for itself is not."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, data_of(3 * SEGMENT)).hold(10)
        first = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        assert not world.of(FlightBoarded)
        second = asyncio.create_task(world.get(A))
        await until(lambda: world.of(FlightBoarded))
        gate.open()
        await asyncio.gather(first, second)


async def test_leases_move_with_the_reader_and_end_with_it(tmp_path: Path) -> None:
    """What is behind may leave."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(6 * SEGMENT))
        async with world.opened(A) as reading:
            await world.taken(reading, 3 * SEGMENT + 1)
            assert min(reading.entry.segments.leases) == 3
            assert world.cache.leased_segments == len(reading.entry.segments.leases)
        assert world.cache.leased_segments == 0


@pytest.mark.parametrize("where", ["opening", "waiting", "bypass", "verifying", "between"])
async def test_a_cancelled_reader_gives_everything_back(tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stood."""
    async with building(tmp_path / "c", segments=0 if where == "bypass" else 50) as world:
        data = data_of(6 * SEGMENT)
        remote = world.origin.put(A, data)
        verifying, verified, digest = threading.Event(), threading.Event(), file_io.digest

        def held_digest(*args: Any) -> int:
            verifying.set()
            verified.wait(60)
            return digest(*args)

        if where == "verifying":
            await world.get(A)
            await world.quiet()
            entry = world.entry(A)
            entry.segments.unverified = set(entry.segments.stored())
            monkeypatch.setattr(file_io, "digest", held_digest)
        gate = remote.hold({"opening": None}.get(where, 20_000))
        reached = asyncio.Event()

        async def read() -> None:
            async with world.opened(A) as reading:
                async for _ in reading.chunks():
                    if where in ("between", "bypass"):
                        reached.set()
                        await asyncio.Event().wait()

        task = asyncio.create_task(read())
        if where in ("opening", "waiting"):
            await gate.reached.wait()
        elif where == "verifying":
            await until(verifying.is_set)
        else:
            await reached.wait()
        task.cancel()
        verified.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        await world.quiet()
        world.check()
        assert await world.get(A) == data


async def test_readers_cancelled_at_any_step_leave_nothing(tmp_path: Path) -> None:
    """After one turn of the loop, after two, after three ...: the books agree every time, and the last reader gets all."""
    async with building(tmp_path / "c", segments=5) as world:
        a, b = data_of(4 * SEGMENT), data_of(4 * SEGMENT, 1)
        world.origin.put(A, a)
        world.origin.put(B, b, ranged=False)
        for turns in range(60):
            tasks = [asyncio.create_task(world.get(name)) for name in (A, B)]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await world.quiet()
            world.check()
            if turns % 7 == 0:
                await world.operations.evict(None)
        assert await world.get(A) == a
        assert await world.get(B) == b


LARGE = 2 << 20  # a segment in which no folio of another can lie: what is sent from its file


class Client:
    """What a client is sent of one reading: stretches from their files, over a real socket, and chunks."""

    def __init__(self) -> None:
        self.sock, self._theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._theirs.setblocking(False)
        self.got, self.sent_bytes = bytearray(), 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        self._theirs.close()

    def take(self) -> None:
        """Read what has come."""
        with suppress(BlockingIOError):
            while data := self._theirs.recv(1 << 20):
                self.got += data

    def hand(self, piece: Any) -> None:
        """One piece of a reading, as far as it is to be had now."""
        if not isinstance(piece, FileStretch):
            self.take()
            self.got += bytes(piece)
            return
        left = len(piece)
        piece.send(self.sock.fileno())
        self.sent_bytes += left - len(piece)
        self.take()


async def test_what_is_stored_is_sent_from_its_file(tmp_path: Path) -> None:
    """But the first bytes: as long as no header is out, what the disk does not give comes from elsewhere."""
    async with building(tmp_path / "c", segment_bytes=LARGE) as world:
        world.origin.put(A, data := data_of(2 * LARGE + LARGE // 2 + 7))
        await world.get(A)
        await world.quiet()
        with Client() as client:
            async with world.opened(A, first=5) as reading:
                pieces = [type(piece) async for piece in handed(reading, client)]
                assert reading.tally.hit_bytes == len(data) - 5
            assert client.got == data[5:]
            assert pieces[0] is not FileStretch
            assert client.sent_bytes > len(data) // 2


async def handed(reading: ShardReader, client: Client) -> AsyncIterator[Any]:
    async for piece in reading.pieces(lambda: True):
        client.hand(piece)
        yield piece


@pytest.mark.parametrize("what", ["left", "rested", "rested and left"])
async def test_a_stretch_whose_segment_is_no_longer_the_readers_is_not_sent(tmp_path: Path, what: str) -> None:
    """A hole would be zeros: the rest comes from where it is then."""
    async with building(tmp_path / "c", segment_bytes=LARGE) as world:
        world.origin.put(A, data := data_of(2 * LARGE))
        await world.get(A)
        await world.quiet()
        with Client() as client:
            async with world.opened(A) as reading:
                done = False
                async for piece in reading.pieces(lambda: True):
                    client.hand(piece)
                    if isinstance(piece, FileStretch) and not done:
                        done = True
                        if "rested" in what:
                            assert reading.rests(time.monotonic() + 1000)
                        if "left" in what:
                            await world.reclaimer.discard(reading.entry, 0)
                        before = len(piece)
                        assert not piece.send(client.sock.fileno())
                        assert len(piece) == before > 0
            assert client.got == data


async def test_bytes_in_the_air_are_sent_from_the_file_as_far_as_they_are_written(tmp_path: Path) -> None:
    """A follower that is behind the disk; the rest comes from memory."""
    async with building(tmp_path / "c", segment_bytes=4 * LARGE) as world:
        remote = world.origin.put(A, data := data_of(4 * LARGE))
        gate = remote.hold(3 * LARGE)
        with Client() as client:
            async with world.opened(A) as reading:
                await gate.reached.wait()
                flight = reading.lease.flight
                assert flight is not None
                await until(lambda: flight.on_disk.end >= LARGE)
                async for piece in handed(reading, client):
                    if isinstance(piece, FileStretch):
                        assert reading.position <= flight.on_disk.end
                    if len(client.got) >= LARGE:
                        assert client.sent_bytes > 0
                        world.origin.release()
            assert client.got == data
