"""Waking those who wait now."""

from __future__ import annotations

import asyncio

from forebay_proxy.core.broadcast import Broadcast


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_signal_wakes_those_who_wait_now() -> None:
    """Who comes later waits for the next; who was cancelled is not counted."""
    signal = Broadcast()
    first, gone = asyncio.create_task(signal.wait()), asyncio.create_task(signal.wait())
    await turns()
    gone.cancel()
    await turns()
    assert len(signal) == 1
    signal.send()
    await first
    late = asyncio.create_task(signal.wait())
    await turns()
    assert not late.done()
    signal.send()
    await late
