"""Who may ask an origin now, and who is next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from support.house import until

from forebay_proxy.transfer.limiter import (
    AHEAD,
    MIN_SLOTS,
    SLOW_S,
    START_SLOTS,
    STILL_S,
    WAITED,
    Limiter,
    Limiters,
    Slot,
)


@dataclass
class Need:
    need: float


def limiter_of(slots: int) -> Limiter:
    limiter = Limiter(slots)
    limiter.bandwidth.requests = 2 * slots  # a line that is not what ends first
    return limiter


class Asking:
    """Flights that take a slot and keep it until told."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.order: list[float] = []
        self.go_on: dict[float, asyncio.Event] = {}
        self.tasks: dict[float, asyncio.Task[None]] = {}

    async def ask(self, flight: Need) -> None:
        name = flight.need
        self.go_on[name] = asyncio.Event()

        async def hold() -> None:
            async with self.limiter.slot(flight):
                self.order.append(name)
                await self.go_on[name].wait()

        self.tasks[name] = asyncio.create_task(hold())
        await asyncio.sleep(0)

    async def end(self, *names: float) -> None:
        for name in names:
            self.go_on[name].set()
            await self.tasks[name]
            await asyncio.sleep(0)


async def test_the_nearest_need_is_next() -> None:
    """Not the longest wait."""
    asking = Asking(limiter_of(2))
    for need in (0.0, 1.0, 9.0, 5.0, 7.0):
        await asking.ask(Need(need))
    await asking.end(0.0, 1.0, 5.0, 7.0, 9.0)
    assert asking.order == [0.0, 1.0, 5.0, 7.0, 9.0]
    assert asking.limiter.in_flight == 0


async def test_a_quarter_takes_demand_only() -> None:
    """Prefetch leaves room for a reader that comes."""
    asking = Asking(limiter_of(8))
    for number in range(8):
        await asking.ask(Need(AHEAD + number))
    assert asking.limiter.in_flight == 6
    await asking.ask(Need(0.0))
    assert asking.order[-1] == 0.0
    await asking.end(0.0, *(AHEAD + number for number in range(8)))


async def test_a_prefetch_that_is_boarded_goes_at_once() -> None:
    """Its need is read again when somebody says that it changed."""
    asking = Asking(limiter_of(2))
    await asking.ask(Need(AHEAD))
    flight = Need(AHEAD + 1)
    await asking.ask(flight)
    assert asking.order == [AHEAD]
    flight.need = 0.0
    asking.limiter.wake()
    await until(lambda: len(asking.order) == 2)
    await asking.end(AHEAD, AHEAD + 1)


