"""What is asked of an origin, against models a child could follow: which answers are taken, how long is waited, how many ask at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.house import FakeClock

from forebay_proxy.core.errors import OriginLied, OriginTimeout, OriginUnavailable, ShardError
from forebay_proxy.core.shard import ByteRange
from forebay_proxy.origins.response import OriginResponse, Placement, placement
from forebay_proxy.transfer.limiter import AHEAD, MIN_SLOTS, Limiter, Slot
from forebay_proxy.transfer.retry import LIES, RetryBudget

SMALL = st.integers(0, 12)
PLACES = st.builds("bytes {}-{}/{}".format, SMALL, SMALL, st.one_of(SMALL, st.just("*")))
SAID = st.one_of(
    PLACES, st.none(), st.text(max_size=20), st.builds("{} {}".format, st.sampled_from(["bytes", "items", "Bytes"]), st.text(max_size=8))
)
ASKED = st.one_of(st.none(), st.builds(ByteRange, SMALL), st.tuples(SMALL, SMALL).map(lambda ends: ByteRange(min(ends), max(ends))))
PLAIN = [f"bytes {first}-{last}/{total}" for first in range(13) for last in range(13) for total in [*range(13), "*"]]


def model(status: int, said: str | None, length: int | None, asked: ByteRange | None) -> Placement | None:
    """Which bytes an answer has, None for a lie; all places that can be meant are simply tried."""
    if status == 200 and (asked is None or said is None):
        return Placement(0, length, length, ranged=False)
    if asked is None or said is None:
        return None
    for first in range(13):
        for last in range(first, 13):
            for total in [*range(last + 1, 13), None]:
                told = f"bytes {first}-{last}/{'*' if total is None else total}"
                if said.strip().lower() != told:
                    continue
                wanted = set(range(asked.first, 13 if asked.last is None else asked.last + 1))
                begins, within = first == asked.first, set(range(first, last + 1)) <= wanted
                fits = length is None or length == last - first + 1
                return Placement(first, last - first + 1, total, ranged=True) if begins and within and fits else None
    return None


def taken(status: int, said: str | None, length: int | None, asked: ByteRange | None) -> Placement | None:
    headers = {"content-range": said, "content-length": None if length is None else str(length)}
    try:
        return placement("s", OriginResponse(status, {name: value for name, value in headers.items() if value is not None}), asked)
    except OriginLied:
        return None


@given(st.sampled_from([200, 206]), SAID, st.one_of(st.none(), SMALL), ASKED)
def test_an_answer_is_taken_exactly_where_it_says_what_was_asked(
    status: int, said: str | None, length: int | None, asked: ByteRange | None
) -> None:
    """Whatever Content-Range holds."""
    assert taken(status, said, length, asked) == model(status, said, length, asked)


@pytest.mark.parametrize("asked", [ByteRange(0, 5), ByteRange(3, 3), ByteRange(4)])
def test_every_small_place_is_judged_as_the_model_says(asked: ByteRange) -> None:
    """All 2,366 of them."""
    assert [said for said in PLAIN if taken(206, said, None, asked) != model(206, said, None, asked)] == []


ERRORS = st.one_of(
    st.builds(lambda wish: OriginUnavailable("s", "503", retry_after_s=wish), st.one_of(st.none(), st.floats(0, 1000))),
    st.just(OriginTimeout("s", "slow")),
    st.just(OriginLied("s", "nonsense")),
)


@given(st.floats(0, 600), st.lists(st.tuples(ERRORS, st.floats(0, 20), st.booleans()), max_size=40), st.integers(), st.floats(0, 100))
def test_patience_never_exceeds_its_budget(budget: float, story: list[tuple[ShardError, float, bool]], seed: int, queued: float) -> None:
    """From the last progress to the end of a pause it grants never more than the budget passes, our own queue not counted."""

    async def main() -> None:
        clock = FakeClock()
        retry_budget = RetryBudget(lambda: budget, clock, clock.sleep, random.Random(seed))
        clock.advance(queued)
        retry_budget.queued(queued)
        began, lies = clock.now, 0
        for error, took, progressed in story:
            clock.advance(took)
            if progressed:
                retry_budget.progress()
                began, lies = clock.now, 0
            before = clock.now
            lies += isinstance(error, OriginLied)
            try:
                await retry_budget.pause(error)
            except ShardError:
                assert clock.now == before, "it slept, and gave up all the same"
                return
            assert clock.now - began <= budget + 1e-6
            assert lies < LIES
            if isinstance(error, OriginUnavailable):
                assert clock.now - before >= (error.retry_after_s or 0.0), "the origin's wish is the least"

    asyncio.run(main())


class _Need:
    def __init__(self, need: float) -> None:
        self.need = need


class LimiterMachine(RuleBasedStateMachine):
    """Requests come, end well or badly, in any order: slots stay within their bounds, and so do the requests in the air."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.limiter = Limiter(20)
        self.limiter.bandwidth.requests = 40  # a line that is not what ends first
        self.most_in_flight = 0
        self.held: list[tuple[AsyncExitStack, Slot]] = []
        self.waiting: list[asyncio.Task[None]] = []

    def teardown(self) -> None:
        for task in self.waiting:
            task.cancel()
        while self.held:
            self._leave(0)
        self.loop.run_until_complete(self._all_ended())
        self.loop.close()
        assert self.limiter.in_flight == 0
        assert not self.limiter._waiting

    async def _all_ended(self) -> None:
        await asyncio.gather(*self.waiting, return_exceptions=True)
        while self.held:  # its turn came while we were leaving
            await self.held.pop()[0].aclose()

    def _turn(self) -> None:
        for _ in range(3):
            self.loop.run_until_complete(asyncio.sleep(0))

    def _leave(self, index: int) -> Slot:
        stack, slot = self.held.pop(index % len(self.held))
        self.loop.run_until_complete(stack.aclose())
        self._turn()
        return slot

    async def _take(self, need: float) -> None:
        stack = AsyncExitStack()
        slot = await stack.enter_async_context(self.limiter.slot(_Need(need)))
        self.held.append((stack, slot))

    @rule(need=st.sampled_from([0.0, 1.0, AHEAD, AHEAD + 5]))
    def comes(self, need: float) -> None:
        self.waiting.append(self.loop.create_task(self._take(need)))
        self._turn()

    @rule(index=st.integers(0, 100), good=st.booleans())
    def is_answered(self, index: int, good: bool) -> None:
        if self.held:
            slot = self.held[index % len(self.held)][1]
            before, cuts = self.limiter.slots, self.limiter.cuts
            (slot.went_well if good else slot.pushed_back)()
            assert self.limiter.slots >= before / 2
            assert self.limiter.cuts <= cuts + 1
            self._turn()

    @rule(index=st.integers(0, 100))
    def leaves(self, index: int) -> None:
        if self.held:
            slot = self._leave(index)
            slot.leave()

    @rule(index=st.integers(0, 100))
    def is_cancelled(self, index: int) -> None:
        pending = [task for task in self.waiting if not task.done()]
        if pending:
            pending[index % len(pending)].cancel()
            self._turn()

    @invariant()
    def slots_stay_within_bounds(self) -> None:
        assert MIN_SLOTS <= self.limiter.slots <= self.limiter.most

    @invariant()
    def nobody_is_counted_twice_or_never(self) -> None:
        assert self.limiter.in_flight == len(self.held)
        assert self.limiter.in_flight <= self.limiter.most

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        if any(not task.done() for task in self.waiting):
            assert self.limiter.in_flight >= int(self.limiter.slots) - max(1, int(self.limiter.slots) // 4)


TestLimiter = LimiterMachine.TestCase
