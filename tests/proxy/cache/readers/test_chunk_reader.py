"""Where a reader's next bytes come from, the chunks of the file or the window, and when they must not be given."""

from __future__ import annotations

import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import xxhash
from forebay_proxy.transfer.flights import Flight
from support.house import LAYOUT, SEGMENT, World, building, data_of, shard_of

from forebay_proxy.cache.readers.chunk_reader import (
    ChunkReader,
    RepeatCheck,
    SegmentSource,
    foreseen_outcome,
    source_of_segment,
)
from forebay_proxy.cache.resident.digest_state import DigestState
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import FellBehind, OriginError, ShardChanged, WrongBytes
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.core.shard import Pin, PinKind, Version
from forebay_proxy.transfer.buffers import Share

A = "https://o/set/a.tar"
DATA = data_of(3 * SEGMENT)
LENGTH = SEGMENT + 10  # the last segment is ten bytes long
LAST = bytes(range(10))
WHOLE = 4 * SEGMENT


async def stored(world: World) -> ChunkReader:
    world.origin.put(A, DATA)
    await world.get(A)
    await world.quiet()
    return ChunkReader(world.cache.parts, world.entry(A))


async def test_a_chunk_of_the_file_is_one_unit_at_most(tmp_path: Path) -> None:
    """And ends where it is told to."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        world.buffers.readers = Share(1000, 1, smallest_bytes=100, largest_bytes=100)
        assert bytes(await chunks.from_file(1, SEGMENT, SEGMENT + 7, None)) == DATA[SEGMENT : SEGMENT + 7]
        assert bytes(await chunks.from_file(0, 0, SEGMENT, None)) == DATA[:100]


async def test_what_has_not_landed_yet_is_read_up_to_the_watermark(tmp_path: Path) -> None:
    """Behind it the file has a hole; a segment that landed and left has nothing but that."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        await world.reclaimer.discard(world.entry(A), 1)
        flight = Flight(SEGMENT, 2 * SEGMENT, 0.0)
        flight.on_disk.end, flight.on_disk.file = SEGMENT + 100, world.entry(A).stored.file
        assert len(await chunks.from_file(1, SEGMENT, 2 * SEGMENT, flight)) == 100
        flight.on_disk.segments.add(1)
        with pytest.raises(FellBehind, match="found wrong, and left"):
            await chunks.from_file(1, SEGMENT, 2 * SEGMENT, flight)


