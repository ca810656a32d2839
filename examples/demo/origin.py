"""An origin with a distance: files served over HTTP with a latency per request and a rate per connection, counted, and cut when told to.

Real object stores answer after tens of milliseconds and give one connection a few tens of MB/s, however fast the network is. That, and
not bandwidth as such, is what a training loop waits for; so that is what is simulated. Plain asyncio and no HTTP library, because the
interesting part is how an answer ends: with a length, chunked, at connection close, or in the middle.

As a program (``python -m demo.serve_origin DIRECTORY``) it prints one line of JSON with its URL and serves until it is ended; in tests
and benchmarks it is a context manager::

    async with Origin(directory, latency_s=0.05, rate_bytes_s=20e6) as origin:
        ... origin.url("shard-000.tar") ... origin.counts.bytes
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from urllib.parse import quote

from demo.answers import Answer, Ask, Framing, answer_to, parse, plain

__all__ = ["Counts", "Origin"]

# A chunk each 13 ms at 20 MB/s: fine enough to look like a stream, coarse enough for 64 connections in one Python process.
CHUNK_BYTES = 256 * 1024
HEAD_BYTES = 64 * 1024


@dataclass
class Counts:
    """What the origin has served since it started or was reset. ``bytes`` are body bytes handed to the kernel."""

    requests: int = 0
    heads: int = 0
    ranged: int = 0
    bytes: int = 0
    cuts: int = 0
    refused: int = 0  # answered 4xx
    connections: int = 0
    open_connections: int = 0
    per_path: dict[str, int] = field(default_factory=dict)  # GET requests, by path


class Origin:
    """Serves the files below ``root`` on a loopback port of the kernel's choice.

    ``latency_s`` passes before each answer; each body flows at ``rate_bytes_s`` (None: as fast as it goes). ``ranges=False`` answers
    every GET whole, as some origins do; ``framing`` says how a 200 answer ends. Not thread-safe; one event loop owns it.
    """

    def __init__(
        self,
        root: Path,
        *,
        latency_s: float = 0.05,
        rate_bytes_s: float | None = 20e6,
        ranges: bool = True,
        framing: Framing = "length",
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.root = root
        self.latency_s = latency_s
        self.rate_bytes_s = rate_bytes_s
        self.ranges = ranges
        self.framing = framing
        self.host = host
        self.port = port
        self.counts = Counts()
        self._cuts: dict[str, list[int]] = {}
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Origin:
        # the backlog is generous because a client may open 64 connections at once
        self._server = await asyncio.start_server(self._talk, self.host, self.port, limit=HEAD_BYTES, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def base(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url(self, name: str) -> str:
        """The URL of the file ``name`` (relative to the root). Braces survive, so that a pattern stays one."""
        return f"{self.base}/{quote(name, safe='/{}.,')}"

    def cut_once(self, name: str, offset: int) -> None:
        """End the next body of ``name`` that runs across byte ``offset`` exactly there, by closing the connection."""
        self._cuts.setdefault(f"/{name.lstrip('/')}", []).append(offset)

    def reset(self) -> None:
        """Count from zero again and forget cuts that have not happened."""
        self.counts = Counts(open_connections=self.counts.open_connections)
        self._cuts.clear()

    # -- one connection

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        self.counts.connections += 1
        self.counts.open_connections += 1
        _send_small_packets_at_once(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client left, or we are closing: both are ordinary ends of a conversation
        finally:
            self._talks.discard(task)
            self.counts.open_connections -= 1
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; True when the connection may carry another."""
        ask = parse(await reader.readuntil(b"\r\n\r\n"))
        if ask is None:
            await self._send_head(writer, Answer("400 Bad Request", {"Content-Length": "0"}))
            return False
        if ask.path.startswith("/-/"):
            await self._send_text(writer, self._control(ask))
            return True
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        return await self._serve(ask, writer)

    def _control(self, ask: Ask) -> Answer:
        """The origin's own pages, never counted: ``/-/counts``, ``/-/reset``, ``/-/cut?path=&offset=``."""
        if ask.path == "/-/reset":
            self.reset()
        elif ask.path == "/-/cut":
            self.cut_once(ask.query["path"], int(ask.query["offset"]))
        elif ask.path != "/-/counts":
            return plain("404 Not Found", b"no such page")
        return plain("200 OK", json.dumps(asdict(self.counts)).encode())

    async def _serve(self, ask: Ask, writer: asyncio.StreamWriter) -> bool:
        self.counts.requests += 1
        self.counts.heads += ask.method == "HEAD"
        if ask.method not in ("GET", "HEAD"):
            return await self._refuse(writer, plain("405 Method Not Allowed", b"GET and HEAD only"))
        file = self._open(ask.path)
        if file is None:
            return await self._refuse(writer, plain("404 Not Found", b"no such file"))
        with file:
            answer = answer_to(ask, os.fstat(file.fileno()), ranges=self.ranges, framing=self.framing)
            if not answer.status.startswith("20"):
                return await self._refuse(writer, answer)
            if ask.method == "HEAD":
                await self._send_head(writer, answer)
                return True
            self.counts.ranged += answer.status.startswith("206")
            self.counts.per_path[ask.path] = self.counts.per_path.get(ask.path, 0) + 1
            return await self._send_file(ask.path, writer, answer, file)

    async def _refuse(self, writer: asyncio.StreamWriter, answer: Answer) -> bool:
        self.counts.refused += 1
        await self._send_text(writer, answer)
        return True

    def _open(self, path: str) -> BinaryIO | None:
        target = (self.root / path.lstrip("/")).resolve()
        if not target.is_relative_to(self.root.resolve()) or not target.is_file():
            return None
        return target.open("rb")

    # -- writing

    async def _send_head(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        lines = [f"HTTP/1.1 {answer.status}", *(f"{name}: {value}" for name, value in answer.headers.items())]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
        await writer.drain()

    async def _send_text(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        await self._send_head(writer, answer)
        writer.write(answer.text)
        await writer.drain()

    async def _send_file(self, path: str, writer: asyncio.StreamWriter, answer: Answer, file: BinaryIO) -> bool:
        """Send ``[first, stop)`` of ``file`` at the rate; False when the connection must not carry another answer."""
        chunked = "Transfer-Encoding" in answer.headers
        cut = self._next_cut(path, answer.first, answer.stop)
        await self._send_head(writer, answer)
        async for chunk in self._paced(file, answer.first, answer.stop if cut is None else cut):
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
            await writer.drain()
            self.counts.bytes += len(chunk)
        if cut is not None:
            await self._cut(writer)
            return False
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return await self._end(writer, answer)

    async def _end(self, writer: asyncio.StreamWriter, answer: Answer) -> bool:
        if answer.headers.get("Connection") != "close":
            return True
        writer.close()  # flushes first: the end of the connection is the end of the body
        await writer.wait_closed()
        return False

    def _next_cut(self, path: str, first: int, stop: int) -> int | None:
        for offset in self._cuts.get(path, []):
            if first < offset < stop:
                self._cuts[path].remove(offset)
                return offset
        return None

    async def _cut(self, writer: asyncio.StreamWriter) -> None:
        """Close in good order, so that what was sent arrives: a cut that a careless client cannot tell from an end."""
        self.counts.cuts += 1
        writer.close()
        await writer.wait_closed()

    async def _paced(self, file: BinaryIO, first: int, stop: int) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        started, position = clock(), first
        while position < stop:
            chunk = os.pread(file.fileno(), min(CHUNK_BYTES, stop - position), position)
            if not chunk:
                raise ConnectionAbortedError("the file became shorter while it was served")
            position += len(chunk)
            yield chunk
            if self.rate_bytes_s:
                await asyncio.sleep(max(0.0, started + (position - first) / self.rate_bytes_s - clock()))


def _send_small_packets_at_once(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
