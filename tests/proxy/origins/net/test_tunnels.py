"""Connections that a mover holds: what of aiohttp's they stand in for."""

from __future__ import annotations

import inspect

import aiohttp

from forebay_proxy.origins.net.tunnels import TunnelConnector


def test_aiohttp_still_makes_connections_there() -> None:
    """The one private method that is overridden takes what ours takes; else lower the upper bound of aiohttp in pyproject.toml."""
    theirs = inspect.signature(aiohttp.TCPConnector._create_connection)
    assert list(theirs.parameters) == list(inspect.signature(TunnelConnector._create_connection).parameters)
