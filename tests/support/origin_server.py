"""A small scriptable HTTP/1.1 origin: what a body is, how it is framed, where it is cut, which status, which validators; and a request log.

    async with OriginServer() as origin:
        origin.put("/a.tar", ramp(1000), etag='"v1"')
        origin.next("/a.tar", cut_after=100)          # only for the next request to that path
        ... origin.url("/a.tar"), origin.requests ...

Written on plain asyncio streams, because a real server library would refuse to misbehave.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

__all__ = ["OriginServer", "Reply", "Seen"]

_WRITE_BYTES = 1 << 18
_ACCEPTING_TURNS = 4  # of asyncio: it takes the connection, makes a transport, tells of it, begins its handler


@dataclass(frozen=True)
class Reply:
    """How one path answers. Everything has a quiet default; ``put`` sets it, ``next`` changes it for one request."""

    body: bytes | Callable[[int, int], bytes] = b""  # or slices on demand: (first, end) -> bytes, with `size`
    size: int | None = None
    status: int | None = None  # None: 200 or 206 as it follows
    etag: str | None = '"v1"'
    last_modified: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    ranges: bool = True  # honours Range
    conditions: bool = True  # honours If-Match and If-Unmodified-Since
    framing: str = "length"  # "length", "chunked" or "close"
    range_status: int = 206  # rclone says 200
    content_range: str | None = None  # a lie to tell
    cut_after: int | None = None  # body bytes after which the connection ends
    reset: bool = False  # ends with a reset instead of a close
    gate: asyncio.Event | None = None  # waited for before the headers
    body_gate: asyncio.Event | None = None  # waited for once `gate_at` body bytes are out
    gate_at: int = 0
    latency_s: float = 0.0
    bytes_per_s: float | None = None  # of each connection
    head_status: int | None = None
    silent: bool = False  # closes without any answer

    @property
    def length(self) -> int:
        return self.size if self.size is not None else len(self.body)  # type: ignore[arg-type]

    def part(self, first: int, end: int) -> bytes:
        return self.body(first, end) if callable(self.body) else self.body[first:end]


@dataclass(frozen=True)
class Seen:
    """One request as it came; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    connection: int

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class OriginServer:
    """Listens on ``host``, on a port the kernel picks unless one is given. ``tls`` makes it https."""

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    port: int = 0
    requests: list[Seen] = field(default_factory=list)
    open_connections: int = 0

    async def __aenter__(self) -> OriginServer:
        self._replies: dict[str, Reply] = {}
        self._nexts: dict[str, deque[dict[str, Any]]] = {}
        self._connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self.tls, limit=1 << 16, backlog=256)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _ in range(_ACCEPTING_TURNS):  # a connection that was just accepted has no handler yet: its socket would be nobody's
            await asyncio.sleep(0)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def base(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def url(self, target: str) -> str:
        return self.base + target

    def put(self, path: str, body: bytes | Callable[[int, int], bytes] = b"", **how: Any) -> None:
        """What ``path`` answers from now on (fields of ``Reply``)."""
        self._replies[path] = Reply(body=body, **how)

    def next(self, path: str, **change: Any) -> None:
        """A change for one coming request to ``path``; several queue up. An empty one is an ordinary answer."""
        self._nexts.setdefault(path, deque()).append(change)

    def redirect(self, path: str, to: str, status: int = 302) -> None:
        self._replies[path] = Reply(status=status, headers=(("Location", to),), etag=None)

    def seen(self, path: str) -> list[Seen]:
        return [request for request in self.requests if request.path == path]

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until ``fact`` holds; looked at after each request and each closed connection."""
        async with self._changed:
            await self._changed.wait_for(fact)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        self.open_connections += 1
        connection, ahead = self._connections, b""
        try:
            while (ahead_or_end := await self._serve(reader, writer, connection, ahead)) is not None:
                ahead = ahead_or_end
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
            pass  # cancelled: the server ends, and a handler that ends cancelled would be logged
        finally:
            self._tasks.discard(task)
            self.open_connections -= 1
            writer.transport.abort()
            await self._tell()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int, ahead: bytes) -> bytes | None:
        """One request; what was already read of the next one, or None to end the connection."""
        head = (ahead + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        request = Seen(method, target, headers, connection)
        self.requests.append(request)
        await self._tell()
        waiting = self._nexts.get(request.path)
        reply = replace(self._replies.get(request.path, Reply(status=404, etag=None)), **(waiting.popleft() if waiting else {}))
        # Streams tell of a client that left only to who reads; a byte of its next request is handed on.
        answering, listening = asyncio.ensure_future(_answer(reply, request, writer)), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not listening.result():
                return None
            keep = await answering
            return (listening.result() if listening.done() else b"") if keep else None
        finally:
            for task in (answering, listening):
                task.cancel()
            await asyncio.gather(answering, listening, return_exceptions=True)


async def _answer(reply: Reply, request: Seen, writer: asyncio.StreamWriter) -> bool:
    if reply.gate is not None:
        await reply.gate.wait()
    if reply.latency_s:
        await asyncio.sleep(reply.latency_s)
    if reply.silent:
        return False
    status, first, end, extra = _decide(reply, request)
    headers = [*_validators(reply), *extra, *reply.headers]
    if status not in (200, 206):
        body = reply.part(0, reply.length) if reply.status is not None else b""
        await _send(writer, status, [*headers, ("Content-Length", str(len(body)))], b"" if request.method == "HEAD" else body)
        return True
    framing = {"length": [("Content-Length", str(end - first))], "chunked": [("Transfer-Encoding", "chunked")], "close": []}[reply.framing]
    await _send(writer, status, [*headers, *framing], b"")
    if request.method == "HEAD":
        return reply.framing != "close"
    return await _send_body(reply, writer, first, end)


def _decide(reply: Reply, request: Seen) -> tuple[int, int, int, list[tuple[str, str]]]:
    """(status, first, end, headers) that follow from the request."""
    length = reply.length
    if request.method == "HEAD" and reply.head_status is not None:
        return reply.head_status, 0, 0, []
    if reply.status is not None:
        return reply.status, 0, length, []
    match, since = request.headers.get("if-match"), request.headers.get("if-unmodified-since")
    if reply.conditions and ((match is not None and match != reply.etag) or (since is not None and since != reply.last_modified)):
        return 412, 0, 0, []
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.range or "")
    if not reply.ranges or found is None:
        return 200, 0, length, []
    first, end = int(found[1]), min(int(found[2] or length) + 1, length)
    if first >= length:
        return 416, 0, 0, [("Content-Range", f"bytes */{length}")]
    said = reply.content_range if reply.content_range is not None else f"bytes {first}-{end - 1}/{length}"
    return reply.range_status, first, end, [("Content-Range", said)] if said else []


def _validators(reply: Reply) -> list[tuple[str, str]]:
    pairs = (("ETag", reply.etag), ("Last-Modified", reply.last_modified))
    return [(name, value) for name, value in pairs if value is not None]


async def _send(writer: asyncio.StreamWriter, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers), "", ""]
    writer.write("\r\n".join(lines).encode("latin-1") + body)
    await writer.drain()


async def _send_body(reply: Reply, writer: asyncio.StreamWriter, first: int, end: int) -> bool:
    """Send [first, end) as framed, or up to the cut; True to keep the connection."""
    cut = end if reply.cut_after is None else min(end, first + reply.cut_after)
    position = first
    while position < cut:
        if reply.body_gate is not None and position - first >= reply.gate_at:
            await reply.body_gate.wait()
        stop = min(cut, position + _step(reply, position - first))
        piece = reply.part(position, stop)
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.framing == "chunked" else piece)
        await writer.drain()
        position = stop
        if reply.bytes_per_s:
            await asyncio.sleep(len(piece) / reply.bytes_per_s)
    if reply.body_gate is not None and reply.gate_at >= position - first:
        await reply.body_gate.wait()
    if cut < end or reply.framing == "close":
        await _end(reply, writer)
        return False
    if reply.framing == "chunked":
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    return True


def _step(reply: Reply, sent: int) -> int:
    step = max(1, min(_WRITE_BYTES, int(reply.bytes_per_s / 50))) if reply.bytes_per_s else _WRITE_BYTES
    return min(step, reply.gate_at - sent) if sent < reply.gate_at else step


async def _end(reply: Reply, writer: asyncio.StreamWriter) -> None:
    if reply.reset:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return
    writer.close()
    await writer.wait_closed()
