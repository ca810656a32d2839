"""An HTTP server over fakes, and a client that sees the bytes as they are on the wire."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.fake_cache import FakeCache, FakeOperations, FakePage, FakePlans, FakeShard, fake_plans, fake_status

from forebay_proxy.core.events import Event, Events
from forebay_proxy.server.http.page_routes import PageSources
from forebay_proxy.server.http.server import HttpServer
from forebay_proxy.server.net.access import Access
from forebay_proxy.wire.protocol.meter import MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName


@dataclass
class World:
    """A server and the fakes behind it.

    ``events``: those that the server has sent; ``meters``: what was told of stalls, ``ended``: by whom no more.
    """

    server: HttpServer
    cache: FakeCache
    plans: FakePlans
    operations: FakeOperations
    page: FakePage
    events: list[Event]
    meters: list[tuple[ReaderName, MeterBody]]
    ended: list[ReaderName]
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def port(self) -> int:
        assert self.server.address.port is not None
        return self.server.address.port

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[Any], count: int = 1) -> list[Any]:
        """Wait for ``count`` events of a kind."""
        async with asyncio.timeout(60):
            while len(self.of(kind)) < count:
                await asyncio.sleep(0)
        return self.of(kind)

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client that has sent that much; its connection ends with the server at the latest."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(writer)
        writer.write(sent)
        return reader, writer

    async def ask(self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Reply:
        return await talk(self.port, request(method, target, headers, body))


@asynccontextmanager
async def listening(
    shards: dict[str, FakeShard] | None = None,
    *,
    socket: Path | None = None,
    pass_headers: tuple[str, ...] = (),
    port: int = 0,
    **status: object,
) -> AsyncIterator[World]:
    events: list[Event] = []
    board = Events()
    board.listen(events.append)
    cache, plans, operations = FakeCache(shards), FakePlans(), FakeOperations()
    page, meters = FakePage(), list[tuple[ReaderName, MeterBody]]()
    ended: list[ReaderName] = []
    server = HttpServer(
        cache=cache, plans=plans, operations=operations, status=lambda: fake_status() | status,
        page=PageSources(page, page), announced=fake_plans,
        meters=SimpleNamespace(take=lambda reader, body: meters.append((reader, body)), end=ended.append),
        meter_page=lambda job: {"job": job, "ranks": []},
        metrics=lambda: (b"forebay_up 1\n", "text/plain; version=0.0.4"),
        access=Access(os.getuid()), events=board, pass_headers=pass_headers, instance="feed",
    )  # fmt: skip
    world = World(server, cache, plans, operations, page, events, meters, ended)
    try:
        await server.start("127.0.0.1", port, socket)
        yield world
    finally:
        for writer in world.clients:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in world.clients), return_exceptions=True)
        await server.aclose(grace_s=0)


@dataclass(frozen=True)
class Reply:
    """One response as it came. ``complete``: its framing was fulfilled; ``reset``: the connection ended with a TCP reset."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    reset: bool

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"].startswith("application/problem+json"), self
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        return found

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"", *, close: bool = True) -> bytes:
    """One HTTP/1.1 request with a proper Host, unless ``headers`` says another."""
    fields = {"Host": "127.0.0.1", **({"Connection": "close"} if close else {}), **({"Content-Length": str(len(body))} if body else {})}
    fields |= headers or {}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


async def talk(port: int | Path, sent: bytes) -> Reply:
    """Send ``sent`` over a connection of its own and read to its end."""
    reader, writer = await (asyncio.open_unix_connection(port) if isinstance(port, Path) else asyncio.open_connection("127.0.0.1", port))
    try:
        writer.write(sent)
        return await read_to_end(reader, head=sent.startswith(b"HEAD"))
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def read_to_end(reader: asyncio.StreamReader, *, head: bool = False) -> Reply:
    received, reset = bytearray(), False
    async with asyncio.timeout(60):
        try:
            while part := await reader.read(1 << 20):
                received += part
        except ConnectionResetError:
            reset = True
    return parse(bytes(received), reset=reset, head=head)


def parse(received: bytes, *, reset: bool = False, head: bool = False) -> Reply:
    """The first response in ``received``."""
    header, end, rest = received.partition(b"\r\n\r\n")
    lines = header.decode("latin-1").split("\r\n")
    status = int(lines[0].split()[1]) if end else 0
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked" and not head:
        body, complete = _unchunked(rest)
    else:
        length = 0 if head or status in (204, 304) else int(headers.get("content-length", "0"))
        body, complete = rest[:length], len(rest) >= length
    return Reply(status, headers, body, complete and bool(end), reset)


def _unchunked(rest: bytes) -> tuple[bytes, bool]:
    body = bytearray()
    while True:
        size, end, rest = rest.partition(b"\r\n")
        if not end:
            return bytes(body), False
        length = int(size, 16)
        if length == 0:
            return bytes(body), rest.startswith(b"\r\n")
        body += rest[:length]
        rest = rest[length + 2 :]
