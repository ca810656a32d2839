"""Bytes of a shard that its client is sent from the file: where they lie, and one sending of as many as the socket takes.

A reader gives stretches between its chunks. The first bytes of a body are a chunk, because as long as no header is out, what the disk does
not give can still come from elsewhere; so are a few bytes whenever the socket is full, with which the transport waits for room; and so is
what is not in memory, which a thread reads.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay_proxy.cache.readers.chunk_reader import ChunkReader
from forebay_proxy.cache.readers.reader_lease import ReaderPlace
from forebay_proxy.transfer.flights import Flight

__all__ = ["FIRST_BYTES", "LEAST_BYTES", "MOST_BYTES", "TURN_BYTES", "FileStretch"]

MOST_BYTES = 2**20  # copied in one turn of the loop, while the others wait
# Sent in one turn: half a millisecond. Fewer cost more looks and turns a byte; more, and the first byte of 64 readers comes a third later.
TURN_BYTES = 2 * 2**20
LEAST_BYTES = 64 * 1024  # fewer are copied as fast as looked for
FIRST_BYTES = 64 * 1024
NUDGE_BYTES = 16 * 1024  # as ``body_writer`` leaves with the transport


class FileStretch:
    """Bytes of one segment which lie in the file, sent turn by turn. Not thread-safe: the event loop's only."""

    __slots__ = ("_chunk_reader", "_flight", "_index", "_moved", "_place", "copied", "end", "goes_on", "position")

    def __init__(
        self, chunk_reader: ChunkReader, place: ReaderPlace, flight: Flight | None, position: int, end: int, moved: Callable[[int], None],
        *, goes_on: bool,
    ) -> None:  # fmt: skip
        """``position`` to ``end`` of the segment in which ``place`` is; ``moved`` is told what was sent. ``goes_on``: the rest of the
        segment is here too.
        """
        self.position = position
        self.end = end
        self.goes_on = goes_on
        self.copied = 0  # set where no more can be sent now: how many of the bytes that come next are to be copied, at most
        self._chunk_reader = chunk_reader
        self._place = place
        self._index = place.segment
        self._flight = flight
        self._moved = moved

    def __repr__(self) -> str:
        return f"<FileStretch {self.position}-{self.end}>"

    def __len__(self) -> int:
        """How many bytes are left to send."""
        return self.end - self.position

    def send(self, sock: int) -> bool:
        """Have the socket take what it takes at once, a turn's worth at most; whether all of that was taken. Raises ConnectionError."""
        end, sent = min(self.end, self.position + TURN_BYTES), None
        if self._place.segment == self._index:  # else the reader has rested since, and holds nothing
            sent = self._chunk_reader.send_now(self._index, self.position, end, self._flight, sock)
        if sent:
            self.position += sent
            self._moved(sent)
        if self.position < end:
            self.copied = MOST_BYTES if sent is None else NUDGE_BYTES
        return not self.copied
