"""Chunks out of the file or the window, and when they must not be given."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, small_segments

from forebay_proxy.cache.readers.chunk_reader import ChunkReader
from forebay_proxy.core.errors import FellBehind, OriginError, WrongBytes
from forebay_proxy.transfer.flights import Flight

A = "https://o/set/a.tar"
DATA = data_of(3 * SEGMENT)


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
