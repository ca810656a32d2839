"""One origin body into one segment writer: is it about the version being fetched, which of its bytes are needed, and is its end a real end.

Nothing is put anywhere before the answer was compared with the version it must be of, so bytes of two versions never meet.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from forebay_proxy.cache.fill.segment_writer import SegmentWriter
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import OriginLied, ShardChanged, TruncatedShard
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginBytes, OriginOddity
from forebay_proxy.core.shard import ByteRange
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.transfer.bandwidth import BandwidthEstimate, ConnectionRate
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.flights import Flight
from forebay_proxy.transfer.limiter import DEMAND, Slot
from forebay_proxy.wire.tar.end_marker import EndMarker

__all__ = ["BodyCopy", "Stopwatch", "check"]


def check(entry: Entry, body: OriginBody, want: ByteRange | None) -> None:
    """The answer is about the version being fetched, and its bytes can be told apart. Raises ``ShardChanged``, or ``OriginLied``.

    Where the origin names its versions, the same name with another length or encoding is a lie. Where it does not, they are all there is
    to tell two versions apart.
    """
    mine, theirs = entry.version, body.version
    if mine.encoding != theirs.encoding and mine.identity:
        was, now = mine.encoding or "identity", theirs.encoding or "identity"
        raise OriginLied(entry.name, f"the origin now sends it encoded as {now}, it was {was}", of_version=True)
    if mine.identity and not theirs.identity:
        raise OriginLied(entry.name, f"the origin does not say of which version this is, it was {mine.identity}", of_version=True)
    if mine.identity != theirs.identity:
        raise ShardChanged(entry.name, f"the origin now has version {theirs.identity or 'without identity'}, this one is {mine.identity}")
    if mine.length is not None and theirs.length is not None and mine.length != theirs.length:
        cause = f"the origin now says that it has {theirs.length} bytes, it said {mine.length}"
        raise OriginLied(entry.name, cause, of_version=True) if mine.identity else ShardChanged(entry.name, cause)
    if mine.encoding != theirs.encoding:
        raise ShardChanged(entry.name, "the origin now sends it in another encoding")
    # It honoured Range once, or an earlier process had its body as one stream. Same version and length: what is needed is taken of it.
    if want is not None and not body.ranged and theirs.length is None:
        raise OriginLied(entry.name, f"asked for {want.header()}, the origin answered with a body of unknown length", of_version=True)


class Stopwatch:
    """Times one body, from its headers to its last byte, for the origin's pace and its pipe."""

    def __init__(
        self, connection_rate: ConnectionRate, bandwidth: BandwidthEstimate, company: Callable[[], int], clock: Callable[[], float]
    ) -> None:
        """``company``: how many requests share the origin now."""
        self._pace = connection_rate
        self._pipe = bandwidth
        self._company_now = company
        self._clock = clock
        self._began = clock()
        self._company = company()
        self._size = 0

    def came(self, size: int) -> None:
        self._size += size
        self._pipe.came(size, self._clock())

    def ended(self) -> None:
        self._pace.measured(self._size, self._clock() - self._began, max(self._company, self._company_now()))


class BodyCopy:
    """Lands the bytes of one answer in one flight."""

    def __init__(
        self, entry: Entry, flight: Flight, writer: SegmentWriter, body: OriginBody, *, origin: str, buffers: BufferBudget, events: Events
    ) -> None:
        self._entry = entry
        self._flight = flight
        self._writer = writer
        self._body = body
        self._origin = origin
        self._buffers = buffers
        self._events = events
        # A whole body where a range was asked for: what came before is passed over, what lies beyond is left.
        self._whole = entry.ranged and not body.ranged
        self._skip = writer.received - body.first
        self._tail = EndMarker() if flight.end is None and not body.framed else None

    async def run(self, slot: Slot, stopwatch: Stopwatch) -> None:
        """Land the bytes; at their end the flight is complete.

        Raises ``TruncatedShard`` for a body that ended too early, or whose end cannot be told from a cut; ``OriginLied`` for one that
        begins too late or goes on too long.
        """
        self._writer.digests_offered(self._body.digests)
        if self._skip < 0:
            raise OriginLied(self._entry.name, f"the body starts at {self._body.first}, {self._writer.received} is needed")
        if self._whole:
            self._events.emit(OriginOddity(self._origin, "whole-for-range"))
        with self._buffers.fetches.held():
            share = self._buffers.windows if self._writer.bypassing else self._buffers.fetches
            self._body.narrow(share.unit_bytes)
            async with aclosing(self._needed(self._body.chunks, stopwatch)) as needed:
                async for chunk in needed:
                    if self._writer.bypassing:
                        slot.leave()
                        self._body.narrow(self._buffers.windows.unit_bytes)
                    await self._writer.put(chunk)
                    if self._whole and self._writer.complete:
                        break
        await self._writer.flush()
        await self._end()

    async def _needed(self, chunks: AsyncIterator[bytes | memoryview], stopwatch: Stopwatch) -> AsyncGenerator[bytes | memoryview, None]:
        """The bytes from the next missing one to the flight's end."""
        position, end = self._writer.received, self._flight.end
        kind = "demand" if self._flight.need < DEMAND else "prefetch"
        async for chunk in chunks:
            stopwatch.came(len(chunk))
            self._events.emit(OriginBytes(self._origin, len(chunk), kind))
            if self._tail is not None:
                self._tail.feed(chunk)
            passed = min(self._skip, len(chunk))
            self._skip -= passed
            needed = chunk[passed:] if passed else chunk
            position += len(needed)
            if end is not None and position > end:
                if not self._whole:
                    raise OriginLied(self._entry.name, f"more bytes came than the {end} promised")
                needed = needed[: len(needed) - (position - end)]
                position = end
            if position == end:
                stopwatch.ended()
            yield needed

    async def _end(self) -> None:
        writer, flight, name = self._writer, self._flight, self._entry.name
        if flight.end is not None:
            if not writer.complete:
                raise TruncatedShard(name, f"the body ended at byte {writer.received} of {flight.end}")
            return
        if not self._body.framed and not (self._tail is not None and self._tail.seen):
            raise TruncatedShard(
                name,
                f"the connection closed after {writer.received} bytes, with neither a length nor a tar end marker: that may be a cut",
                next_step="serve the shard with a Content-Length",
            )
        await writer.finish(writer.received)
