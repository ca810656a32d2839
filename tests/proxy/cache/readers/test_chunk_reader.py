"""A reader's next bytes, copied or sent from the file; and when they must not be given."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import xxhash
from support.house import LAYOUT, SEGMENT, World, building, data_of, shard_of

from forebay_proxy.cache.readers.chunk_reader import (
    MOST_BYTES,
    NUDGE_BYTES,
    TURN_BYTES,
    ChunkReader,
    FileStretch,
    RepeatCheck,
)
from forebay_proxy.cache.resident.digest_state import DigestState
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import FellBehind, OriginError, ShardChanged, WrongBytes
from forebay_proxy.core.shard import Pin, PinKind, Version
from forebay_proxy.server.http import body_writer
from forebay_proxy.transfer.buffers import MemorySegment, Share
from forebay_proxy.transfer.fetches import Fetch

A = "https://o/set/a.tar"
DATA = data_of(3 * SEGMENT)
LENGTH = SEGMENT + 10  # the last segment is ten bytes long
LAST = bytes(range(10))


async def stored(world: World) -> ChunkReader:
    world.origin.put(A, DATA)
    await world.get(A)
    await world.quiet()
    return ChunkReader(world.cache.parts, world.entry(A))


async def test_a_chunk_of_the_file_is_one_unit_at_most(tmp_path: Path) -> None:
    """And ends where it is told to."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        world.buffers.readers = Share(1000, smallest_bytes=100, largest_bytes=100)
        assert bytes(await chunks.read(1, SEGMENT, SEGMENT + 7, None)) == DATA[SEGMENT : SEGMENT + 7]
        assert bytes(await chunks.read(0, 0, SEGMENT, None)) == DATA[:100]


def fetch_of(world: World, index: int, size: int, *stored: int) -> Fetch:
    """One that has brought so much of a segment into the file."""
    fetch = Fetch(index * size, (index + 1) * size, 0.0)
    fetch.place = world.entry(A).stored.file
    fetch.advanced(fetch.end)
    fetch.stored.update(stored)
    return fetch


async def test_what_is_not_stored_yet_is_read_up_to_the_watermark(tmp_path: Path) -> None:
    """Behind it the file has a hole; a segment that was stored and left has nothing but that."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        await world.reclaimer.discard(world.entry(A), 1)
        fetch = fetch_of(world, 1, SEGMENT)
        fetch.advanced(SEGMENT + 100)
        assert len(await chunks.read(1, SEGMENT, 2 * SEGMENT, fetch)) == 100
        fetch.stored.add(1)
        with pytest.raises(FellBehind, match="found wrong, and left"):
            await chunks.read(1, SEGMENT, 2 * SEGMENT, fetch)


async def test_a_fault_found_while_a_chunk_is_read_withholds_it(tmp_path: Path) -> None:
    """The file may be another version's by then."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        world.entry(A).in_use.fault = ShardChanged(A, "412")
        with pytest.raises(ShardChanged):
            await chunks.read(0, 0, 100, None)


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
    "why", ["faulty", "given wrong bytes", "leaving", "gone", "doubtful", "failed", "another file", "not written", "stored and gone"]
)
async def test_what_must_not_be_read_is_not_sent(tmp_path: Path, why: str) -> None:
    """``read`` raises for it, or reads what is there."""
    async with large(tmp_path) as (world, chunks, sock):
        entry, fetch = world.entry(A), None
        checksum = entry.segments.sums[1]
        if why in ("failed", "another file", "not written", "stored and gone"):
            fetch = fetch_of(world, 1, LARGE)
        assert chunks.send_now(1, LARGE, LARGE + 1000, fetch, sock.fileno()) == 1000
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
            assert fetch is not None
            if why == "failed":
                fetch.error = OriginError(A, "no")
            elif why == "another file":
                fetch.place = MemorySegment(bytearray(LARGE), LARGE)
            elif why == "not written":
                fetch.advanced(LARGE + 999)
            else:
                fetch.stored.add(1)
                await world.reclaimer.discard(entry, 1)
        assert chunks.send_now(1, LARGE, LARGE + 1000, fetch, sock.fileno()) is None
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
            await chunks.read(1, SEGMENT, SEGMENT + 100, None)


async def test_what_a_failed_fetch_wrote_is_not_given(tmp_path: Path) -> None:
    """Its bytes are being given back."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        fetch = fetch_of(world, 0, SEGMENT)
        fetch.error = OriginError("a", "cut")
        with pytest.raises(OriginError, match="cut"):
            await chunks.read(0, 0, 100, fetch)


async def test_a_file_that_was_replaced_is_not_given(tmp_path: Path) -> None:
    """The fetch wrote into the one that is gone."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        fetch = fetch_of(world, 0, SEGMENT)
        fetch.place = object()
        with pytest.raises(FellBehind, match="directory was removed"):
            await chunks.read(0, 0, 100, fetch)


async def test_memory_is_read_up_to_the_watermark(tmp_path: Path) -> None:
    """As a copy, a unit at most; not once the version has a fault."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        fetch, memory = fetch_of(world, 1, SEGMENT), MemorySegment(bytearray(SEGMENT), SEGMENT)
        memory.write(SEGMENT, DATA[:1000])
        fetch.place = memory
        fetch.advanced(SEGMENT + 1000)
        chunk = await chunks.read(1, SEGMENT + 10, 2 * SEGMENT, fetch)
        memory.write(SEGMENT, bytes(1000))
        assert chunk == DATA[10:1000]
        world.buffers.readers = Share(1000, smallest_bytes=100, largest_bytes=100)
        assert len(await chunks.read(1, SEGMENT + 10, 2 * SEGMENT, fetch)) == 100
        world.entry(A).in_use.fault = ShardChanged(A, "412")
        with pytest.raises(ShardChanged):
            await chunks.read(1, SEGMENT, 2 * SEGMENT, fetch)


async def test_wrong_bytes_end_who_was_given_some(tmp_path: Path) -> None:
    """Nobody else: the segment is fetched anew for them."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        await chunks.read(1, SEGMENT, SEGMENT + 7, None)
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

    def segment_stored(self, entry: Entry, index: int, value: int) -> None:
        self.heard.append((index, value))

    async def compared(self, entry: Entry, index: int, fetch: Fetch) -> None:
        self.awaited.append(index)


