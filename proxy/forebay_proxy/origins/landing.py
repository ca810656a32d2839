"""The body of an answer, received by the kernel's hand straight into buffers of ours: one piece, and one wake of its taker, for two MiB.

aiohttp makes an object of every 64 to 256 KiB (of every 16 KiB over TLS), copies it twice and wakes a task for it. So once the head of an
answer is read, and says how many bytes follow, its transport is lent to a ``Landing`` until that many have come, and is aiohttp's again
then: dialling, TLS, proxies, heads, errors and keep-alive stay with it. Bytes beyond the promised ones are never received here; they make
aiohttp's connection unfit for another request (``_GuardedConnector`` looks).

The private names of aiohttp that this needs are in ``Landing._return_transport``, and a test names them.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

import aiohttp
from aiohttp.client_proto import ResponseHandler

__all__ = ["LEAST_BYTES", "PIECE_BYTES", "Landing", "LandingBuffers"]

LEAST_BYTES = 256 * 1024  # of a body: a smaller one has mostly come with its head
PIECE_BYTES = 2**21  # what is done once a piece costs as much as its bytes do; twice as much gains nothing more
KEPT = 12  # pieces: four fetches, each with one that is received, one that waits and one that is written
WAIT_S = 0.005  # so long a piece that is not full is kept from a taker who waits for it: an origin that is slow gives small pieces


class LandingBuffers:
    """Memory for pieces, used again once nobody has a view of it: to touch new memory costs more than to receive into it (tried: 0.27
    against 0.14 s a GB)."""

    def __init__(self) -> None:
        self._kept = [bytearray(1)]
        self._unused = self._references(0)  # of one that only the list has, as this Python counts
        self._kept.clear()

    def __repr__(self) -> str:
        return f"<LandingBuffers {sum(self._references(at) > self._unused for at in range(len(self._kept)))} of {len(self._kept)} in use>"

    def take(self, size: int) -> memoryview:
        """``size`` bytes, ``PIECE_BYTES`` at most, of which nobody has another view."""
        for at in range(len(self._kept)):
            if self._references(at) == self._unused:
                return memoryview(self._kept[at])[:size]
        if len(self._kept) >= KEPT or size < PIECE_BYTES // 2:
            return memoryview(bytearray(size))
        self._kept.append(bytearray(PIECE_BYTES))
        return memoryview(self._kept[-1])[:size]

    def _references(self, at: int) -> int:
        """A view, and each slice of one, counts as one that its buffer has, whoever holds it."""
        return sys.getrefcount(self._kept[at])


class Landing(asyncio.BufferedProtocol):
    """The bytes of one body, in pieces; to be used where a ``StreamReader`` is. Not thread-safe: the event loop's only."""

    def __init__(
        self, content: aiohttp.StreamReader, protocol: ResponseHandler, transport: asyncio.Transport, size: int, buffers: LandingBuffers
    ) -> None:
        self._content = content  # aiohttp's side of the connection
        self._protocol = protocol
        self._transport = transport
        self._buffers = buffers
        self._left = size  # bytes that are still to come
        self._piece_bytes = PIECE_BYTES
        self._filling = memoryview(b"")
        self._filled = 0
        self._ready: deque[bytes | memoryview] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._begun = self._lent = self._given = self._whole = False
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Landing {self._left} bytes to come, {len(self._ready)} pieces ready>"

    @classmethod
    def of(cls, response: aiohttp.ClientResponse, size: int | None, buffers: LandingBuffers) -> Landing | None:
        """For a body of ``size`` bytes whose head has just been read: nothing more is received until the first piece is asked for.

        None where the body is short, all here, of unknown length, or not told by Content-Length alone (of a 206 in chunked coding the range
        tells the length too, and what comes has the heads of chunks in it), and where its transport cannot be lent.
        """
        connection, content, headers = response.connection, response.content, response.headers
        if size is None or headers.get("Content-Length") != str(size) or "Transfer-Encoding" in headers or size < LEAST_BYTES:
            return None
        if connection is None or content.is_eof() or content.exception() is not None:
            return None
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None or not hasattr(transport, "set_protocol") or transport.get_protocol() is not protocol:
            return None
        transport.pause_reading()
        return cls(content, protocol, transport, size, buffers)

    # The taker's side, as a StreamReader has it

    def at_eof(self) -> bool:
        return self._whole and not self._ready

    def set_exception(self, exc: BaseException) -> None:
        """What has come is given out yet; then ``exc`` is raised."""
        if self._error is None and not self._whole:
            self._error = exc
            self._wake()

    def narrow(self, size: int) -> None:
        """Pieces of at most ``size`` bytes, of which no more than one waits."""
        self._piece_bytes = min(PIECE_BYTES, size)

    async def readchunk(self) -> tuple[bytes | memoryview, bool]:
        """The next piece, b"" at the end; raises what ended the body early."""
        self._begin()
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._whole:
                return b"", True
            if self._filled:
                self._soon()
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        piece = self._ready.popleft()
        if self._lent and not self._ready:
            self._transport.resume_reading()
        return piece, True

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        while piece := self._content.read_nowait():  # aiohttp has it already; its parser keeps none of it back
            self._ready.append(piece)
            self._left -= len(piece)
        if self._left:
            self._lent = True
            self._transport.set_protocol(self)
        else:  # aiohttp's parser had all of it, and the connection is kept already
            self._whole = True
        self._transport.resume_reading()

    def close(self) -> None:
        """The taker leaves; what has not come by now does not come."""
        if self._timer is not None:
            self._timer.cancel()
        if self._lent:
            self._lent = False
            self._transport.set_protocol(self._protocol)  # in the middle of the body: the connection can only be closed
        self._ready.clear()

    # The transport's side

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._filling:
            self._filling = self._buffers.take(min(self._piece_bytes, self._left))
        return self._filling[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._left -= nbytes
        if self._filled == len(self._filling) or self._filled >= self._piece_bytes:
            self._give()
        elif self._waiter is not None and self._given:
            self._soon()
        elif self._waiter is not None:
            self._give()  # the first bytes are a reader's time to first byte
        if not self._left:
            self._return_transport()
        elif self._ready:
            self._transport.pause_reading()

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(WAIT_S, self._give)

    def _give(self) -> None:
        """What has been received is a piece."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._filled:
            self._given = True
            self._ready.append(self._filling[: self._filled])
            self._filling, self._filled = self._filling[self._filled :], 0
        self._wake()

    def _return_transport(self) -> None:
        """The body is at its end: aiohttp's parser, which waits for it, goes, and the connection may be kept.

        Whatever comes from now on lies in the protocol's tail, and so ends the connection: what TLS has decrypted by now comes before
        ``_end``, as the loop runs its callbacks in order.
        """
        self._lent = False
        self._protocol._parser = self._protocol._payload = None
        self._transport.set_protocol(self._protocol)
        self._transport.resume_reading()
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._content.feed_eof()  # gives the connection back
        self._whole = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def eof_received(self) -> None:
        """The transport closes itself then, and says so by ``connection_lost``."""

    def connection_lost(self, error: Exception | None) -> None:
        if self._lent:
            self._lent = False
            self._protocol.connection_lost(error)
            lost = self._content.exception() or aiohttp.ClientPayloadError("Response payload is not completed")
            self._give()
            self.set_exception(lost)  # what aiohttp says of a body that breaks off so
