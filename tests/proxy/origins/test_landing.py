"""A body that is received into buffers of ours: its own bytes and no others, whatever the other end does; then a connection of use."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import aiohttp
import pytest
from support.tls import Authority

from forebay_proxy.core.errors import OriginLied, ShardError, TruncatedShard
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import ByteRange, Pin, Shard
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.landing import LEAST_BYTES, PIECE_BYTES, Landing
from forebay_proxy.origins.net.egress import Egress, Trust
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.wire.urls.shard_url import parse_origin_url

SIZE = 3 * PIECE_BYTES + 12_345
Answer = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


def body_of(name: str) -> bytes:
    return random.Random(name).randbytes(SIZE)


async def whole(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(body)


@dataclass
class Server:
    """Promises ``SIZE`` bytes of each name, and lets ``answer`` send them; counts connections."""

    base: str = ""
    answer: Answer = whole
    head: bytes = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: %d\r\n\r\n' % SIZE
    connections: int = 0
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                name = head.split()[1].decode().strip("/")
                self.asked.append(name)
                writer.write(self.head)
                await self.answer(writer, body_of(name))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


class Reader:
    def __init__(self, server: Server, trust: Trust) -> None:
        self._base, self.trust = server.base, trust
        self.origin = HttpOrigin(guard=Guard(allow_origin=[server.base]), events=Events(), idle_timeout_s=20.0, egress=Egress(trust=trust))

    async def take(self, name: str, got: bytearray, most: int = SIZE, want: ByteRange | None = None) -> None:
        """Into ``got``, which keeps what came before an error; leaves after ``most`` bytes."""
        async with self.origin.read(Shard.of(parse_origin_url(f"{self._base}/{name}")), want, Pin()) as body:
            async for chunk in body.chunks:
                got += chunk
                if len(got) >= most:
                    return

    async def get(self, name: str, want: ByteRange | None = None) -> bytes:
        got = bytearray()
        await self.take(name, got, SIZE + 1, want)
        return bytes(got)


@asynccontextmanager
async def trip(scheme: str, place: Path) -> AsyncIterator[tuple[Server, Reader]]:
    authority = None if scheme == "http" else Authority(place)
    context = authority.server("127.0.0.1") if authority else None
    if context is not None and scheme == "tls1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.base = f"{'https' if context else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    trust = Trust.of({"SSL_CERT_FILE": str(authority.bundle)}) if authority else Trust()
    reader = Reader(server, trust)
    try:
        yield server, reader
    finally:
        await reader.origin.aclose()
        listener.close()


@pytest.fixture(params=["http", "https", "tls1.2"])
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Server, Reader]]:
    async with trip(request.param, tmp_path) as made:
        yield made


async def test_bodies_are_whole_and_their_connection_is_used_again(way: tuple[Server, Reader]) -> None:
    """Three on one connection, each its own."""
    server, reader = way
    for name in "abc":
        assert await reader.get(name) == body_of(name)
    assert server.connections == 1


async def test_landing_is_the_way_they_come(way: tuple[Server, Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing here is a test of it."""
    _, reader = way
    landed: list[int] = []
    updated = Landing.buffer_updated
    monkeypatch.setattr(Landing, "buffer_updated", lambda self, count: (landed.append(count), updated(self, count))[1])
    await reader.get("a")
    assert sum(landed) > SIZE - LEAST_BYTES * 4  # the rest came with the head


async def test_a_range_in_chunked_coding_is_left_to_the_client(way: tuple[Server, Reader]) -> None:
    """Its Content-Range tells how long it is, and between its bytes lie the heads of chunks."""
    server, reader = way
    told = b"Content-Range: bytes 0-%d/%d\r\nTransfer-Encoding: chunked" % (SIZE - 1, SIZE)
    server.head = b'HTTP/1.1 206 Partial Content\r\nETag: "1"\r\n%s\r\n\r\n' % told

    async def chunked(writer: asyncio.StreamWriter, body: bytes) -> None:
        for at in range(0, SIZE, 1 << 18):
            piece = body[at : at + (1 << 18)]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")

    server.answer = chunked
    for name in "ab":
        assert await reader.get(name, ByteRange(0, SIZE - 1)) == body_of(name)
    assert server.connections == 1


