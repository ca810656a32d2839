"""One reader inside one shard: what it asks ahead, what it holds, where it waits."""

from __future__ import annotations

import asyncio
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
from support.house import LAYOUT, SEGMENT, building, data_of, reader, shard_of, stored, until

from forebay_proxy.cache.readers import reader as reader_module
from forebay_proxy.cache.readers.chunk_reader import FileStretch
from forebay_proxy.cache.readers.reader import REST_S, ShardReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import FellBehind, OriginError, VersionLost
from forebay_proxy.core.facts.origins import FetchJoined
from forebay_proxy.core.facts.requests import ReaderWaited, RequestOutcome
from forebay_proxy.core.segments import FIRST_BREADTH
from forebay_proxy.core.shard import Pin, Version
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
        await stored(world, A, 40)
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
            assert reading.waited_s == 2.5
        await world.quiet()
        told = len(world.of(ReaderWaited))
        assert sum(fact.seconds for fact in world.of(ReaderWaited)) == 2.5
        async with world.opened(A, reader()) as reading:
            await world.taken(reading, SEGMENT)
            assert (reading.waited_s, reading.hit_bytes) == (0.0, SEGMENT)
        assert len(world.of(ReaderWaited)) == told


async def test_following_somebody_elses_fetch_is_counted(tmp_path: Path) -> None:
    """One origin request fewer each time; what a reader asked for itself is not."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, data_of(3 * SEGMENT)).hold(10)
        first = asyncio.create_task(world.get(A))
        await gate.reached.wait()
        assert not world.of(FetchJoined)
        second = asyncio.create_task(world.get(A))
        await until(lambda: world.of(FetchJoined))
        gate.open()
        await asyncio.gather(first, second)


async def test_where_there_is_no_room_it_stops_asking(tmp_path: Path) -> None:
    """The position itself may go through memory; nothing ahead of it does."""
    async with building(tmp_path / "c", segments=3) as world:
        world.origin.put(A, data_of(6 * SEGMENT))
        world.cache.breadth = lambda entry, bypassing: 6  # type: ignore[method-assign]
        async with world.opened(A, reader()) as reading:
            await world.taken(reading, SEGMENT + 1)
            assert reading.asked_to == 3
            assert sorted(reading.entry.segments.leases) == [1, 2, 3]


async def test_what_it_asked_for_itself_is_needed_sooner_once_it_follows(tmp_path: Path) -> None:
    """And nobody joined it. Giving up leaves nothing, and ends no fetch; twice is no error."""
    async with building(tmp_path / "c") as world:
        gate = world.origin.put(A, data_of(3 * SEGMENT)).hold(SEGMENT + 10)
        async with world.opened(A, reader()) as reading:
            await world.taken(reading, SEGMENT)
            fetch = world.segment_fetches.find(reading.entry, 1)
            assert fetch is not None
            assert fetch.need == 1.0
            await world.taken(reading, 10)
            assert (reading.fetch, fetch.need, fetch.subscribers, world.of(FetchJoined)) == (fetch, 0.0, 1, [])
            for _ in range(2):
                reading.give_up()
                assert (reading.fetch, reading.asked_to, fetch.subscribers, world.cache.leased_segments) == (None, -1, 0, 0)
            gate.open()


async def test_what_was_refused_is_asked_for_again_when_there_is_room(tmp_path: Path) -> None:
    """The rest of a shard is needed before any other shard, so it is first when room appears; nobody has to read on for that."""
    async with building(tmp_path / "c", segments=5) as world:
        world.origin.put(A, data_of(3 * SEGMENT))
        world.plans.replace(reader(), [shard_of(A)])
        full = world.room.ledger.reserve(4 * SEGMENT, list)
        async with world.opened(A, reader()) as reading, aclosing(reading.chunks()) as chunks:
            await anext(chunks)
            world.cache.ask_inside()
            assert len(world.origin.asked(A)) == 1
            world.room.ledger.release(full)
            world.cache.ask_inside()
            await world.quiet()
            assert len(world.origin.asked(A)) > 1


async def test_leases_move_with_the_reader_and_end_with_it(tmp_path: Path) -> None:
    """What is behind may leave."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(6 * SEGMENT))
        async with world.opened(A) as reading:
            await world.taken(reading, 3 * SEGMENT + 1)
            assert min(reading.entry.segments.leases) == 3
            assert world.cache.leased_segments == len(reading.entry.segments.leases)
        assert world.cache.leased_segments == 0


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
                assert reading.hit_bytes == len(data) - 5
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


async def test_what_is_coming_is_sent_from_the_file_as_far_as_it_is_written(tmp_path: Path) -> None:
    """A follower that is behind the disk."""
    async with building(tmp_path / "c", segment_bytes=4 * LARGE) as world:
        remote = world.origin.put(A, data := data_of(4 * LARGE))
        remote.hold(3 * LARGE)
        with Client() as client:
            async with world.opened(A) as reading:
                fetch = reading.fetch
                assert fetch is not None
                await until(lambda: fetch.position == 3 * LARGE)
                async for piece in handed(reading, client):
                    if isinstance(piece, FileStretch):
                        assert reading.position <= fetch.position
                    if len(client.got) == 3 * LARGE:
                        assert client.sent_bytes > 0
                        world.origin.release()
            assert client.got == data


# Where the bytes come from


