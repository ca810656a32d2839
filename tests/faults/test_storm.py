"""An origin that takes so many requests and refuses the rest: the limiter finds the number, follows it, and wastes little on the way."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support.fault_reads import get
from support.scripted_answers import Answer, Call, Fault
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running, small_segments

from forebay_proxy.transfer.limiter import AHEAD, MIN_SLOTS, Limiter, Slot

T = TypeVar("T")
ROUND_S = 0.2  # how long the origin takes for a good answer
TOO_MANY_S = 0.01  # and for a refusal


# An event loop whose clock jumps to the next timer: minutes of waiting cost nothing, and every run of it is the same.
class _Jump(selectors.SelectSelector):
    """Instead of waiting, moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if timeout is None and not found:
            raise RuntimeError("nothing will ever happen any more")
        if timeout and not found:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time; the loop's ``time()`` is the clock."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


@dataclass
class Busy:
    """Takes ``most`` requests at a time; writes down what came when."""

    most: int
    now: int = 0
    answers: list[tuple[float, bool, bool]] = field(default_factory=list)  # when, whether it was good, whether it was demand

    async def ask(self, chance: random.Random, demand: bool) -> bool:
        good = self.now < self.most
        self.now += good
        await asyncio.sleep(ROUND_S * chance.uniform(0.8, 1.2) if good else TOO_MANY_S)
        self.now -= good
        self.answers.append((asyncio.get_running_loop().time(), good, demand))
        return good

    def between(self, begin: float, end: float) -> list[tuple[bool, bool]]:
        return [(good, demand) for when, good, demand in self.answers if begin <= when < end]


@dataclass
class _Need:
    need: float


