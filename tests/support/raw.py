"""Bytes on the wire, as they are: several requests, or half of one, over one connection; and every answer that came back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Line", "exchange", "line"]


@dataclass
class Line:
    """One open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, timeout_s: float = 60) -> tuple[int, dict[str, str], bytes]:
        """The next response: status, header (lower case), body by its Content-Length. (0, {}, b"") at the end of the connection."""
        async with asyncio.timeout(timeout_s):
            try:
                header = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0, {}, b""
            lines = header.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
            return int(lines[0].split()[1]), headers, body

    async def ended(self, timeout_s: float = 60) -> bytes:
        """Whatever still comes until the other side closes."""
        rest = b""
        async with asyncio.timeout(timeout_s):
            try:
                while part := await self.reader.read(1 << 16):
                    rest += part
            except ConnectionError:
                pass
        return rest


@asynccontextmanager
async def line(port: int | Path, *, receive_bytes: int = 0) -> AsyncIterator[Line]:
    """A connection for the length of the ``async with``; ``receive_bytes`` makes its socket's buffer that small."""
    if isinstance(port, Path):
        reader, writer = await asyncio.open_unix_connection(port)
    elif receive_bytes:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=receive_bytes)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def exchange(port: int | Path, sent: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """All answers to ``sent``, in order, until the other side closes."""
    answers = []
    async with line(port) as connection:
        await connection.send(sent)
        while (answer := await connection.answer())[0]:
            answers.append(answer)
    return answers
