"""An HTTP/1.1 origin that lies: every request to a shard may be answered by a fault, scripted in advance.

    async with FaultOrigin() as origin:
        shard = origin.put("/a.tar", State(body, etag='"v1"'), script={0: CutShort(after=100), 2: Status(503)})
        ... origin.url("/a.tar"), shard.asked, shard.states ...

Plain asyncio streams, because a real server library would refuse to misbehave. What a shard *is* (its states, whether its server honours
Range, how bodies are framed) belongs to the ``Served``; what goes wrong with one answer belongs to a ``Fault`` (``support.faults``). States
are kept, so whoever reads can be held to exactly one of them.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Call", "Fault", "FaultOrigin", "Reply", "Served", "State"]

PIECE_BYTES = 1 << 16
LINGER_S = 30.0  # how long a stalled answer waits for its client to leave
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class State:
    """One version of a shard: its bytes and how the origin names it."""

    body: bytes = field(repr=False)
    etag: str | None = '"v1"'
    modified: str | None = None
    encoding: str = ""


@dataclass
class Served:
    """A shard on the origin. ``states[-1]`` is what it is now; ``script`` maps the number of a request (from 0) to what goes wrong."""

    path: str
    states: list[State]
    script: dict[int, Fault] = field(default_factory=dict)
    always: Fault | None = None  # every answer that the script does not speak of
    ranged: bool = True
    conditions: bool = True  # honours If-Match and If-Unmodified-Since
    framing: str = "length"  # "length", "chunked" or "close"
    range_status: int = 206
    asked: int = 0
    claimed: set[int] = field(default_factory=set)  # lengths it has claimed to have, wrongly

    @property
    def now(self) -> State:
        return self.states[-1]


@dataclass
class Reply:
    """An answer that could be sent: the honest one, before a fault has its way with it."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)
    framing: str = "length"

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Scripted", *(f"{name}: {value}" for name, value in self.headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass
class Call:
    """One request being answered."""

    origin: FaultOrigin
    served: Served
    method: str
    headers: Mapping[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def honest(self) -> Reply:
        """What a good server would answer now."""
        served, state = self.served, self.served.now
        if served.conditions and self._is_another(state):
            return Reply(412, {"Content-Length": "0"}, b"")
        headers = {"ETag": state.etag, "Last-Modified": state.modified, "Content-Encoding": state.encoding or None}
        kept = {name: value for name, value in headers.items() if value is not None}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", "")) if served.ranged and self.method == "GET" else None
        length = len(state.body)
        if found is None:
            return self._framed(Reply(200, kept, state.body))
        first, end = int(found[1]), min(int(found[2] or length) + 1, length)
        if first >= length:
            return Reply(416, {"Content-Range": f"bytes */{length}", "Content-Length": "0"}, b"")
        kept["Content-Range"] = f"bytes {first}-{end - 1}/{length}"
        return self._framed(Reply(served.range_status, kept, state.body[first:end]))

    def _is_another(self, state: State) -> bool:
        match, since = self.headers.get("if-match"), self.headers.get("if-unmodified-since")
        return (match is not None and match != state.etag) or (since is not None and since != state.modified)

    def _framed(self, reply: Reply) -> Reply:
        reply.framing = self.served.framing
        if reply.framing == "length":
            reply.headers["Content-Length"] = str(len(reply.body))
        elif reply.framing == "chunked":
            reply.headers["Transfer-Encoding"] = "chunked"
        else:
            reply.headers["Connection"] = "close"
        return reply

    async def answer(self, reply: Reply) -> bool:
        """Send ``reply`` whole; whether the connection may be used again."""
        await self.send(reply.head())
        if self.method != "HEAD":
            await self.send_body(reply, reply.body)
            if reply.framing == "chunked":
                await self.send(b"0\r\n\r\n")
        return reply.framing != "close"

    async def send_body(self, reply: Reply, body: bytes) -> None:
        """Body bytes as ``reply`` frames them, without the end of a chunked one."""
        view = memoryview(body)
        for position in range(0, len(view), PIECE_BYTES):
            piece = view[position : position + PIECE_BYTES]
            await self.send(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.framing == "chunked" else piece)

    async def send(self, data: bytes | memoryview) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_left(self) -> None:
        """Stay silent until the client goes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self.reader.read(1)

    def reset(self) -> None:
        """End the connection with RST."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self.writer.transport.abort()


class Fault:
    """What goes wrong with one answer. This one: nothing."""

    async def answer(self, call: Call) -> bool:
        """Answer ``call``; whether the connection may be used again."""
        return await call.answer(call.honest())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class FaultOrigin:
    """Listens on 127.0.0.1; ``port`` 0: one the kernel picks."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.shards: dict[str, Served] = {}
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> FaultOrigin:
        await self.listen()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.vanish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        return self.base + path

    def put(self, path: str, state: State, **how: object) -> Served:
        served = Served(path, [state], **how)  # type: ignore[arg-type]
        self.shards[path] = served
        return served

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, limit=1 << 16, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def vanish(self) -> None:
        """No listener any more (connections are refused), and every connection is reset."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()
        await asyncio.sleep(0)

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """The host is down for the length of the ``async with``."""
        await self.vanish()
        try:
            yield
        finally:
            await self.listen()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            while await self._serve(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # cancelled: the server ends, and a handler that ends cancelled would be logged
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        served = self.shards.get(target.partition("?")[0])
        if served is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        number, served.asked = served.asked, served.asked + 1
        fault = served.script.pop(number, served.always) or Fault()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await fault.answer(Call(self, served, method, headers, reader, writer))
        finally:
            self.in_flight -= 1
