"""What we read of aiohttp's connection that it does not promise: it is still there, means what we think, and is read in one place."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import aiohttp
import pytest
from aiohttp import web
from support.fake_cache import FakeShard
from support.http_server import World, listening, request
from support.raw import line

from forebay_proxy.server.http.connection import Connection
from forebay_proxy.server.http.request_handler import PRIVATE

GET = request("GET", "/s3/b/0.tar", close=False)


@pytest.mark.parametrize("name", PRIVATE)
async def test_aiohttp_still_has_it(name: str) -> None:
    """Each private name of aiohttp's that we read."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    fresh = web.RequestHandler(web.Server(answer), loop=asyncio.get_running_loop())
    assert hasattr(fresh, name), (
        f"aiohttp {version('aiohttp')} has no RequestHandler.{name} any more ({PRIVATE[name]}): find what tells it now and say so in"
        " server/http/request_handler.py, or lower the upper bound of aiohttp in pyproject.toml"
    )


async def test_idle_and_unanswered_are_told() -> None:
    """Before a request, while two are there of which one is being answered, and behind the last answer."""
    shard = FakeShard(b"x" * 10, held_at=0)
    async with listening({"s3://b/0.tar": shard}) as world, line(world.port) as client:
        connection = await _connection(world)
        assert connection.idle
        await client.send(GET + GET)
        await shard.reached.wait()
        assert (connection.idle, connection.unanswered) == (False, 2)
        shard.gate.set()
        for _ in range(2):
            assert (await client.answer())[0] == 200
        async with asyncio.timeout(60):
            while not connection.idle:
                await asyncio.sleep(0.01)


async def _connection(world: World) -> Connection:
    async with asyncio.timeout(60):
        while not world.server._server.connections:
            await asyncio.sleep(0.01)
    (connection,) = world.server._server.connections
    assert isinstance(connection, Connection)
    return connection


def test_none_of_our_names_covers_one_of_aiohttps() -> None:
    """A slot of ours with a name of theirs would be written by both."""
    theirs = {name for kind in web.RequestHandler.__mro__ for name in getattr(kind, "__slots__", ())}
    assert set(Connection.__slots__) & theirs == set(), f"aiohttp {aiohttp.__version__} uses these names itself"
