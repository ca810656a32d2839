"""A blocked loop is noticed by how late it comes back."""

from __future__ import annotations

import asyncio

from forebay_proxy.app.service import measure_lag
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.requests import LoopLagged


async def _first_lag(clock_steps: list[float]) -> float:
    events, seen, told = Events(), list[Event](), asyncio.Event()
    events.listen(seen.append)
    events.listen(lambda _: told.set())
    task = asyncio.create_task(measure_lag(events, every_s=0.001, clock=lambda: clock_steps.pop(0) if clock_steps else 100.0))
    await told.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert isinstance(seen[0], LoopLagged)
    return seen[0].seconds


async def test_lag_is_what_exceeds_the_wish() -> None:
    """Asked for 1 ms, back after 501 ms: half a second of lag."""
    assert abs(await _first_lag([10.0, 10.501]) - 0.5) < 1e-9


async def test_lag_is_never_negative() -> None:
    """A timer that fires a tick early is no lag."""
    assert await _first_lag([10.0, 10.0005]) == 0