async def test_who_is_cancelled_while_waiting_leaves_no_trace() -> None:
    """Also when its turn came together with the cancellation: the turn goes to the next."""
    asking = Asking(limiter_of(2))
    for need in (0.0, 1.0, 2.0, 3.0):
        await asking.ask(Need(need))
    asking.go_on[0.0].set()
    await asking.tasks[0.0]  # the turn was given to 2.0, which has not run yet
    asking.tasks[2.0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking.tasks[2.0]
    await asking.end(1.0, 3.0)
    assert asking.limiter.in_flight == 0
    assert not asking.limiter._waiting


@asynccontextmanager
async def held(limiter: Limiter, count: int, need: float = 0.0) -> AsyncIterator[list[Slot]]:
    """So many requests in the air."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(limiter.slot(Need(need))) for _ in range(count)]


async def test_one_burst_of_refusals_is_one_cut() -> None:
    """However many were in the air: those sent before the cut say nothing about the slots there are since."""
    limiter = limiter_of(64)
    assert limiter.slots == START_SLOTS
    async with held(limiter, START_SLOTS) as slots:
        for slot in slots:
            slot.pushed_back()
    assert limiter.slots == START_SLOTS / 2
    async with held(limiter, 2) as (slot, other):
        slot.pushed_back()
        assert limiter.slots == START_SLOTS / 4
        other.pushed_back()
    assert limiter.slots == START_SLOTS / 4


async def test_a_late_good_answer_does_not_undo_a_cut() -> None:
    """It was asked for when there were more slots."""
    limiter = limiter_of(64)
    async with held(limiter, START_SLOTS) as slots:
        slots[0].pushed_back()
        for slot in slots[1:]:
            slot.went_well()
    assert limiter.slots == START_SLOTS / 2


async def test_it_never_goes_below_two_nor_above_the_most() -> None:
    """A throttled origin is still asked; a patient one gets no more than it may."""
    limiter = limiter_of(64)
    for _ in range(10):
        async with held(limiter, 1) as (slot,):
            slot.pushed_back()
    assert limiter.slots == MIN_SLOTS
    for _ in range(200):
        async with held(limiter, int(limiter.slots)) as slots:
            for slot in slots:
                slot.went_well()
    assert limiter.slots == 64


async def test_prefetch_alone_grows_it_too() -> None:
    """Three quarters of the slots are all that it may use, so using those is using them."""
    limiter = limiter_of(64)
    for _ in range(300):
        async with held(limiter, int(limiter.slots) - max(1, int(limiter.slots) // 4), AHEAD) as slots:
            for slot in slots:
                slot.went_well()
    assert limiter.slots == 64


async def test_a_slot_that_grew_is_given_at_once() -> None:
    """Not when somebody leaves."""
    asking = Asking(limiter_of(64))
    asking.limiter.slots = 2.0
    for need in (0.0, 1.0, 2.0):
        await asking.ask(Need(need))
    assert len(asking.order) == 2
    for _ in range(3):
        asking.limiter.grow(Need(0.0))
    await until(lambda: len(asking.order) == 3)
    await asking.end(0.0, 1.0, 2.0)


async def test_unused_slots_do_not_grow() -> None:
    """Nothing was learned about more requests than were made."""
    limiter = limiter_of(64)
    async with held(limiter, 3) as slots:
        for slot in slots:
            slot.went_well()
    assert limiter.slots == START_SLOTS


async def test_each_origin_has_its_own() -> None:
    """One in trouble slows no other."""
    limiters = Limiters(8)
    assert limiters.of("a") is limiters.of("a")
    async with limiters.of("a").slot(Need(0.0)):
        limiters.of("b")
        assert limiters.in_flight() == {"a": 1, "b": 0}


async def test_a_question_of_a_gate_is_not_held_back_by_a_full_line() -> None:
    """Readers wait for its answer at the end of their shard, and the line is full of what other readers wait for."""
    limiter = Limiter(16)
    limiter.bandwidth.requests = 2
    async with AsyncExitStack() as held, asyncio.timeout(60):
        for _ in range(4):
            await held.enter_async_context(limiter.slot(Need(0.0)))
        async with limiter.slot(Need(WAITED / 2)):
            assert limiter.in_flight == 5


async def test_bodies_that_drip_hold_nobody_back() -> None:
    """After half a minute they leave the line to others; the second's look lets those go that waited for it."""
    now = [0.0]
    limiters = Limiters(16, lambda: now[0])
    limiter = limiters.of("https://o")
    limiter.bandwidth.requests = 2
    async with AsyncExitStack() as stack:
        for _ in range(2):
            slot = await stack.enter_async_context(limiter.slot(Need(0.0)))
            slot.brings_bytes()
        asking = Asking(limiter)
        await asking.ask(Need(AHEAD))
        limiters.look_again()
        await asyncio.sleep(0)
        assert (asking.order, limiter.ahead) == ([], 4)
        now[0] = SLOW_S
        limiter.bandwidth.came(20, now[0])
        limiters.look_again()
        await asyncio.sleep(0)
        assert (asking.order, limiter.ahead) == ([AHEAD], 6)
        await asking.end(AHEAD)


async def test_where_nothing_comes_nobody_is_held_back() -> None:
    """Then it is not the line that those in the air wait for."""
    now = [0.0]
    limiters = Limiters(16, lambda: now[0])
    limiter = limiters.of("https://o")
    async with AsyncExitStack() as stack:
        for _ in range(limiter.bandwidth.requests):
            await stack.enter_async_context(limiter.slot(Need(0.0)))
        asking = Asking(limiter)
        await asking.ask(Need(AHEAD))
        now[0] = STILL_S
        limiters.look_again()
        await asyncio.sleep(0)
        assert asking.order == []
        now[0] = 2 * STILL_S
        limiters.look_again()
        await asyncio.sleep(0)
        assert asking.order == [AHEAD]
        await asking.end(AHEAD)
