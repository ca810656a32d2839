"""Where plans are handed in."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.house import FakeClock, reader
from support.replays import nearest

from forebay_proxy.background.plan_intake import TURN_S, PlanIntake
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.wire.protocol.plan import PlanBody


async def test_what_changes_is_taken_and_looked_at() -> None:
    """Replaced, extended, withdrawn; withdrawing nothing is no change."""
    woken = list[int]()

    class Prefetcher:
        def wake(self) -> None:
            woken.append(1)

    plans = PlanRegistry(FakeClock())
    prefetcher: Any = Prefetcher()
    intake = PlanIntake(plans, prefetcher)
    urls = [f"https://o/{number}.tar" for number in range(3)]
    await intake.announce(reader(), PlanBody(urls[:1], epoch=1, set="s"))
    await intake.announce(reader(), PlanBody(urls[1:]), appended=True)
    assert [shard.name for _, _, shard in nearest(plans)] == urls
    assert (await intake.retract(reader()), await intake.retract(reader())) == (True, False)
    assert len(woken) == 3


# In slices


class Awake:
    def wake(self) -> None: ...


def intake_of() -> tuple[PlanIntake, PlanRegistry]:
    plans, nobody = PlanRegistry(FakeClock()), Awake()
    return PlanIntake(plans, nobody), plans  # type: ignore[arg-type]


def plan_of(count: int, letter: str = "") -> PlanBody:
    return PlanBody([f"https://o/{letter}{number}.tar" for number in range(count)])


async def test_a_large_plan_holds_nobody_up() -> None:
    """While one is taken, another reader's is taken whole, and the loop turns."""
    intake, plans = intake_of()
    large = asyncio.create_task(intake.announce(reader(0), plan_of(20_000)))
    turns = 0
    while plans.get(reader(1)) is None:
        await asyncio.sleep(0)
        turns += 1
        if turns == 3:
            small = asyncio.create_task(intake.announce(reader(1), plan_of(64, "small")))
    assert plans.get(reader(0)) is None
    await asyncio.gather(large, small)
    assert sorted(map(len, plans.all())) == [64, 20_000]


async def test_what_one_reader_sends_is_taken_in_its_order() -> None:
    """A plan, what follows it, and its end, handed in at once over three connections."""
    intake, plans = intake_of()
    taking = [
        asyncio.create_task(intake.announce(reader(), plan_of(5000))),
        asyncio.create_task(intake.announce(reader(), plan_of(10, "behind"), appended=True)),
    ]
    await asyncio.gather(*taking)
    assert len(plans.all()[0]) == 5010
    taking = [asyncio.create_task(intake.announce(reader(), plan_of(6000)))]
    await asyncio.sleep(0)
    assert await intake.retract(reader())
    assert len(plans) == 0
    await asyncio.gather(*taking)


async def test_a_client_that_hangs_up_leaves_nothing() -> None:
    """Half a plan is given back, and the old one stays."""
    intake, plans = intake_of()
    await intake.announce(reader(), plan_of(3))
    taking = asyncio.create_task(intake.announce(reader(), plan_of(20_000, "new")))
    for _ in range(3):
        await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    plans.storage.tidy()
    assert (len(plans.all()[0]), len(plans.storage.mentions), len(intake._queues)) == (3, 3, 0)


async def test_many_plans_at_once_take_a_turn_of_the_loop_together() -> None:
    """Not a turn each: between two turns of whoever else is there, only so much is done."""
    intake, plans = intake_of()
    spent = list[float]()

    async def others() -> None:
        while len(plans) < 50:
            before = time.process_time()
            await asyncio.sleep(0)
            spent.append(time.process_time() - before)

    lists = [plan_of(600, f"{number}-") for number in range(50)]
    watching = asyncio.create_task(others())
    await asyncio.gather(*(intake.announce(reader(number), plan) for number, plan in enumerate(lists)))
    await watching
    assert len(plans) == 50
    assert sorted(spent)[len(spent) // 2] < 5 * TURN_S
