"""A stretch of a file: sent a turn at a time, as far as the socket takes it, and not at all once the reader holds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from forebay_proxy.cache.readers.file_stretch import MOST_BYTES, NUDGE_BYTES, TURN_BYTES, FileStretch

from forebay_proxy.cache.readers.chunk_reader import ChunkReader
from forebay_proxy.cache.readers.reader_lease import ReaderPlace
from forebay_proxy.server.http import body_writer


class Scripted:
    """Stands in for a ``ChunkReader``: what each sending comes to."""

    def __init__(self, *taken: int | Exception | None) -> None:
        self._taken: Iterator[int | Exception | None] = iter(taken)
        self.asked: list[tuple[int, int, int]] = []

    def send_now(self, index: int, position: int, end: int, flight: object, sock: int) -> int | None:
        self.asked.append((index, position, end))
        taken = next(self._taken)
        if isinstance(taken, Exception):
            raise taken
        return taken


def stretch_of(chunks: Scripted, moved: list[int], place: ReaderPlace | None = None, size: int = 2 * TURN_BYTES + 5) -> FileStretch:
    place = place or ReaderPlace(segment=3)
    return FileStretch(cast(ChunkReader, chunks), place, None, 100, 100 + size, moved.append, goes_on=True)


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
    chunks, place = Scripted(), ReaderPlace(segment=3)
    stretch = stretch_of(chunks, [], place)
    place.segment = -1
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
