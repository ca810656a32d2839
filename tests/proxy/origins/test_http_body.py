"""A body that stays silent ends; one whose taker is slow does not."""

from __future__ import annotations

import asyncio
from importlib.metadata import version

import pytest
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol

from forebay_proxy.origins.http_body import IdleTimeout


def stream() -> StreamReader:
    """A body whose connection is there."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    return StreamReader(protocol, 2**16, loop=loop)


async def test_what_the_taker_needs_is_not_silence() -> None:
    """Several limits pass between two pieces that were there all the time."""
    content, silent = stream(), asyncio.Event()
    content.feed_data(b"a")
    content.feed_data(b"b")
    with IdleTimeout(content, 0.02) as silence:
        assert await silence.next() == b"a"
        asyncio.get_running_loop().call_later(0.1, silent.set)
        await silent.wait()
        assert await silence.next() == b"b"


@pytest.mark.parametrize("name", ["_low_water", "_high_water"])
async def test_aiohttp_still_has_it(name: str) -> None:
    """Each private name of aiohttp's that ``narrow`` sets, for which there is no public one."""
    assert hasattr(stream(), name), (
        f"aiohttp {version('aiohttp')} has no StreamReader.{name} any more: find what bounds a body that waits in memory now and say so in"
        " origins/http_body.py, or lower the upper bound of aiohttp in pyproject.toml"
    )
