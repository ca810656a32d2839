"""Server-sent events (``GET /v1/events``): one encoding for all who listen, made while somebody does.

A client gets the newest frame whenever it can take one; what it missed meanwhile it does not get. So nothing is kept for it but the frame
that it takes just now and a socket buffer, and one that takes none for ``PATIENCE_S`` is cut off.
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
MOST_LISTENERS = 256  # pages of a team; each has a connection and a socket buffer
PATIENCE_S = 10.0
BUFFER_BYTES = 64 * 1024  # in the kernel, not the megabyte of a reader of shards: a page that does not read must show soon


class EventStream:
    """``frame`` makes the bytes of the present moment. Not thread-safe: the event loop's only."""

    def __init__(
        self, frame: Callable[[], Awaitable[bytes]], *, every_s: float = EVERY_S, patience_s: float = PATIENCE_S, most: int = MOST_LISTENERS
    ) -> None:
        self._frame = frame
        self._every_s = every_s
        self._patience_s = patience_s
        self._most = most
        self._making: asyncio.Task[bytes] | None = None
        self._made: bytes | None = None  # the last frame, for who comes new
        self.listeners = 0

    def __repr__(self) -> str:
        return f"<EventStream {self.listeners} listeners>"

    async def answer(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        """Frames until either end leaves. Raises ``Busy``, ``ClientGone``."""
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
                frame = self._made if self._made is not None else await self._next()
                while True:
                    try:
                        async with asyncio.timeout(self._patience_s):
                            await response.write(frame)
                            await writer.drain()  # the kernel has all of it
                    except TimeoutError as error:
                        raise ClientGone(f"the page has read nothing for {self._patience_s:g} s") from error
                    frame = await self._next()
        finally:
            self.listeners -= 1
            if not self.listeners:
                self._made = None
                if self._making is not None:
                    self._making.cancel()
                    self._making = None
        return response

    async def _next(self) -> bytes:
        """The next frame; who comes while it is being made waits for the same one."""
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="page events")
        return await asyncio.shield(self._making)

    async def _make(self) -> bytes:
        try:
            if self._made is not None:
                await asyncio.sleep(self._every_s)
            self._made = await self._frame()
            return self._made
        finally:
            if self._making is asyncio.current_task():
                self._making = None
