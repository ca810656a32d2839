"""Server-sent events (``GET /v1/events``): each frame is encoded once for all clients, and only while there are clients.

A client gets the newest frame when it can take one; it does not get the frames it missed. So a client costs one frame and a socket buffer.
The sidecar closes a client that has read nothing for ``PATIENCE_S``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from forebay_proxy.core.errors import ClientGone
from forebay_proxy.server.http.framing import Busy
from forebay_proxy.server.http.problem import SERVER
from forebay_proxy.server.http.request_record import RequestRecord

__all__ = ["MOST_LISTENERS", "EventStream"]

EVERY_S = 2.0  # as often as a person can read
MOST_LISTENERS = 256  # the status pages of a team; each has a connection and a socket buffer
PATIENCE_S = 10.0
BUFFER_BYTES = 64 * 1024  # in the kernel; a shard's reader gets a megabyte, but a status page that does not read must be noticed soon


class EventStream:
    """Streams what ``frame`` returns. Not thread-safe: used on the event loop alone."""

    def __init__(
        self, frame: Callable[[], Awaitable[bytes]], *, every_s: float = EVERY_S, patience_s: float = PATIENCE_S, most: int = MOST_LISTENERS
    ) -> None:
        self._frame = frame
        self._every_s = every_s
        self._patience_s = patience_s
        self._most = most
        self._making = asyncio.Lock()
        self._made: bytes | None = None  # the last frame, for a client that connects
        self._due_s = 0.0  # when the next frame is due, on the event loop's clock
        self.listeners = 0

    def __repr__(self) -> str:
        return f"<EventStream {self.listeners} listeners>"

    async def answer(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """Send frames until the client or the sidecar ends. Raises ``Busy``, ``ClientGone``."""
        if self.listeners >= self._most:
            step = "close some, or ask GET /v1/status as often as is needed"
            raise Busy(f"{self.listeners} pages listen already", next_step=step, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "Server": SERVER})
        response.force_close()
        self.listeners += 1
        try:
            record.endless()
            record.answered(response.status)
            writer = await response.prepare(request)
            if request.method != "HEAD":
                assert writer is not None
                assert request.transport is not None
                request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
                frame = self._made if self._made is not None else await self._next(None)
                while True:
                    try:
                        async with asyncio.timeout(self._patience_s):
                            await response.write(frame)
                            await writer.drain()  # returns when the kernel has all of it
                    except TimeoutError as error:
                        raise ClientGone(f"the page has read nothing for {self._patience_s:g} s") from error
                    frame = await self._next(frame)
        finally:
            self.listeners -= 1
            if not self.listeners:
                self._made = None
        return response

    async def _next(self, shown: bytes | None) -> bytes:
        """The frame after ``shown``. The first client that asks makes it, the others wait. If that client leaves, the next one makes it."""
        async with self._making:
            if self._made is None or self._made is shown:
                if self._made is not None:
                    await asyncio.sleep(self._due_s - asyncio.get_running_loop().time())
                self._made = await self._frame()
                self._due_s = asyncio.get_running_loop().time() + self._every_s
            return self._made