def made(*, hashed: int = 2) -> tuple[Any, RepeatCheck]:
    """A check of an entry of which the first ``hashed`` segments were here before."""
    entry = Entry("k" * 64, shard_of("https://o/a.tar"), Version('etag:"1"', Pin(PinKind.ETAG, '"1"'), LENGTH), LAYOUT, ranged=True)
    entry.trust.digest_state = DigestState(None)
    entry.trust.digest_state.sums.extend([1] * hashed)
    gate: Any = Gate()
    return gate, RepeatCheck(gate, entry)


def fetching(*stored: int) -> Fetch:
    fetch = Fetch(0, LENGTH, 0.0)
    fetch.stored.update(stored)
    return fetch


@pytest.mark.parametrize("by", [fetching(), None])
def test_the_sum_of_a_whole_segment_is_compared(by: Fetch | None) -> None:
    """However it was cut into chunks; of what is passed through, too."""
    gate, check = made()
    check.expect(1, by, stored=False)
    for position, piece in ((SEGMENT, LAST[:4]), (SEGMENT + 4, LAST[4:])):
        check.add(1, position, piece)
    assert gate.heard == [(1, xxhash.xxh3_64_intdigest(LAST))]
    assert not check


@pytest.mark.parametrize(("by", "awaited"), [(fetching(), [0]), (None, [])])
async def test_one_read_from_its_middle_is_waited_for(by: Fetch | None, awaited: list[int]) -> None:
    """Nobody has its sum before it is stored; what is passed through nobody else has whole."""
    gate, check = made()
    check.expect(0, by, stored=False)
    assert not check.add(0, SEGMENT - 4, LAST[:4])
    assert (bool(check), gate.heard) == (True, [])
    await check.finish()
    assert (bool(check), gate.awaited) == (False, awaited)


def test_what_is_stored_was_compared() -> None:
    """By a fetch that goes on, or earlier."""
    gate, check = made()
    check.expect(1, fetching(1), stored=False)
    check.expect(1, None, stored=True)
    assert not check
    assert not check.add(1, SEGMENT, LAST)
    assert gate.heard == []


def test_what_was_never_here_is_not_compared() -> None:
    _, check = made(hashed=1)
    check.expect(1, fetching(), stored=False)
    assert not check


# Stretches


class Scripted:
    """Stands in for a ``ChunkReader``: what each sending comes to."""

    def __init__(self, *taken: int | Exception | None) -> None:
        self.segment = 3
        self._taken: Iterator[int | Exception | None] = iter(taken)
        self.asked: list[tuple[int, int, int]] = []

    def send_now(self, index: int, position: int, end: int, fetch: object, sock: int) -> int | None:
        self.asked.append((index, position, end))
        taken = next(self._taken)
        if isinstance(taken, Exception):
            raise taken
        return taken


def stretch_of(chunks: Scripted, moved: list[int], size: int = 2 * TURN_BYTES + 5) -> FileStretch:
    return FileStretch(
        cast(ChunkReader, chunks), 3, None, 100, 100 + size, moved=moved.append, inside=lambda: chunks.segment == 3, goes_on=True
    )


def test_a_stretch_is_sent_a_turn_at_a_time() -> None:
    """The loop's other readers have theirs between."""
    chunks, moved = Scripted(TURN_BYTES, TURN_BYTES, 5), list[int]()
    stretch = stretch_of(chunks, moved)
    while stretch:
        assert stretch.send(9)
    assert moved == [TURN_BYTES, TURN_BYTES, 5]
    assert chunks.asked[1] == (3, 100 + TURN_BYTES, 100 + 2 * TURN_BYTES)
    assert stretch.copied == 0


@pytest.mark.parametrize("taken", [0, 7])
def test_a_full_socket_is_given_a_small_chunk_next(taken: int) -> None:
    """With that the transport waits for room. The reader has moved by what was taken."""
    moved = list[int]()
    stretch = stretch_of(Scripted(taken), moved)
    assert not stretch.send(9)
    assert sum(moved) == taken
    assert len(stretch) == 2 * TURN_BYTES + 5 - taken
    assert stretch.copied == NUDGE_BYTES


def test_what_cannot_be_sent_is_read() -> None:
    """A unit of it: the disk is asked."""
    moved = list[int]()
    stretch = stretch_of(Scripted(None), moved)
    assert not stretch.send(9)
    assert moved == []
    assert stretch.copied == MOST_BYTES


def test_a_reader_that_rested_sends_nothing() -> None:
    """It has given its lease back: the segment may be a hole by now."""
    chunks = Scripted()
    stretch = stretch_of(chunks, [])
    chunks.segment = -1
    assert not stretch.send(9)
    assert chunks.asked == []


def test_a_client_that_left_is_the_writers_matter() -> None:
    """Nothing was taken."""
    moved = list[int]()
    with pytest.raises(ConnectionError):
        stretch_of(Scripted(BrokenPipeError()), moved).send(9)
    assert moved == []


def test_the_end_of_a_stretch_is_its_last_turn() -> None:
    """The writer keeps nothing back there: a longer turn would leave its rest corked."""
    assert body_writer._LAST_BYTES == TURN_BYTES