def entry_of(*stored: int) -> Entry:
    entry = Entry("k" * 64, shard_of(A), Version("etag:1", Pin(), 4 * SEGMENT), LAYOUT, ranged=True)
    for index in stored:
        entry.segments.land(index, 1)
    return entry


@pytest.mark.parametrize(
    ("stored", "end", "joins", "outcome"),
    [
        ((0, 1), 2 * SEGMENT, False, RequestOutcome.HIT),
        ((1,), 2 * SEGMENT, True, RequestOutcome.PARTIAL),
        ((), 2 * SEGMENT, True, RequestOutcome.COLLAPSED),
        ((), 2 * SEGMENT, False, RequestOutcome.MISS),
        ((2, 3), 2 * SEGMENT, False, RequestOutcome.MISS),
        ((0,), None, False, RequestOutcome.PARTIAL),  # nothing says that what is stored is all of it
    ],
)
def test_what_is_foreseen(stored: tuple[int, ...], end: int | None, joins: bool, outcome: RequestOutcome) -> None:
    """Of the segments of the range alone."""
    assert reader_module._foreseen(entry_of(*stored), 0, end, joins=joins) is outcome


def test_what_is_foreseen_costs_by_what_is_stored() -> None:
    """Not by the length of the range: an origin may have made it up, and each request for all of it would hold up the event loop."""
    entry = entry_of(0, 1, 2)
    tracemalloc.start()
    assert reader_module._foreseen(entry, 0, SEGMENT << 20, joins=False) is RequestOutcome.PARTIAL
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert memory < 1 << 16


@pytest.mark.parametrize("stored", [True, False])
async def test_a_doubtful_segment_is_not_read(tmp_path: Path, stored: bool) -> None:
    """Nor fetched into its place, which the disk does not let go of: a body of the reader's own brings it, and no other segment."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data := data_of(3 * SEGMENT))
        await world.get(A)
        await world.quiet()
        entry = world.entry(A)
        if not stored:
            await world.reclaimer.discard(entry, 1)

        async def untrusted(_: Entry, index: int) -> bool:
            return index != 1

        world.cache.parts.segment_reader.trusted = untrusted  # type: ignore[method-assign]
        entry.segments.unverified.add(1)
        asked = len(world.origin.asked(A))
        async with world.opened(A) as reading:
            assert b"".join([bytes(chunk) async for chunk in reading.chunks()]) == data
            assert reading.outcome is RequestOutcome.BYPASS
        entry.segments.unverified.clear()
        assert world.origin.asked(A)[asked:] == [(SEGMENT, 2 * SEGMENT - 1)]


@pytest.mark.parametrize("kind", [{"identity": False}, {"ranged": False, "length_known": False}], ids=str)
async def test_a_chunk_of_a_readers_own_body_ends_with_its_segment(tmp_path: Path, kind: dict[str, bool]) -> None:
    """However large the pieces are that come: what is looked at segment by segment would be passed over."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data := data_of(3 * SEGMENT), chunk_bytes=SEGMENT + SEGMENT // 2, **kind)
        async with world.opened(A) as reading:
            chunks = [bytes(chunk) async for chunk in reading.chunks()]
        assert b"".join(chunks) == data
        assert [len(chunk) for chunk in chunks] == [SEGMENT, SEGMENT // 2, SEGMENT // 2, SEGMENT]


async def test_many_read_parts_of_what_has_no_name(tmp_path: Path) -> None:
    """Each by one body; who was given bytes of it must not go on with another."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data := data_of(3 * SEGMENT), identity=False)
        firsts = [SEGMENT + number for number in range(6)]
        assert await asyncio.gather(*(world.get(A, first=first) for first in firsts)) == [data[first:] for first in firsts]
        async with world.opened(A, first=5) as reading:
            await world.taken(reading, 10)
            await reading.aclose()
            with pytest.raises(VersionLost):
                reading._go_alone(FellBehind("gone"))


@pytest.mark.parametrize("room", [0, 50])
async def test_a_reader_that_rests_holds_nothing_and_goes_on(tmp_path: Path, room: int) -> None:
    """Neither leases nor a segment of memory; what it needs then is asked for again where it is not here."""
    async with building(tmp_path / "c", segments=room) as world:
        world.origin.put(A, data := data_of(2 * SEGMENT))
        async with world.opened(A) as reading:
            got = b""
            async for chunk in reading.chunks():
                got += bytes(chunk)
                if reading.position < 2 * SEGMENT:
                    assert not reading.rests(time.monotonic())
                    await until(lambda: all(fetch.position == fetch.end for fetch in world.fetches.all()))
                    assert reading.rests(time.monotonic() + REST_S)
                    await world.quiet()
                    assert (world.buffers.memory.taken, world.cache.leased_segments) == (0, 0)
            assert got == data


async def test_a_reader_that_gets_no_byte_in_several_bodies_of_its_own_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails each time it is asked is no reason to ask the origin for ever."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(2 * SEGMENT))
        async with world.opened(A) as reading:
            for _ in range(reader_module.ATTEMPTS_ALONE):
                await reading.aclose()
                reading._go_alone(FellBehind("gone"))
            await reading.aclose()
            with pytest.raises(OriginError, match="no byte beyond 0 arrived in 5 attempts"):
                reading._go_alone(FellBehind("gone"))
