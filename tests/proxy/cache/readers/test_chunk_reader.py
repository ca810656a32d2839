"""Chunks out of the file or the window, and when they must not be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xxhash
from support.house import SEGMENT, World, building, data_of, shard_of, small_segments

from forebay_proxy.cache.readers.chunk_reader import ChunkReader, RepeatCheck
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import FellBehind, OriginError, WrongBytes
from forebay_proxy.core.shard import Pin, PinKind, Version
from forebay_proxy.transfer.flights import Flight

A = "https://o/set/a.tar"
DATA = data_of(3 * SEGMENT)
LENGTH = SEGMENT + 10  # the last segment is ten bytes long
LAST = bytes(range(10))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


async def stored(world: World) -> ChunkReader:
    world.origin.put(A, DATA)
    await world.get(A)
    await world.quiet()
    return ChunkReader(world.cache, world.entry(A))


async def test_a_chunk_of_the_file_is_one_unit_at_most(tmp_path: Path) -> None:
    """And ends where it is told to."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        unit = world.cache.buffers.readers.unit_bytes
        assert bytes(await chunks.from_file(1, SEGMENT, SEGMENT + 7, None)) == DATA[SEGMENT : SEGMENT + 7]
        whole = bytes(await chunks.from_file(0, 0, SEGMENT, None))
        assert whole == DATA[: min(unit, SEGMENT)]


async def test_one_buffer_serves_all_chunks(tmp_path: Path) -> None:
    """A chunk is used up when the next is asked for."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        first = await chunks.from_file(0, 0, 100, None)
        await chunks.from_file(1, SEGMENT, SEGMENT + 100, None)
        assert bytes(first) == DATA[SEGMENT : SEGMENT + 100]


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
        flight.stored_end, flight.file = SEGMENT, world.entry(A).stored.file
        flight.error = OriginError("a", "cut")
        with pytest.raises(OriginError, match="cut"):
            await chunks.from_file(0, 0, 100, flight)


async def test_a_file_that_was_replaced_is_not_given(tmp_path: Path) -> None:
    """The flight wrote into the one that is gone."""
    async with building(tmp_path / "c") as world:
        chunks = await stored(world)
        flight = Flight(0, SEGMENT, 0.0)
        flight.stored_end, flight.file = SEGMENT, object()
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
    """Knows all segments from before, and hears what is compared."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.awaited: list[int] = []

    def knows(self, entry: Entry, index: int) -> bool:
        return True

    def came_again(self, entry: Entry, index: int, value: int) -> None:
        self.heard.append((index, value))

    async def compared(self, entry: Entry, index: int, flight: Flight) -> None:
        self.awaited.append(index)


def made() -> tuple[Any, RepeatCheck]:
    entry = Entry("k" * 64, shard_of("https://o/a.tar"), Version('etag:"1"', Pin(PinKind.ETAG, '"1"'), LENGTH), ranged=True)
    gate: Any = Gate()
    return gate, RepeatCheck(gate, entry)


def flight(*landed: int) -> Flight:
    flying = Flight(0, LENGTH, 0.0)
    flying.stored.update(landed)
    return flying


def test_the_sum_of_a_whole_segment_is_compared() -> None:
    """However it was cut into chunks."""
    gate, check = made()
    check.expect(1, flight())
    assert [check.add(1, SEGMENT, LAST[:4]), check.add(1, SEGMENT + 4, LAST[4:])] == [False, True]
    assert gate.heard == [(1, xxhash.xxh3_64_intdigest(LAST))]
    assert not check


async def test_one_read_from_its_middle_is_waited_for() -> None:
    """Nobody has its sum before it has landed."""
    gate, check = made()
    check.expect(1, flight())
    assert not check.add(1, SEGMENT + 4, LAST[4:])
    assert (bool(check), gate.heard) == (True, [])
    await check.finish()
    assert (bool(check), gate.awaited) == (False, [1])


def test_what_has_landed_was_compared() -> None:
    """And so was what is read from the disk."""
    gate, check = made()
    check.expect(1, flight(1))
    check.expect(1, None)
    assert not check
    assert not check.add(1, SEGMENT, LAST)
    assert gate.heard == []


def test_what_was_never_here_is_not_compared(monkeypatch: Any) -> None:
    gate, check = made()
    monkeypatch.setattr(gate, "knows", lambda entry, index: False)
    check.expect(1, flight())
    assert not check
