"""How long and how often an origin is asked again."""

from __future__ import annotations

import random

import pytest
from support.house import FakeClock

from forebay_proxy.core.errors import OriginLied, OriginUnavailable
from forebay_proxy.transfer.retry import LIES, LONGEST_PAUSE_S, RetryBudget

ERROR = OriginUnavailable("s", "reset")


def budget_of(budget_s: float, clock: FakeClock) -> RetryBudget:
    return RetryBudget(lambda: budget_s, clock, clock.sleep, random.Random(1))


async def test_the_budget_ends_it() -> None:
    """The error itself is raised, and no pause overruns the budget."""
    clock = FakeClock()
    retry_budget, start = budget_of(30.0, clock), clock.now

    async def ask_for_ever() -> None:
        while True:
            await retry_budget.pause(ERROR)

    with pytest.raises(OriginUnavailable) as raised:
        await ask_for_ever()
    assert raised.value is ERROR
    assert clock.now - start <= 30.0
    assert max(clock.slept) <= LONGEST_PAUSE_S


async def test_progress_renews_it() -> None:
    """As long as bytes come, it goes on."""
    clock = FakeClock()
    retry_budget = budget_of(5.0, clock)
    for _ in range(50):
        await retry_budget.pause(ERROR)
        retry_budget.progress()
        clock.advance(4.0)
        retry_budget.progress()
    assert max(clock.slept) <= 0.1


async def test_the_origins_wish_is_the_least() -> None:
    """The jitter comes on top."""
    clock = FakeClock()
    await budget_of(100.0, clock).pause(OriginUnavailable("s", "503", retry_after_s=7.0))
    assert 7.0 <= clock.slept[0] <= 7.1


async def test_a_wish_beyond_the_budget_is_not_waited_for() -> None:
    """Nobody sleeps for nothing, and the error says so."""
    clock = FakeClock()
    with pytest.raises(OriginUnavailable, match="left alone for 60 s, but 5 of 5 s are left") as raised:
        await budget_of(5.0, clock).pause(OriginUnavailable("s", "503", retry_after_s=60.0))
    assert raised.value.retry_after_s == 60.0
    assert clock.slept == []


async def test_it_may_be_shortened() -> None:
    """Nobody waits any more: what is left is the smaller of the two budgets."""
    clock = FakeClock()
    retry_budget, start = budget_of(300.0, clock), clock.now
    retry_budget.shorten(15.0)
    retry_budget.shorten(60.0)

    async def ask_for_ever() -> None:
        while True:
            await retry_budget.pause(ERROR)

    with pytest.raises(OriginUnavailable):
        await ask_for_ever()
    assert clock.now - start <= 15.0


async def test_who_comes_has_a_whole_budget() -> None:
    """What nobody waited for had a short one; the reader that boards it does not get what is left of that."""
    clock = FakeClock()
    retry_budget = budget_of(300.0, clock)
    retry_budget.shorten(15.0)
    clock.advance(14.9)
    retry_budget.wanted()
    clock.advance(250.0)
    await retry_budget.pause(ERROR)
    retry_budget.wanted()  # still: nothing begins anew
    clock.advance(60.0)
    with pytest.raises(OriginUnavailable):
        await retry_budget.pause(ERROR)


async def test_who_insists_on_a_lie_is_believed_to_mean_it() -> None:
    """Twice may be a middlebox; bytes in between wipe the slate."""
    clock = FakeClock()
    retry_budget, lie = budget_of(300.0, clock), OriginLied("s", "nonsense")
    for _ in range(LIES - 1):
        await retry_budget.pause(lie)
    retry_budget.progress()
    for _ in range(LIES - 1):
        await retry_budget.pause(lie)
    with pytest.raises(OriginLied) as raised:
        await retry_budget.pause(lie)
    assert raised.value is lie


async def test_waiting_for_our_own_limiter_costs_no_patience() -> None:
    """The origin had not been asked yet."""
    clock = FakeClock()
    retry_budget = budget_of(5.0, clock)
    clock.advance(100.0)
    retry_budget.queued(100.0)
    await retry_budget.pause(ERROR)
