"""How long and how often an origin is asked again."""

from __future__ import annotations

import random

import pytest
from support.house import FakeClock

from forebay_proxy.errors import OriginUnavailable
from forebay_proxy.patience import LONGEST_PAUSE_S, Patience

ERROR = OriginUnavailable("s", "reset")


def patience_of(budget_s: float, clock: FakeClock) -> Patience:
    return Patience(budget_s, clock, clock.sleep, random.Random(1))


async def test_the_budget_ends_it() -> None:
    """The error itself is raised, and no pause overruns the budget."""
    clock = FakeClock()
    patience, start = patience_of(30.0, clock), clock.now

    async def ask_for_ever() -> None:
        while True:
            await patience.pause(ERROR)

    with pytest.raises(OriginUnavailable) as raised:
        await ask_for_ever()
    assert raised.value is ERROR
    assert clock.now - start <= 30.0
    assert max(clock.slept) <= LONGEST_PAUSE_S


async def test_progress_renews_it() -> None:
    """As long as bytes come, it goes on."""
    clock = FakeClock()
    patience = patience_of(5.0, clock)
    for _ in range(50):
        await patience.pause(ERROR)
        patience.progress()
        clock.advance(4.0)
        patience.progress()
    assert max(clock.slept) <= 0.1


async def test_the_origins_wish_is_the_least() -> None:
    """The jitter comes on top."""
    clock = FakeClock()
    await patience_of(100.0, clock).pause(OriginUnavailable("s", "503", retry_after_s=7.0))
    assert 7.0 <= clock.slept[0] <= 7.1


async def test_a_wish_beyond_the_budget_is_not_waited_for() -> None:
    """Nobody sleeps for nothing."""
    clock = FakeClock()
    with pytest.raises(OriginUnavailable):
        await patience_of(5.0, clock).pause(OriginUnavailable("s", "503", retry_after_s=60.0))
    assert clock.slept == []


async def test_it_may_be_shortened() -> None:
    """Nobody waits any more: what is left is the smaller of the two budgets."""
    clock = FakeClock()
    patience, start = patience_of(300.0, clock), clock.now
    patience.shorten(15.0)
    patience.shorten(60.0)

    async def ask_for_ever() -> None:
        while True:
            await patience.pause(ERROR)

    with pytest.raises(OriginUnavailable):
        await ask_for_ever()
    assert clock.now - start <= 15.0
