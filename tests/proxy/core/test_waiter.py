"""Futures that somebody may wait for."""

from __future__ import annotations

import asyncio

import pytest

from forebay_proxy.core.waiter import settle


async def test_one_goes_on_and_one_hears_the_error() -> None:
    """None is success."""
    loop = asyncio.get_running_loop()
    good, bad = loop.create_future(), loop.create_future()
    settle(good, None)
    settle(bad, OSError("full"))
    assert await good is None
    with pytest.raises(OSError, match="full"):
        await bad


async def test_one_that_has_gone_away_is_left_alone() -> None:
    """Cancelled, or settled before."""
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()
    settle(gone, OSError("full"))
    assert gone.cancelled()