async def test_a_fault_found_while_a_chunk_is_read_withholds_it(tmp_path: Path) -> None:
    """The file may be another version's by then."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        world.entry(A).in_use.fault = ShardChanged(A, "412")
        with pytest.raises(ShardChanged):
            await chunks.from_file(0, 0, 100, None)


LARGE = 2 << 20  # a segment in which no folio of another can lie: what is sent from its file


@asynccontextmanager
async def large(path: Path) -> AsyncIterator[tuple[World, ChunkReader, socket.socket]]:
    """A stored shard of two such segments, and a socket to send them to."""
    ours, theirs = socket.socketpair()
    async with building(path / "c", segment_bytes=LARGE) as world:
        ours.setblocking(False)
        world.origin.put(A, data_of(2 * LARGE))
        await world.get(A)
        await world.quiet()
        with ours, theirs:
            yield world, ChunkReader(world.cache.parts, world.entry(A)), ours


async def test_what_is_stored_is_sent_from_its_file(tmp_path: Path) -> None:
    """As far as it is asked for; from then on the reader must not go on if the segment is found wrong."""
    async with large(tmp_path) as (_, chunks, sock):
        assert chunks.send_now(1, LARGE, LARGE + 1000, None, sock.fileno()) == 1000
        chunks.found_wrong(1)
        with pytest.raises(WrongBytes):
            chunks.check()


@pytest.mark.parametrize(
    "why", ["faulty", "given wrong bytes", "leaving", "gone", "doubtful", "failed", "another file", "not written", "landed and gone"]
)
async def test_what_must_not_be_read_is_not_sent(tmp_path: Path, why: str) -> None:
    """``from_file`` raises for it, or reads what is there."""
    async with large(tmp_path) as (world, chunks, sock):
        entry, flight = world.entry(A), None
        checksum = entry.segments.sums[1]
        if why in ("failed", "another file", "not written", "landed and gone"):
            flight = Flight(LARGE, 2 * LARGE, 0.0)
            flight.on_disk.end, flight.on_disk.file = 2 * LARGE, entry.stored.file
        assert chunks.send_now(1, LARGE, LARGE + 1000, flight, sock.fileno()) == 1000
        if why == "faulty":
            entry.in_use.fault = OriginError(A, "no")
        elif why == "given wrong bytes":
            chunks.found_wrong(1)
        elif why == "leaving":  # its bytes are still in the file
            entry.segments.sums[1] = 0
        elif why == "gone":
            await world.reclaimer.discard(entry, 1)
        elif why == "doubtful":
            entry.segments.unverified.add(1)
        else:
            assert flight is not None
            if why == "failed":
                flight.error = OriginError(A, "no")
            elif why == "another file":
                flight.on_disk.file = object()
            elif why == "not written":
                flight.on_disk.end = LARGE + 999
            else:
                flight.on_disk.segments.add(1)
                await world.reclaimer.discard(entry, 1)
        assert chunks.send_now(1, LARGE, LARGE + 1000, flight, sock.fileno()) is None
        entry.segments.unverified.clear()
        entry.in_use.fault = None
        if why == "leaving":
            entry.segments.sums[1] = checksum


async def test_a_segment_that_leaves_meanwhile_is_not_given(tmp_path: Path) -> None:
    """What was read may be a hole."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        await world.reclaimer.discard(world.entry(A), 1)
        with pytest.raises(FellBehind, match="found wrong, and left"):
            await chunks.from_file(1, SEGMENT, SEGMENT + 100, None)


async def test_what_a_failed_flight_wrote_is_not_given(tmp_path: Path) -> None:
    """Its bytes are being given back."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        flight = Flight(0, SEGMENT, 0.0)
        flight.on_disk.end, flight.on_disk.file = SEGMENT, world.entry(A).stored.file
        flight.error = OriginError("a", "cut")
        with pytest.raises(OriginError, match="cut"):
            await chunks.from_file(0, 0, 100, flight)


async def test_a_file_that_was_replaced_is_not_given(tmp_path: Path) -> None:
    """The flight wrote into the one that is gone."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        flight = Flight(0, SEGMENT, 0.0)
        flight.on_disk.end, flight.on_disk.file = SEGMENT, object()
        with pytest.raises(FellBehind, match="directory was removed"):
            await chunks.from_file(0, 0, 100, flight)


async def test_a_window_is_read_in_place(tmp_path: Path) -> None:
    """No copy of it is made."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        flight = Flight(0, SEGMENT, 0.0)
        flight.arrived(DATA[:1000])
        assert bytes(chunks.from_window(flight, 10, 20)) == DATA[10:20]


async def test_wrong_bytes_end_who_was_given_some(tmp_path: Path) -> None:
    """Nobody else: the segment is fetched anew for them."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        await chunks.from_file(1, SEGMENT, SEGMENT + 7, None)
        chunks.found_wrong(0)
        chunks.check()
        chunks.found_wrong(1)
        with pytest.raises(WrongBytes, match=f"bytes {SEGMENT} to {2 * SEGMENT - 1} were found wrong"):
            chunks.check()


