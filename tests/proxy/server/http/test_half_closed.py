"""Clients that shut down their sending side behind a request (``nc -N``, socat) are answered; those that are gone hold nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.fake_cache import FakeShard
from support.http_server import World, listening
from support.raw import line

from forebay_proxy.server.http.connection import LOOK_S

GET = b"GET /s3/b/0.tar HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
DATA = bytes(range(256)) * 4096


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with listening({"s3://b/0.tar": FakeShard(DATA)}, socket=tmp_path / "s") as found:
        yield found


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("way", ["tcp", "unix"])
async def test_a_half_closed_client_gets_its_answers(world: World, tmp_path: Path, way: str, count: int) -> None:
    """All it asked for, then the end."""
    async with line(world.port if way == "tcp" else tmp_path / "s") as client:
        await client.send(GET * count)
        client.writer.write_eof()
        for _ in range(count):
            status, _, body = await client.answer()
            assert (status, body == DATA) == (200, True)
        assert await client.answer() == (0, {}, b"")


@pytest.mark.parametrize("first", ["shutdown", "nothing"])
@pytest.mark.parametrize("way", ["tcp", "unix"])
async def test_one_that_has_gone_is_not_waited_for(world: World, tmp_path: Path, way: str, first: str) -> None:
    """However it went: at once, or some time after it had shut down its side. Its reading ends without a byte of the origin's."""
    shard = world.cache.contents["s3://b/0.tar"] = FakeShard(DATA, held_at=1000)
    client = socket.socket(socket.AF_INET if way == "tcp" else socket.AF_UNIX)
    await asyncio.to_thread(client.connect, ("127.0.0.1", world.port) if way == "tcp" else str(tmp_path / "s"))
    client.sendall(GET)
    async with asyncio.timeout(60):
        await shard.reached.wait()
        (opening,) = world.cache.resolver
        if first == "shutdown":
            client.shutdown(socket.SHUT_WR)
            await asyncio.sleep(2 * LOOK_S + 0.2)  # looked at twice, and still there
            assert not opening.left
        client.close()
        while not opening.left:
            await asyncio.sleep(0.01)
