"""How many requests in the air a line is worth, by what it brought."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.transfer.bandwidth import (
    ALONE,
    FAST_BYTES_S,
    FEW_RANGES,
    FEWEST,
    LEAST_BYTES,
    MOST_RANGES,
    BandwidthEstimate,
    ConnectionRate,
)

MIB = 2**20
LATENCY_S = 0.065
MB = 10**6


class Line(Protocol):
    """What is told of a line, and says how many requests it is worth."""

    @property
    def requests(self) -> int: ...

    def asked(self, now: float) -> None: ...

    def came(self, size: int, now: float) -> None: ...

    def ended(self, now: float) -> None: ...


def flown(
    bandwidth: Line, *, together: float, connection: float, seconds: float, start: float = 0.0, most: int = 64,
    latency_s: float = LATENCY_S, is_still: Callable[[float], bool] = lambda now: False,
) -> float:  # fmt: skip
    """Keep ``bandwidth.requests`` bodies of 8 MiB in the air on such a line, in steps of 5 ms; the moment at the end. While ``is_still``
    nothing is seen and nothing asked, though bytes come."""
    now, step, unseen = start, 0.005, 0
    bodies: list[list[float]] = []
    while now < start + seconds:
        while not is_still(now) and len(bodies) < min(most, bandwidth.requests):
            bandwidth.asked(now)
            bodies.append([now + latency_s, 8.0 * MIB])
        coming = [body for body in bodies if body[0] <= now and body[1] > 0]
        for body in coming:
            size = min(body[1], step * min(connection, together / len(coming)))
            body[1] -= size
            unseen += int(size)
        if not is_still(now):
            bandwidth.came(unseen, now)
            unseen = 0
        now += step
        for body in [body for body in bodies if body[1] <= 0 and not is_still(now)]:
            bodies.remove(body)
            bandwidth.ended(now)
    for _ in bodies:
        bandwidth.ended(now)
    return now


def test_a_line_that_is_full_is_not_divided_further() -> None:
    """88 MB/s that two connections can fill: not twelve."""
    bandwidth = BandwidthEstimate()
    flown(bandwidth, together=88e6, connection=50e6, seconds=5.0)
    assert FEWEST <= bandwidth.requests <= 8


def test_fewer_are_tried_where_many_were_asked_for_at_once() -> None:
    """Readers that all wait do not make the line wider."""
    bandwidth = BandwidthEstimate()
    bandwidth.requests = 16
    flown(bandwidth, together=88e6, connection=50e6, seconds=8.0)
    assert FEWEST <= bandwidth.requests <= 8


def test_a_line_that_each_request_adds_to_is_given_more() -> None:
    """50 MB/s a connection, and no end of it."""
    bandwidth = BandwidthEstimate()
    flown(bandwidth, together=1e12, connection=50e6, seconds=5.0, most=32)
    assert bandwidth.requests >= 32


def test_a_line_that_became_narrow_is_noticed() -> None:
    """What it carried before is forgotten."""
    bandwidth = BandwidthEstimate()
    now = flown(bandwidth, together=1e12, connection=50e6, seconds=5.0, most=32)
    flown(bandwidth, together=40e6, connection=50e6, seconds=60.0, start=now)  # the first of them take 13 s each
    assert bandwidth.requests <= 8


def test_a_line_that_became_wide_is_noticed() -> None:
    """The limit is no trap."""
    bandwidth = BandwidthEstimate()
    now = flown(bandwidth, together=40e6, connection=50e6, seconds=5.0)
    flown(bandwidth, together=1e12, connection=50e6, seconds=30.0, start=now, most=32)
    assert bandwidth.requests >= 16


class Crowded:
    """A line on which readers wait for six to nine segments at any moment, whatever it is worth; ``seen``: what was thought of it."""

    def __init__(self, rng: random.Random) -> None:
        self.bandwidth = BandwidthEstimate()
        self.seen: list[int] = []
        self._waited = [rng.randint(6, 9) for _ in range(200)]
        self._now = 0.0

    @property
    def requests(self) -> int:
        self.seen.append(self.bandwidth.requests)
        return max(self.bandwidth.requests, self._waited[int(self._now / 0.3) % 200])

    def asked(self, now: float) -> None:
        self._now = now
        self.bandwidth.asked(now)

    def came(self, size: int, now: float) -> None:
        self._now = now
        self.bandwidth.came(size, now)

    def ended(self, now: float) -> None:
        self.bandwidth.ended(now)


def test_a_machine_that_stands_still_now_and_then() -> None:
    """For up to half a second nothing is seen to come, and then all of it at once: neither says what the line carries."""
    seen = []
    for seed in range(4):
        rng = random.Random(seed)
        line = Crowded(rng)
        stills = [(start, start + rng.uniform(0.05, 0.5)) for start in (rng.uniform(0.0, 40.0) for _ in range(10))]
        flown(
            line, together=100e6, connection=100e6, seconds=40.0, latency_s=0.02,
            is_still=lambda now, stills=stills: any(start <= now < end for start, end in stills),
        )  # fmt: skip
        seen += line.seen
    assert sum(requests >= 12 for requests in seen) < 0.1 * len(seen)


def steady(second: float, rng: random.Random) -> int:
    return 8


def early(second: float, rng: random.Random) -> int:
    return 3 if second < 0.7 else 8


def wavering(second: float, rng: random.Random) -> int:
    return rng.randint(6, 9)


def in_bursts(second: float, rng: random.Random) -> int:
    return rng.choice((2, 2, 2, 8))


def worth(demand: Callable[[float, random.Random], int], *, together: float, most: int, seconds: float) -> list[int]:
    """What was allowed at the end of each second while readers ask for ``demand`` bodies by themselves, 20 MB/s a connection."""
    bandwidth, rng, now, bodies, seen = BandwidthEstimate(), random.Random(0), 0.0, list[list[float]](), list[int]()
    asked, asked_at = 0, 0.0
    while now < seconds:
        if now >= asked_at:
            asked, asked_at = demand(now, rng), asked_at + 0.3
        while len(bodies) < max(asked, min(most, bandwidth.requests)):
            bandwidth.asked(now)
            bodies.append([now + 0.06, 8.0 * MIB])
        now += 0.013
        coming = [body for body in bodies if body[0] <= now]
        for body in coming:
            size = min(20e6, together / len(coming)) * 0.013
            body[1] -= size
            bandwidth.came(int(size), now)
            if body[1] <= 0:
                bandwidth.ended(now)
                bodies.remove(body)
        if now >= len(seen) + 1:
            seen.append(bandwidth.requests)
    return seen


@pytest.mark.parametrize(
    "demand", [lambda second, rng: 1, lambda second, rng: 2, lambda second, rng: 3, steady, early, wavering, in_bursts],
    ids=["one", "two", "three", "eight", "early", "wavering", "bursts"],
)  # fmt: skip
def test_what_readers_ask_for_by_themselves_does_not_hold_back_the_rest(demand: Callable[[float, random.Random], int]) -> None:
    """So many are in the air always: fewer cannot be tried, and on a line that each adds to all slots are worth having soon."""
    assert worth(demand, together=1e12, most=16, seconds=6.0)[-1] >= 16


@pytest.mark.parametrize("demand", [steady, early, wavering])
def test_what_readers_ask_for_by_themselves_makes_no_line_wider(demand: Callable[[float, random.Random], int]) -> None:
    """100 MB/s that they fill: more is tried now and then, and left alone."""
    seen = worth(demand, together=100e6, most=64, seconds=60.0)
    assert max(seen) <= 16
    assert sum(requests > 10 for requests in seen) < 0.5 * len(seen)


def test_a_fast_connection_gets_few_ranges_and_a_slow_one_the_most() -> None:
    """Of an unknown one nothing is known: better too many than a stall. An origin that became slow is noticed within two shards."""
    connection_rate = ConnectionRate()
    assert connection_rate.ranges == MOST_RANGES
    connection_rate.measured(8 * MB, 0.04, 1)
    assert connection_rate.ranges == FEW_RANGES
    for _ in range(2):
        connection_rate.measured(8 * MB, 0.4, 1)
    assert connection_rate.ranges == MOST_RANGES


@pytest.mark.parametrize(("size", "company"), [(LEAST_BYTES - 1, 1), (8 * MB, ALONE + 1)])
def test_what_tells_of_something_else_does_not_count(size: int, company: int) -> None:
    """A tiny body tells of its first byte, a crowd of the sharing."""
    connection_rate = ConnectionRate()
    connection_rate.measured(size, 1e-9, company)
    assert connection_rate.connection_bytes_s is None


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e3), st.integers(1, 64))))
def test_ranges_follow_the_rate(bodies: list[tuple[int, float, int]]) -> None:
    """Whatever was measured, few ranges mean a fast connection."""
    connection_rate = ConnectionRate()
    for size, seconds, company in bodies:
        connection_rate.measured(size, seconds, company)
    known = connection_rate.connection_bytes_s
    assert (connection_rate.ranges == FEW_RANGES) == (known is not None and known >= FAST_BYTES_S)
