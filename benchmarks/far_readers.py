"""Readers of a far set through the sidecar: they announce, GET, look at every segment's stamps, and note when they read what.

One process and one event loop for all of them: what is measured is the sidecar, which needs the other processor.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from far_set import SEGMENT_BYTES, STAMP_BYTES, FarSet, stamp

__all__ = ["Hearing", "Read", "Reader", "WrongBytes", "get_json"]

_BUFFER_BYTES = 2**20


class WrongBytes(Exception):
    """A segment came with bytes of another one, or a body ended early."""


@dataclass(frozen=True)
class Read:
    """One segment read to its end. Moments on the monotonic clock; ``began`` is when its first byte was asked for."""

    reader: str
    epoch: int
    number: int
    index: int
    began: float
    ended: float


class Wire:
    """One keep-alive connection on plain sockets; a real client library would be the bottleneck of two processors."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._rest = b""

    async def ask(self, method: str, target: str, headers: str = "", body: bytes = b"") -> tuple[int, int]:
        """Send a request; (status, length of the body that follows)."""
        loop = asyncio.get_running_loop()
        if self._socket is None:
            self._socket = socket.socket()
            self._socket.setblocking(False)
            await loop.sock_connect(self._socket, self._address)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        where = f"{self._address[0]}:{self._address[1]}"
        length = f"Content-Length: {len(body)}\r\n" if method != "GET" else ""
        request = f"{method} {target} HTTP/1.1\r\nHost: {where}\r\n{headers}{length}\r\n"
        await loop.sock_sendall(self._socket, request.encode() + body)
        received = self._rest
        while b"\r\n\r\n" not in received:
            more = await loop.sock_recv(self._socket, 65536)
            if not more:
                raise WrongBytes(f"{method} {target}: no answer")
            received += more
        head, _, self._rest = received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        return int(lines[0].split()[1]), int(fields.get("content-length", "0"))

    async def into(self, view: memoryview) -> int:
        """Some bytes of the body; raises at its early end."""
        if self._rest:
            count = min(len(view), len(self._rest))
            view[:count] = self._rest[:count]
            self._rest = self._rest[count:]
            return count
        assert self._socket is not None
        count = await asyncio.get_running_loop().sock_recv_into(self._socket, view)
        if not count:
            raise WrongBytes("the body was cut")
        return count

    async def body(self, length: int) -> bytes:
        body = bytearray(length)
        at = 0
        while at < length:
            at += await self.into(memoryview(body)[at:])
        return bytes(body)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


async def get_json(url: str, path: str) -> Any:
    """What ``url`` answers to one GET."""
    wire = Wire(*_address(url))
    try:
        _, length = await wire.ask("GET", path)
        return json.loads(await wire.body(length))
    finally:
        wire.close()


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host, int(port)


class Hearing:
    """Where readers note what they read."""

    def __init__(self) -> None:
        self.reads: list[Read] = []
        self.bytes = 0


class Reader:
    """One reader of a job. ``window``: how many shards it announces ahead; None: all of an epoch at its start.

    ``take`` is awaited with every count of bytes it gets: an emulated accelerator behind it holds it back there.
    """

    def __init__(
        self,
        name: str,
        shards: FarSet,
        proxy: str,
        origin: str,
        hearing: Hearing,
        *,
        window: int | None,
        take: Callable[[int], Awaitable[None]] | None = None,
        pattern: str | None = None,
    ) -> None:
        """``name`` "" for requests of nobody, ``window`` 0: it announces nothing. ``pattern``: of its set, "" where it tells none."""
        self.name = name
        self._pattern = shards.pattern if pattern is None else pattern
        self.waited_s = 0.0
        self._shards = shards
        self._origin = origin
        self._prefix = "/http/" + origin.partition("://")[2] + "/set/"
        self._hearing = hearing
        self._window = window
        self._take = take
        self._header = f"Forebay-Reader: {name}\r\n" if name else ""
        self._wire, self._plans = Wire(*_address(proxy)), Wire(*_address(proxy))
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    async def epoch(self, epoch: int, order: Sequence[int]) -> None:
        """Read the shards of ``order``, announced as the window says."""
        ahead = len(order) if self._window is None else self._window
        if ahead:
            await self._announce("PUT", epoch, order[:ahead])
        for place, number in enumerate(order):
            if ahead and place and place - 1 + ahead < len(order):
                await self._announce("POST", epoch, order[place - 1 + ahead : place + ahead])
            await self.read(number, epoch)

    async def _announce(self, method: str, epoch: int, numbers: Sequence[int]) -> None:
        urls = [f"{self._origin}/set/{self._shards.names[number]}" for number in numbers]
        told = {"set": f"{self._origin}/set/{self._pattern}"} if self._pattern else {}
        said = json.dumps({"shards": urls, "epoch": epoch, **told}).encode()
        status, length = await self._plans.ask(method, f"/v1/plans/{self.name}", "Content-Type: application/json\r\n", said)
        answer = await self._plans.body(length)
        if status != 204:
            raise WrongBytes(f"a plan was answered with {status}: {answer[:300]!r}")

    async def withdraw(self) -> None:
        await self._plans.ask("DELETE", f"/v1/plans/{self.name}")

    async def read(self, number: int, epoch: int) -> None:
        """One shard, whole."""
        began = time.monotonic()
        status, length = await self._wire.ask("GET", self._prefix + self._shards.names[number], self._header)
        if status != 200 or length != self._shards.lengths[number]:
            raise WrongBytes(f"shard {number} was answered with {status} and {length} bytes: {(await self._wire.body(min(length, 400)))!r}")
        for index in range(self._shards.segments(number)):
            await self._segment(number, index)
            ended = time.monotonic()
            self._hearing.reads.append(Read(self.name, epoch, number, index, began, ended))
            began = ended

    async def _segment(self, number: int, index: int) -> None:
        left, head, tail = self._shards.size(number, index), b"", b""
        while left:
            count = await self._wire.into(self._buffer[: min(left, _BUFFER_BYTES)])
            if len(head) < STAMP_BYTES:
                head += bytes(self._buffer[: min(count, STAMP_BYTES - len(head))])
            tail = (tail + bytes(self._buffer[max(0, count - STAMP_BYTES) : count]))[-STAMP_BYTES:]
            left -= count
            self._hearing.bytes += count
            if self._take is not None:
                await self._take(count)
        if head != stamp(number, index) or tail != stamp(number, index):
            raise WrongBytes(f"segment {index} of shard {number} ({SEGMENT_BYTES} bytes each) came as {head!r} to {tail!r}")

    def close(self) -> None:
        self._wire.close()
        self._plans.close()