class Gate:
    """Hears what is compared."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.awaited: list[int] = []

    def came_again(self, entry: Entry, index: int, value: int) -> None:
        self.heard.append((index, value))

    async def compared(self, entry: Entry, index: int, flight: Flight) -> None:
        self.awaited.append(index)


def made(*, hashed: int = 2) -> tuple[Any, RepeatCheck]:
    """A check of an entry of which the first ``hashed`` segments were here before."""
    entry = Entry("k" * 64, shard_of("https://o/a.tar"), Version('etag:"1"', Pin(PinKind.ETAG, '"1"'), LENGTH), LAYOUT, ranged=True)
    entry.trust.digest_state = DigestState(None)
    entry.trust.digest_state.sums.extend([1] * hashed)
    gate: Any = Gate()
    return gate, RepeatCheck(gate, entry)


def flight(*landed: int) -> Flight:
    flying = Flight(0, LENGTH, 0.0)
    flying.on_disk.segments.update(landed)
    return flying


def test_the_sum_of_a_whole_segment_is_compared() -> None:
    """However it was cut into chunks."""
    gate, check = made()
    check.expect(1, flight())
    assert [check.add(1, SEGMENT, LAST[:4]), check.add(1, SEGMENT + 4, LAST[4:])] == [False, True]
    assert gate.heard == [(1, xxhash.xxh3_64_intdigest(LAST))]
    assert not check


async def test_one_read_from_its_middle_is_waited_for() -> None:
    """Nobody has its sum before it has landed; the first segment is no exception."""
    gate, check = made()
    check.expect(0, flight())
    assert not check.add(0, SEGMENT - 4, LAST[:4])
    assert (bool(check), gate.heard) == (True, [])
    await check.finish()
    assert (bool(check), gate.awaited) == (False, [0])


def test_what_has_landed_was_compared() -> None:
    """And so was what is read from the disk."""
    gate, check = made()
    check.expect(1, flight(1))
    check.expect(1, None)
    assert not check
    assert not check.add(1, SEGMENT, LAST)
    assert gate.heard == []


def test_what_was_never_here_is_not_compared() -> None:
    _, check = made(hashed=1)
    check.expect(1, flight())
    assert not check


def entry_of(*, ranged: bool = True, stored: tuple[int, ...] = ()) -> Entry:
    entry = Entry("k" * 64, shard_of("https://o/a.tar"), Version('etag:"1"', Pin(PinKind.ETAG, '"1"'), WHOLE), LAYOUT, ranged=ranged)
    for index in stored:
        entry.segments.land(index, 1)
    return entry


@pytest.mark.parametrize("stored", [(1,), ()])
def test_a_doubtful_one_is_not_read(stored: tuple[int, ...]) -> None:
    """Nor fetched into its place, which the disk does not let go of."""
    entry = entry_of(stored=stored)
    entry.segments.unverified.add(1)
    assert source_of_segment(entry, 1) is SegmentSource.PRIVATE


@pytest.mark.parametrize(
    ("stored", "joins", "outcome"),
    [
        ((0, 1), False, RequestOutcome.HIT),
        ((1,), True, RequestOutcome.PARTIAL),
        ((), True, RequestOutcome.COLLAPSED),
        ((), False, RequestOutcome.MISS),
        ((2, 3), False, RequestOutcome.MISS),
    ],
)
def test_what_is_foreseen(stored: tuple[int, ...], joins: bool, outcome: RequestOutcome) -> None:
    """Of the segments of the range alone."""
    assert foreseen_outcome(entry_of(stored=stored), 0, 2 * SEGMENT, joins=joins) is outcome


def test_a_shard_without_a_known_end_is_no_hit() -> None:
    """Nothing says that what is stored is all of it."""
    assert foreseen_outcome(entry_of(stored=(0,)), 0, None, joins=False) is RequestOutcome.PARTIAL


def test_what_is_foreseen_costs_by_what_is_stored() -> None:
    """Not by the length of the range: an origin may have made it up, and each request for all of it would hold up the event loop."""
    entry = entry_of(stored=(0, 1, 2))
    tracemalloc.start()
    assert foreseen_outcome(entry, 0, SEGMENT << 20, joins=False) is RequestOutcome.PARTIAL
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert memory < 1 << 16
