"""The way of a body to its client: when send() returns, nothing is left on our side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from forebay_proxy.core.errors import ClientGone
from forebay_proxy.server.http.body_writer import BodyWriter, cut
from forebay_proxy.server.http.connection import ConnectionServer

MIB = 1 << 20
Handle = Callable[[web.BaseRequest, web.StreamResponse], Awaitable[None]]


@asynccontextmanager
async def served(handle: Handle, unix: Path | None = None) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client whose one request ``handle`` answers, over a unix socket of that path or over TCP."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await handle(request, response)
        return response

    made, loop = ConnectionServer(answer), asyncio.get_running_loop()
    if unix is None:
        server = await loop.create_server(made, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1 << 16)
    else:
        server = await loop.create_unix_server(made, unix)
        reader, writer = await asyncio.open_unix_connection(unix, limit=1 << 16)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        yield reader, writer
    finally:
        writer.transport.abort()
        server.close()
        await made.shutdown(0.1)


@pytest.mark.parametrize("chunked", [True, False])
async def test_what_is_sent_is_with_the_kernel(chunked: bool) -> None:
    """The transport holds no byte, and so no reference to a buffer that is about to be used again."""
    left: list[int] = []
    done = asyncio.Event()

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        assert request.transport is not None
        body_writer = BodyWriter(request.writer, chunked=chunked)
        for _ in range(16):
            await body_writer.send(bytes(MIB))
            left.append(request.transport.get_write_buffer_size())
        done.set()

    async with served(handle) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(left) < 16  # the socket is full: from here on each send has to wait
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        while await reader.read(1 << 16):
            pass
        await done.wait()
    assert left == [0] * 16


async def test_an_empty_chunk_does_not_end_a_chunked_body() -> None:
    """Its length would be the end mark."""

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        body_writer = BodyWriter(request.writer, chunked=True)
        for data in (b"", b"abc", memoryview(b"")):
            await body_writer.send(data)

    async with served(handle) as (reader, _):
        received = await reader.read(-1)
    assert received.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")


async def tick(turns: list[int]) -> None:
    """One for each turn of the loop."""
    while True:
        turns.append(1)
        await asyncio.sleep(0)


async def test_others_get_a_turn_after_each_chunk() -> None:
    """A client that takes everything at once does not keep the loop."""
    turns: list[int] = []

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        body_writer = BodyWriter(request.writer, chunked=False)
        ticking = asyncio.create_task(tick(turns))
        for _ in range(10):
            await body_writer.send(b"x")
        ticking.cancel()

    async with served(handle) as (reader, _):
        await reader.read(-1)
    assert len(turns) >= 9


@pytest.mark.parametrize("how", ["abort", "cut"])
async def test_a_closed_connection_is_the_clients_leaving(how: str) -> None:
    """Whoever closed it: no byte goes to a descriptor that may be another's by now."""
    caught = asyncio.get_running_loop().create_future()

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        body_writer = BodyWriter(request.writer, chunked=False)
        cut(request.transport) if how == "cut" else request.transport.abort()  # type: ignore[union-attr]
        try:
            await body_writer.send(b"x")
        except ClientGone as error:
            caught.set_result(error)

    async with served(handle):
        assert isinstance(await asyncio.wait_for(caught, 60), ClientGone)