class Traffic:
    """Fetches that never run out: each takes a slot, asks, and after a refusal comes again with a full-jitter pause."""

    def __init__(self, origin: Busy, *, demand: int, prefetch: int, limiter: Limiter | None = None) -> None:
        self.origin = origin
        self.limiter = limiter or Limiter(64)
        self.limiter.bandwidth.requests = 128  # nobody says what comes here: the slots are what ends first
        self.slots: list[tuple[float, float]] = []  # when, how many
        self.waits: Counter[bool] = Counter()
        self._needs = [0.0] * demand + [AHEAD + number for number in range(prefetch)]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Traffic:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._fetch(need, number)) for number, need in enumerate(self._needs)]
        self._tasks.append(loop.create_task(self._look()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self.limiter.in_flight == 0

    async def _fetch(self, need: float, number: int) -> None:
        chance, attempts = random.Random(number), 0
        while True:
            async with self.limiter.slot(_Need(need)) as slot:
                good = await self.origin.ask(chance, need < AHEAD)
                self._tell(slot, good)
            attempts = 0 if good else attempts + 1
            await asyncio.sleep(0 if good else chance.uniform(0, min(10.0, 0.1 * 2**attempts)))

    @staticmethod
    def _tell(slot: Slot, good: bool) -> None:
        if good:
            slot.went_well()
        else:
            slot.pushed_back()

    async def _look(self) -> None:
        while True:
            self.slots.append((asyncio.get_running_loop().time(), self.limiter.slots))
            await asyncio.sleep(0.1)

    def mean_slots(self, begin: float, end: float) -> float:
        found = [slots for when, slots in self.slots if begin <= when < end]
        return sum(found) / len(found)


@pytest.mark.parametrize("most", [4, 12, 40])
def test_it_converges_near_what_the_origin_takes(most: int) -> None:
    """Between half of it and a few more, on average above two thirds; at most a few in a hundred answers are refusals."""

    async def main() -> None:
        async with Traffic(Busy(most), demand=64, prefetch=0) as traffic:
            begin = asyncio.get_running_loop().time()
            await asyncio.sleep(120)
            settled = traffic.origin.between(begin + 40, begin + 120)
            assert 0.6 * most <= traffic.mean_slots(begin + 40, begin + 120) <= 1.2 * most
            served = sum(good for good, _ in settled) * ROUND_S / 80
            assert served >= 0.6 * most, "the origin stood idle"
            assert sum(not good for good, _ in settled) <= 0.08 * len(settled)

    run_in_virtual_time(main())


def test_it_follows_an_origin_that_takes_fewer_and_then_more() -> None:
    """Down within seconds; up again one a round trip, so from 4 to 40 within twice forty of them."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        origin = Busy(40)
        async with Traffic(origin, demand=64, prefetch=0) as traffic:
            await asyncio.sleep(60)
            origin.most, fell = 4, clock()
            await asyncio.sleep(60)
            assert traffic.mean_slots(fell + 3, fell + 60) <= 6
            origin.most, rose = 40, clock()
            await asyncio.sleep(60)
            recovered = next(when for when, slots in traffic.slots if when > rose and slots >= 30)
            assert recovered - rose <= 80 * ROUND_S
            assert traffic.mean_slots(rose + 30, rose + 60) >= 24

    run_in_virtual_time(main())


def test_a_storm_of_refusals_is_survived() -> None:
    """Nothing is taken for ten seconds: two requests go on asking; afterwards all of it comes back."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        origin = Busy(32)
        async with Traffic(origin, demand=40, prefetch=0) as traffic:
            await asyncio.sleep(30)
            origin.most, began = 0, clock()
            await asyncio.sleep(10)
            assert traffic.limiter.slots == MIN_SLOTS
            assert 0 < len(origin.between(began + 5, began + 10)) <= 5 * MIN_SLOTS / TOO_MANY_S
            origin.most, ended = 32, clock()
            await asyncio.sleep(40)
            assert traffic.mean_slots(ended + 25, ended + 40) >= 16

    run_in_virtual_time(main())


def test_one_burst_does_not_end_at_the_bottom() -> None:
    """Sixteen requests at once, all refused because of one busy moment: half of the slots are left, not two."""

    async def main() -> None:
        origin = Busy(0)
        async with Traffic(origin, demand=16, prefetch=0) as traffic:
            before = traffic.limiter.slots
            await asyncio.sleep(TOO_MANY_S * 1.5)
            origin.most = 16
            assert traffic.limiter.slots >= before / 4
            assert len(origin.answers) >= 16

    run_in_virtual_time(main())


def test_demand_and_prefetch_share_fairly() -> None:
    """Demand goes first and gets all it asks for; prefetch gets what is left, and alone up to three quarters."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        for demand, prefetch, low, high in ((2, 64, 0.55, 1.0), (64, 64, 0.0, 0.25), (0, 64, 1.0, 1.0)):
            origin = Busy(16)
            async with Traffic(origin, demand=demand, prefetch=prefetch) as traffic:
                begin = clock()
                await asyncio.sleep(60)
                good = [is_demand for is_good, is_demand in origin.between(begin + 20, begin + 60) if is_good]
                share = sum(not is_demand for is_demand in good) / len(good)
                assert low <= share <= high, (demand, prefetch, share)
                if demand == 2:  # two at a time, each a round trip: nothing stood between them and the origin
                    assert sum(good) >= 0.8 * 2 * 40 / ROUND_S
                assert len(good) * ROUND_S / 40 >= 0.5 * 16, "the origin stood idle"
                assert traffic.limiter.slots <= 64

    run_in_virtual_time(main())


@dataclass(repr=False)
class Crowded(Fault):
    """503 SlowDown to whoever is one too many."""

    most: int
    refused: int = 0
    served: int = 0

    def answer(self, call: Call) -> Answer:
        if call.in_flight > self.most:
            self.refused += 1
            return call.honest(status=503, body=b"")
        self.served += 1
        return call.honest(latency_s=0.05)


async def test_a_real_storm_costs_no_read(tmp_path: Path) -> None:
    """32 readers of 32 shards through an origin that takes six requests at a time: every byte arrives, and few requests are refused."""
    segment = 1 << 16
    async with ScriptedOrigin() as origin:
        busy = Crowded(6)
        bodies = [random.Random(number).randbytes(8 * segment) for number in range(32)]
        for number, body in enumerate(bodies):
            origin.put(f"/{number}.tar", body, etag=f'"{number}"', always=busy)
        with running(tmp_path, "--cache-size", "64MiB", allow=[origin.base], program=small_segments(segment)) as sidecar:
            got = await asyncio.gather(*(get(sidecar.port, f"/http/127.0.0.1:{origin.port}/{number}.tar") for number in range(32)))
            throttled = await asyncio.to_thread(sidecar.metric, "forebay_origin_throttled_total")
        assert [(one.status, one.clean, one.body == body) for one, body in zip(got, bodies, strict=True)] == [(200, True, True)] * 32
        assert busy.served >= 256
        assert throttled == busy.refused
        assert busy.refused <= 0.4 * busy.served, "it was asked on and on"
