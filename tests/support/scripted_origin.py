"""The HTTP/1.1 origin of tests: shards by path, each answer decided by a script, and a log of what was asked.

    async with ScriptedOrigin() as origin:
        origin.put("/a.tar", ramp(1000), etag='"v1"')            # fields of ``Reply``
        origin.next("/a.tar", cut_after=100)                     # only for the next request to that path
        shard = origin.put("/b.tar", ramp(1000), script={2: Status(503)})
        ... origin.url("/a.tar"), origin.requests, shard.asked, shard.states ...

Written on plain asyncio streams, because a real server library would refuse to misbehave.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from support.scripted_answers import Answer, Body, Change, Fault, Reply, Seen, Served

__all__ = ["ScriptedOrigin", "abort", "in_a_thread"]

_WRITE_BYTES = 1 << 18
_ACCEPTING_TURNS = 4  # of asyncio: it takes the connection, makes a transport, tells of it, begins its handler
_LINGER_S = 30.0  # how long a stalled answer waits for its client to leave
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass
class ScriptedOrigin:
    """Listens on ``host``, on a port the kernel picks unless one is given. ``tls``: over https. ``anything`` answers for other paths."""

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    port: int = 0
    anything: Fault | None = None
    shards: dict[str, Served] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    connections: int = 0  # so far
    open_connections: int = 0
    in_flight: int = 0

    async def __aenter__(self) -> ScriptedOrigin:
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._changed = asyncio.Condition()
        await self._listen()
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

    def put(
        self, path: str, body: Body | Reply = b"", *, script: dict[int, Fault] | None = None, always: Fault | None = None, **how: Any
    ) -> Served:
        """What ``path`` answers from now on: a ``Reply``, or the fields of one."""
        served = self._served(path)
        served.states = [replace(body, **how) if isinstance(body, Reply) else Reply(body, **how)]
        served.always = always
        served.script |= script or {}
        return served

    def next(self, path: str, **change: Any) -> None:
        """A change for one coming request to ``path``; several queue up. An empty one is an ordinary answer."""
        served = self._served(path)
        served.script[max([served.asked, *(number + 1 for number in served.script)])] = Change(**change)

    def redirect(self, path: str, to: str, status: int = 302) -> None:
        self.put(path, status=status, headers=(("Location", to),), etag=None)

    def seen(self, path: str) -> list[Seen]:
        return [request for request in self.requests if request.path == path]

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until ``fact`` holds; looked at after each request and each closed connection."""
        async with self._changed:
            await self._changed.wait_for(fact)

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """The host is down for the length of the ``async with``: every connection is reset, new ones are refused."""
        self._server.close()
        for writer in self._tasks.values():
            _reset(writer)
        await asyncio.sleep(0)
        try:
            yield
        finally:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self.tls, limit=1 << 16, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    def _served(self, path: str) -> Served:
        return self.shards.setdefault(path, Served(path))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        self.connections += 1
        self.open_connections += 1
        connection, ahead = self.connections, b""
        try:
            while (ahead_or_end := await self._serve(reader, writer, connection, ahead)) is not None:
                ahead = ahead_or_end
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # cancelled: the server ends, and a handler that ends cancelled would be logged
        finally:
            del self._tasks[task]
            self.open_connections -= 1
            abort(writer)
            await self._tell()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int, ahead: bytes) -> bytes | None:
        """One request; what was already read of the next one, or None to end the connection."""
        head = (ahead + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        seen = Seen(method, target, headers, connection)
        self.requests.append(seen)
        await self._tell()
        answer = (self.shards.get(seen.path) or Served(seen.path, always=self.anything)).answer(seen, self.in_flight + 1)
        self.in_flight += 1
        # Streams tell of a client that left only to who reads; a byte of its next request is handed on.
        answering, listening = asyncio.ensure_future(_play(answer, method, writer)), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and not listening.result():
                return None
            keep = await answering
            return (listening.result() if listening.done() else b"") if keep else None
        finally:
            self.in_flight -= 1
            for task in (answering, listening):
                task.cancel()
            await asyncio.gather(answering, listening, return_exceptions=True)


@contextmanager
def in_a_thread(origin: ScriptedOrigin) -> Iterator[ScriptedOrigin]:
    """``origin`` on a loop of its own, for tests that have none."""
    started, running = threading.Event(), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        async with origin:
            running.append((asyncio.get_running_loop(), asyncio.Event()))
            started.set()
            await running[0][1].wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="origin")
    thread.start()
    try:
        assert started.wait(60)
        yield origin
    finally:
        for loop, stop in running:
            loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _play(answer: Answer, method: str, writer: asyncio.StreamWriter) -> bool:
    """Send it as its reply says; True to keep the connection."""
    how = answer.reply
    if how.gate is not None:
        await how.gate.wait()
    if how.latency_s:
        await asyncio.sleep(how.latency_s)
    writer.write(how.before)
    if how.cut_after is None or how.cut_after >= 0:
        writer.write(answer.head())
        await writer.drain()
        if method != "HEAD":
            await _send_body(answer, writer)
    if how.beyond_s:
        await asyncio.sleep(how.beyond_s)
    writer.write(how.beyond)
    await writer.drain()
    if how.stall:
        await asyncio.sleep(_LINGER_S)
    if how.ends:
        await _end(how, writer)
    return not how.ends


async def _send_body(answer: Answer, writer: asyncio.StreamWriter) -> None:
    """Send it as framed, or up to the cut."""
    how, first, position = answer.reply, answer.first, answer.first
    cut = answer.end if how.cut_after is None else min(answer.end, first + how.cut_after)
    while position < cut:
        if how.body_gate is not None and position - first >= how.gate_at:
            await how.body_gate.wait()
        stop = min(cut, position + _step(how, position - first))
        piece = how.part(position, stop)
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if how.framing == "chunked" else piece)
        await writer.drain()
        position = stop
        if how.bytes_per_s:
            await asyncio.sleep(len(piece) / how.bytes_per_s)
    if how.body_gate is not None and how.gate_at >= position - first:
        await how.body_gate.wait()
    if how.framing == "chunked" and how.cut_after is None:
        writer.write(b"0\r\n\r\n")


def _step(how: Reply, sent: int) -> int:
    step = max(1, min(_WRITE_BYTES, int(how.bytes_per_s / 50))) if how.bytes_per_s else _WRITE_BYTES
    return min(step, how.gate_at - sent) if sent < how.gate_at else step


async def _end(how: Reply, writer: asyncio.StreamWriter) -> None:
    if how.reset:
        _reset(writer)
        return
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    abort(writer)


def abort(writer: asyncio.StreamWriter) -> None:
    """Close it at once, unless it is closed."""
    # asyncio forgets to note that a transport is gone which was closed while it still held bytes, and sent them: it has no loop then.
    with suppress(AttributeError):
        writer.transport.abort()
