"""A wire that is not honest: passes a TCP connection on to a real server, and turns a byte of a body around when told so.

async with FlippingRelay(server_port) as relay:
    relay.flip(5000)              # byte 5000 of the next body that is that long arrives wrong
    relay.url("/a.tar")
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["FlippingRelay"]

_END = b"\r\n\r\n"


class FlippingRelay:
    """Between clients and one server on this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._flips: list[int] = []
        self._always: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.flipped = 0

    async def __aenter__(self) -> FlippingRelay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, path: str) -> str:
        return self.base + path

    def flip(self, offset: int) -> None:
        """Turn byte ``offset`` of the next body that is that long."""
        self._flips.append(offset)

    def flip_always(self, offset: int) -> None:
        """The same of every body."""
        self._always = offset

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        try:
            await asyncio.gather(_copy(reader, there_writer), self._answers(there_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for end in (writer, there_writer):
                end.close()
                with suppress(OSError, asyncio.CancelledError):
                    await end.wait_closed()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Heads go through; bodies, of the length their heads say, with a byte turned perhaps."""
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(_END)
                writer.write(head)
                lines = head.decode("latin-1").lower().split("\r\n")
                length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
                await self._body(reader, writer, length)
        writer.close()

    async def _body(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int) -> None:
        offset = self._take(length)
        position = 0
        while position < length:
            piece = bytearray(await reader.readexactly(min(1 << 16, length - position)))
            if offset is not None and position <= offset < position + len(piece):
                piece[offset - position] ^= 0x20
                self.flipped += 1
            writer.write(piece)
            await writer.drain()
            position += len(piece)

    def _take(self, length: int) -> int | None:
        if self._flips and self._flips[0] < length:
            return self._flips.pop(0)
        return self._always if self._always is not None and self._always < length else None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()