@pytest.mark.parametrize("more", [1, 5, 100_000])
async def test_bytes_beyond_the_promise_are_nobodys(way: tuple[Server, Reader], more: int) -> None:
    """They are not of this body, and not the next one's answer: that is asked by another connection."""
    server, reader = way

    async def too_much(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(body + b"HTTP/1.1 200 OK\r\n" * more)

    server.answer = too_much
    for name in "abc":
        assert await reader.get(name) == body_of(name)
    assert server.connections == 3


@pytest.mark.parametrize("came", [0, 1, LEAST_BYTES, SIZE // 2, SIZE - 1])
async def test_a_body_that_is_cut_gives_what_came_and_says_so(way: tuple[Server, Reader], came: int) -> None:
    """All bytes before the cut, and then an error; the next request is not touched by it."""
    server, reader = way

    async def cut(writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(body[:came])
        await writer.drain()
        raise ConnectionError

    server.answer, got = cut, bytearray()
    with pytest.raises(TruncatedShard):
        await reader.take("a", got)
    assert bytes(got) == body_of("a")[:came]
    server.answer = whole
    assert await reader.get("b") == body_of("b")


async def test_a_tls_connection_without_a_proper_end_is_a_cut_too(tmp_path: Path) -> None:
    """No close_notify: anybody on the way can end a connection like that."""
    async with trip("https", tmp_path) as (server, reader):

        async def torn(writer: asyncio.StreamWriter, body: bytes) -> None:
            writer.write(body[: SIZE // 2])
            await writer.drain()
            await asyncio.sleep(0.1)
            writer.transport.abort()
            raise ConnectionError

        server.answer, got = torn, bytearray()
        with pytest.raises(ShardError) as raised:
            await reader.take("a", got)
        assert raised.value.retryable
        assert body_of("a").startswith(bytes(got))


async def test_another_range_than_the_asked_one_is_a_lie(way: tuple[Server, Reader]) -> None:
    """None of its bytes is given out, and the connection, on which they are still to come, is not used again."""
    server, reader = way
    server.head = b'HTTP/1.1 206 Partial Content\r\nETag: "1"\r\nContent-Length: %d\r\nContent-Range: bytes 1-%d/%d\r\n\r\n' % (
        SIZE, SIZE, SIZE + 1,
    )  # fmt: skip
    got = bytearray()
    with pytest.raises(OriginLied):
        await reader.take("a", got, want=ByteRange(0, SIZE - 1))
    server.head = Server.head
    assert (bytes(got), await reader.get("b"), server.connections) == (b"", body_of("b"), 2)


async def test_odd_pieces_make_the_same_bytes(way: tuple[Server, Reader]) -> None:
    """Sent in pieces of any size, with pauses: over TLS, records that end anywhere. A taker that is slow makes the sender wait."""
    server, reader = way
    chance = random.Random(1)

    async def pieces(writer: asyncio.StreamWriter, body: bytes) -> None:
        position = 0
        while position < len(body):
            size = chance.choice([1, 7, 1000, 16_384, 16_385, 300_000, PIECE_BYTES + 1])
            writer.write(body[position : position + size])
            position += size
            await writer.drain()
            if chance.random() < 0.3:
                await asyncio.sleep(0.002)

    server.answer = pieces
    assert await asyncio.gather(*(reader.get(name) for name in "abcdef")) == [body_of(name) for name in "abcdef"]


async def test_tls_records_that_tcp_cuts_anywhere(tmp_path: Path) -> None:
    """A relay on the way gives on what it gets in pieces of other sizes."""
    async with trip("https", tmp_path) as (server, reader):
        chance = random.Random(2)
        port = int(server.base.rpartition(":")[2])

        async def pump(source: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await source.read(chance.choice([1, 5, 100, 5000, 100_000])):
                writer.write(data)
                await writer.drain()
            writer.close()

        async def relay(near: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
            far, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pump(near, back), pump(far, out), return_exceptions=True)

        between = await asyncio.start_server(relay, "127.0.0.1", 0)
        behind = Reader(Server(f"https://127.0.0.1:{between.sockets[0].getsockname()[1]}"), reader.trust)
        assert await behind.get("a") == body_of("a")
        await behind.origin.aclose()
        between.close()


async def test_what_waits_in_memory_is_bounded(way: tuple[Server, Reader]) -> None:
    """A taker that takes nothing has one piece waiting, of the size that it named."""
    server, reader = way
    async with reader.origin.read(Shard.of(parse_origin_url(f"{server.base}/a")), None, Pin()) as body:
        body.narrow(PIECE_BYTES // 8)
        sizes = []
        async for chunk in body.chunks:
            sizes.append(len(chunk))
            if len(sizes) == 2:
                await asyncio.sleep(0.3)  # the rest is here, and waits in the kernel
                landing = getattr(body.narrow, "__self__")  # noqa: B009
                waiting = sum(map(len, landing._ready)) + landing._filled
                assert waiting <= PIECE_BYTES // 8
    assert sum(sizes) == SIZE


@pytest.mark.parametrize("name", ["_parser", "_payload"])
async def test_aiohttp_still_has_it(name: str) -> None:
    """Each private name of aiohttp's that ``Landing`` sets, for which there is no public one."""
    protocol = aiohttp.client_proto.ResponseHandler(asyncio.get_running_loop())
    assert hasattr(protocol, name), (
        f"aiohttp {version('aiohttp')} has no ResponseHandler.{name} any more: find what makes a connection fit for its next request"
        " now and say so in origins/landing.py, or lower the upper bound of aiohttp in pyproject.toml"
    )


async def test_what_comes_after_a_body_makes_a_connection_unfit() -> None:
    """``Landing._return_transport`` relies on it: without a parser, bytes lie in the tail, and a tail closes."""
    protocol = aiohttp.client_proto.ResponseHandler(asyncio.get_running_loop())
    protocol._parser = protocol._payload = None
    assert not protocol.should_close
    protocol.data_received(b"x")
    assert protocol.should_close
