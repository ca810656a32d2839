"""When what a cursor points at is needed."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader, shard_of

from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.core.segments import SEGMENT_BYTES as SEGMENT
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.cursor_walk import NeedTimes
from forebay_proxy.policy.schedule.cursors import ReaderCursors
from forebay_proxy.policy.schedule.planned_readers import JobRates
from forebay_proxy.policy.schedule.window import ReadAheadWindow

SHARDS = [shard_of(f"https://o/set/{number}.tar") for number in range(5)]


class View:
    """Every shard has four segments."""

    layout = DEFAULT_LAYOUT

    def length(self, name: str) -> int | None:
        return 4 * SEGMENT


class Scheduled:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.plans = PlanRegistry(self.clock)
        self.plans.replace(reader(), SHARDS)
        plan = self.plans.get(reader())
        assert plan is not None
        self.rates = JobRates()
        self.needs = NeedTimes(View(), self.rates)  # type: ignore[arg-type]
        self.mine = ReaderCursors(plan, ReadAheadWindow(2**30, SEGMENT_BYTES), self.plans.shard_at)
        self.lane = self.mine.lane("https://o")
        self.lane.insert(2)


@pytest.fixture
def scheduled() -> Scheduled:
    return Scheduled()


def test_each_segment_has_its_part_of_the_reading_time(scheduled: Scheduled) -> None:
    """By the reader's own rate."""
    first = scheduled.needs.need(scheduled.lane)
    scheduled.lane.segment = 2
    assert scheduled.needs.need(scheduled.lane) - first == pytest.approx(0.5 / scheduled.mine.plan.pace.rate)


def test_whose_lead_is_less_is_first(scheduled: Scheduled) -> None:
    """By the rate its job's readers share; a guess is no lead."""
    scheduled.rates.learn("job", 1.0, 100)
    scheduled.mine.lead.count(0, 500)
    since = scheduled.mine.plan.pace.since
    scheduled.mine.inside.has_waited = True
    assert scheduled.needs.due(scheduled.lane) == pytest.approx(since + 5.0)
    scheduled.mine.lead.guessed(0, 200)
    assert scheduled.needs.due(scheduled.lane) == pytest.approx(since + 3.0)


def test_what_the_reader_is_in_is_lead_too(scheduled: Scheduled) -> None:
    """From when it was opened."""
    scheduled.rates.learn("job", 1.0, 100)
    scheduled.clock.advance(10.0)
    scheduled.plans.opened(SHARDS[0], reader())
    scheduled.mine.inside.bytes, scheduled.mine.inside.has_waited = 300, True
    assert scheduled.needs.due(scheduled.lane) == pytest.approx(scheduled.clock.now + 3.0)


def test_a_lane_that_wants_nothing_is_never_due(scheduled: Scheduled) -> None:
    """It has no need."""
    scheduled.lane.done()
    assert scheduled.needs.due(scheduled.lane) == float("inf")
