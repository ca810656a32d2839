"""What we read of aiohttp's connection that it does not promise: it is still there, means what we think, and is read in one place."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from support.http_server import request

from forebay_proxy.server.http.connection import MOST_CONNECTIONS, PRIVATE, Connection, ConnectionLimit, client_places

GET = request("GET", "/s3/b/0.tar", close=False)


@pytest.mark.parametrize("name", PRIVATE)
async def test_aiohttp_still_has_it(name: str) -> None:
    """Each private name of aiohttp's that we read."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response()

    fresh = web.RequestHandler(web.Server(answer), loop=asyncio.get_running_loop())
    assert hasattr(fresh, name), (
        f"aiohttp {version('aiohttp')} has no RequestHandler.{name} any more ({PRIVATE[name]}): find what tells it now and say so in"
        " server/http/connection.py, or lower the upper bound of aiohttp in pyproject.toml"
    )


def test_none_of_our_names_covers_one_of_aiohttps() -> None:
    """A slot of ours with a name of theirs would be written by both."""
    theirs = {name for kind in web.RequestHandler.__mro__ for name in getattr(kind, "__slots__", ())}
    assert set(Connection.__slots__) & theirs == set(), f"aiohttp {aiohttp.__version__} uses these names itself"


@dataclass(eq=False)
class Visitor:
    idle: bool = True
    stranger: bool = False


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_the_bounds_hold_whoever_comes(comers: list[tuple[bool, bool]]) -> None:
    """When everybody who has to leave does; and who is busy never has to, unless it is the newcomer."""
    connection_limit, here = ConnectionLimit(5, 2), set()
    for idle, stranger in comers:
        newcomer = Visitor(idle, stranger)
        here.add(newcomer)
        leaver = connection_limit.enter(newcomer)
        if leaver is not None:
            assert leaver is newcomer or leaver.idle  # type: ignore[attr-defined]
            connection_limit.leave(leaver)
            here.discard(leaver)
        assert len(connection_limit) == len(here) <= 5
        assert sum(visitor.stranger for visitor in here) <= 2


def limits_after(soft: int, hard: int) -> tuple[int, int]:
    """(what ``raise_limit`` says, what the kernel says) in a process that begins with these limits."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from forebay_proxy.server.http.connection import raise_limit\n"
        "print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240, env={"PYTHONPATH": ":".join(sys.path)}
    )
    said, holds = map(int, told.stdout.split())
    return said, holds


@pytest.mark.parametrize(("soft", "hard", "raised"), [(256, 1024, 1024), (1024, 1024, 1024), (512, 4096, 4096)])
def test_the_soft_limit_is_raised_to_the_hard_one(soft: int, hard: int, raised: int) -> None:
    """1,024 would be a few hundred readers and their shards."""
    assert limits_after(soft, hard) == (raised, raised)


@pytest.mark.parametrize(("soft", "places"), [(64, 32), (20, 16), (1024, 512), (65_536, MOST_CONNECTIONS), (-1, MOST_CONNECTIONS)])
def test_clients_get_half_of_them(monkeypatch: pytest.MonkeyPatch, soft: int, places: int) -> None:
    """The rest is for shard files and origins; -1 is no limit."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, soft))
    assert client_places() == places
