"""A response body's way to its client: no copy of ours, nothing held back, and no short body that ends cleanly.

asyncio copies whatever the socket does not take at once (Python 3.11) or keeps a reference to it (3.12 and later). Neither will do here:
chunks are views of buffers their owner uses again. So each chunk goes from its buffer straight into the kernel with ``os.write``, and only
when the socket is full is a small piece of it left with the transport, to be told when there is room again. The transport's write limits
are 0 (see ``connection.py``): when its ``drain()`` returns, the kernel has everything. Measured against ``response.write`` of 1 MiB chunks
on two shared cores: equal throughput (about 3 GB/s at best, nearly all of it the kernel's copy), a fifth more for chunked bodies, and
29 instead of 90 MB of memory with 64 stalled readers.

What lies in a file goes from there to the socket (``send_stretch``), and the transport hears nothing of it. When the socket is full, the
next piece is a small chunk, and that one waits for room as above.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from aiohttp.abc import AbstractStreamWriter

from forebay_proxy.cache.readers.chunk_reader import FileStretch
from forebay_proxy.core.errors import ClientGone

__all__ = ["BodyWriter", "cut"]

# What is left with the transport when the socket is full: it comes back once the kernel has sent a third of its buffer (hundreds of
# kilobytes), so the size of this piece matters only in that it is copied.
_NUDGE_BYTES = 16 * 1024
_LAST_BYTES = 2 * 2**20  # of a stretch, its last turn: behind them comes what may not be there yet
# For pages of files, which cost no copy: the more of them a socket holds, the more of the kernel's sending is done where the client reads
# (measured with 64 readers: a fifth less processor time than with half of it; twice as much takes it further down, and rates with it).
# Where ``net.core.wmem_max`` is smaller, the kernel takes that.
_STRETCH_BUFFER_BYTES = 2 * 2**20
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s


class BodyWriter:
    """Writes one response body. ``chunked``: with HTTP/1.1 chunk framing, except the last chunk, which is the caller's to send."""

    def __init__(self, writer: AbstractStreamWriter, *, chunked: bool) -> None:
        self._writer = writer
        self._chunked = chunked
        self._corked = False
        self._wide = False  # the socket's buffer is one for stretches

    async def send(self, data: bytes | memoryview) -> None:
        """Return when the kernel has all of ``data``; its buffer may then be used again. Raises ``ClientGone``."""
        view = memoryview(data).cast("B")
        if not view:  # as a chunk it would end the body
            return
        waited = await self._settle()
        if self._chunked:
            waited |= await self._push(memoryview(b"%x\r\n" % len(view)))
        waited |= await self._push(view)
        if self._chunked:
            waited |= await self._push(memoryview(b"\r\n"))
        if not waited:
            await asyncio.sleep(0)  # a fast client with warm bytes must not keep the loop for itself

    async def send_stretch(self, stretch: FileStretch) -> None:
        """Return when the kernel has all of ``stretch``, or takes no more of it: then a chunk comes next. Raises ``ClientGone``."""
        await self._settle()
        while stretch:
            transport = self._transport()
            sock = transport.get_extra_info("socket")
            self._widen(sock)
            self._cork(sock, corked=stretch.goes_on and len(stretch) > _LAST_BYTES)
            try:
                if not stretch.send(sock.fileno()):
                    return
            except ConnectionError as error:
                transport.abort()
                raise ClientGone("the client closed its connection") from error
            await asyncio.sleep(0)

    def _widen(self, sock: socket.socket) -> None:
        """It stays so for what else goes over the connection, which is the same client's."""
        if not self._wide:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _STRETCH_BUFFER_BYTES)
            self._wide = True

    def _cork(self, sock: socket.socket, *, corked: bool) -> None:
        """Whether the kernel keeps what does not fill a packet: the next bytes do, at once. The kernel waits 0.2 s for them at most.

        Without it each stretch ends with a small packet that wakes the client: a quarter more processor time with 64 readers.
        """
        if corked is not self._corked and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, corked)
            self._corked = corked

    def close(self) -> None:
        """What is left goes out."""
        transport = self._writer.transport
        if self._corked and transport is not None and not transport.is_closing():
            self._cork(transport.get_extra_info("socket"), corked=False)

    async def _settle(self) -> bool:
        """Let the transport's own buffer (the header, if the socket was full) go first."""
        if not self._transport().get_write_buffer_size():
            return False
        await self._drain()
        return True

    async def _push(self, view: memoryview) -> bool:
        """Write all of ``view``; True if the socket was full in between."""
        waited = False
        while view := view[self._write_now(view) :]:
            self._transport().write(view[:_NUDGE_BYTES])
            view = view[_NUDGE_BYTES:]
            await self._drain()
            waited = True
        return waited

    def _write_now(self, view: memoryview) -> int:
        """How many bytes the socket takes at once."""
        transport = self._transport()
        try:
            return os.write(transport.get_extra_info("socket").fileno(), view)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            transport.abort()
            raise ClientGone("the client closed its connection") from error

    async def _drain(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ClientGone("the client closed its connection") from error

    def _transport(self) -> asyncio.WriteTransport:
        transport: asyncio.WriteTransport | None = self._writer.transport
        if transport is None or transport.is_closing():
            raise ClientGone("the client closed its connection")
        return transport


def cut(transport: asyncio.BaseTransport | None) -> None:
    """End a connection so that what it carried cannot be taken for complete: a reset over TCP, an end in the middle over a unix socket."""
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock.family != socket.AF_UNIX and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    assert isinstance(transport, asyncio.WriteTransport)
    transport.abort()
