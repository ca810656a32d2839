"""The way of a body to its client: when send() returns, nothing is left on our side."""

from __future__ import annotations

import asyncio
import os
import socket
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


class Broken:
    """A stretch whose client leaves while it is sent."""

    goes_on = False

    def __len__(self) -> int:
        return 10

    def send(self, sock: int) -> bool:
        raise BrokenPipeError


@pytest.mark.parametrize("how", ["abort", "cut", "breaks in a stretch"])
async def test_a_closed_connection_is_the_clients_leaving(how: str) -> None:
    """Whoever closed it: no byte goes to a descriptor that may be another's by now. One that breaks is closed at once."""
    caught = asyncio.get_running_loop().create_future()

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        body_writer, transport = BodyWriter(request.writer, chunked=False), request.transport
        assert transport is not None
        if how == "abort":
            transport.abort()
        elif how == "cut":
            cut(transport)
        try:
            await (body_writer.send(b"x") if how in ("abort", "cut") else body_writer.send_stretch(Broken()))
        except ClientGone as error:
            assert transport.is_closing()
            caught.set_result(error)

    async with served(handle):
        assert isinstance(await asyncio.wait_for(caught, 60), ClientGone)


class FileOf:
    """A stretch of a real file of ``size`` bytes, sent in turns of ``turn``."""

    def __init__(self, path: Path, size: int, *, turn: int = MIB, goes_on: bool = False) -> None:
        self.data = os.urandom(size)
        path.write_bytes(self.data)
        self.goes_on = goes_on
        self.position = 0
        self._fd, self._turn = os.open(path, os.O_RDONLY), turn
        self.corked: list[int] = []

    def __len__(self) -> int:
        return len(self.data) - self.position

    def send(self, sock: int) -> bool:
        with socket.socket(fileno=os.dup(sock)) as copy:
            if copy.family != socket.AF_UNIX:
                self.corked.append(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK))
        end = min(self.position + self._turn, len(self.data))
        try:
            self.position += os.sendfile(sock, self._fd, self.position, end - self.position)
        except BlockingIOError:
            return False
        return self.position == end


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_a_stretch_goes_from_its_file_to_the_client(tmp_path: Path, family: str) -> None:
    """As far as the socket takes it; the transport holds nothing of it, and a chunk behind it comes behind it."""
    stretch = FileOf(tmp_path / "file", 20 * MIB)
    stopped = asyncio.get_running_loop().create_future()

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        assert request.transport is not None
        body_writer = BodyWriter(request.writer, chunked=False)
        while stretch:
            await body_writer.send_stretch(stretch)
            if stretch:
                if not stopped.done():
                    stopped.set_result((stretch.position, request.transport.get_write_buffer_size()))
                chunk = stretch.data[stretch.position :][: 16 * 1024]
                await body_writer.send(chunk)
                stretch.position += len(chunk)
        body_writer.close()

    async with served(handle, tmp_path / "socket" if family == "unix" else None) as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        position, held = await asyncio.wait_for(stopped, 60)
        assert 0 < position < 20 * MIB
        assert held == 0
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = await reader.read(-1)
    assert received.partition(b"\r\n\r\n")[2].removesuffix(b"0\r\n\r\n") == stretch.data


async def test_a_stretch_that_goes_on_is_corked_and_its_end_is_not(tmp_path: Path) -> None:
    """Small packets wait for what follows at once, and for nothing else: not for what may have to be fetched, nor for another answer."""
    left: list[int] = []

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        body_writer = BodyWriter(request.writer, chunked=False)
        await body_writer.send_stretch(stretch)
        await body_writer.send_stretch(cut_off)
        body_writer.close()
        assert request.transport is not None
        left.append(request.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK))

    stretch = FileOf(tmp_path / "file", 3 * MIB, turn=MIB // 2, goes_on=True)
    cut_off = FileOf(tmp_path / "other", 3 * MIB, turn=1, goes_on=True)
    cut_off._turn = 3 * MIB
    async with served(handle) as (reader, _):
        await reader.read(-1)
    assert stretch.corked[:2] == [1, 1]
    assert stretch.corked[-4:] == [0] * 4
    assert cut_off.corked[0] == 1
    assert left == [0]


async def test_a_stretch_finds_room_in_the_socket(tmp_path: Path) -> None:
    """What is copied takes the kernel's memory, and keeps to the smaller buffer."""
    sizes: list[int] = []

    async def handle(request: web.BaseRequest, response: web.StreamResponse) -> None:
        assert request.transport is not None
        sock, body_writer = request.transport.get_extra_info("socket"), BodyWriter(request.writer, chunked=False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        await body_writer.send(b"x")
        sizes.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
        await body_writer.send_stretch(FileOf(tmp_path / "file", 1000))
        sizes.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    async with served(handle) as (reader, _):
        await reader.read(-1)
    assert sizes[0] == 2 * 64 * 1024
    assert sizes[1] > sizes[0]
