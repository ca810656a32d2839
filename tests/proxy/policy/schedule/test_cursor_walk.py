"""What a cursor passes, what it stops at, and when that is needed."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader, shard_of

from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.segments import SEGMENT_BYTES as SEGMENT
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.cursor_walk import CursorWalk, PendingShards
from forebay_proxy.policy.schedule.cursors import OriginCursor
from forebay_proxy.policy.schedule.planned_readers import PlannedReaders

SHARDS = [shard_of(f"https://o/set/{number}.tar") for number in range(100)]


class View:
    layout = DEFAULT_LAYOUT

    def __init__(self) -> None:
        self.lengths = {shard.name: 3 * SEGMENT for shard in SHARDS}
        self.here: set[tuple[str, int]] = set()
        self.is_fresh = True

    def capacity(self) -> int:
        return 2**40

    def length(self, name: str) -> int | None:
        return self.lengths.get(name)

    def has(self, name: str, index: int) -> bool:
        return (name, index) in self.here

    def fresh(self, name: str, job: str) -> bool:
        return self.is_fresh

    def may_ask(self, origin: str) -> bool:
        return True


class Scheduled:
    """One reader of all shards, and its cursor at their only origin."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.plans = plans = PlanRegistry(self.clock)
        self.view = View()
        self.readers = PlannedReaders(plans, self.view)
        self.pending = PendingShards(plans, lambda name: None)
        self.walk = CursorWalk(self.readers, self.view, self.pending)
        self.lanes = self.walk.lanes
        plans.replace(reader(), SHARDS)
        plan = plans.get(reader())
        assert plan is not None
        _, mine = self.readers.advanced(plan)
        assert mine is not None
        self.mine = mine
        self.walk.sort(mine)

    @property
    def lane(self) -> OriginCursor:
        (lane,) = self.mine.lanes.values()
        return lane


@pytest.fixture
def scheduled() -> Scheduled:
    return Scheduled()


def test_each_segment_has_its_part_of_the_reading_time(scheduled: Scheduled) -> None:
    """By the reader's own rate."""
    first = scheduled.walk.need(scheduled.lane)
    scheduled.lane.segment = 2
    assert scheduled.walk.need(scheduled.lane) - first == pytest.approx(2 / 3 / scheduled.mine.plan.pace.rate)


def test_whose_lead_is_less_is_first(scheduled: Scheduled) -> None:
    """By the rate its job's readers share; a guess is no lead."""
    scheduled.readers.rates.learn("job", 1.0, 100)
    scheduled.mine.lead.count(0, 500)
    since = scheduled.mine.plan.pace.since
    scheduled.mine.inside.has_waited = True
    assert scheduled.walk.due(scheduled.lane) == pytest.approx(since + 5.0)
    scheduled.mine.lead.guessed(0, 200)
    assert scheduled.walk.due(scheduled.lane) == pytest.approx(since + 3.0)


def test_what_the_reader_is_in_is_lead_too(scheduled: Scheduled) -> None:
    """From when it was opened."""
    scheduled.readers.rates.learn("job", 1.0, 100)
    scheduled.clock.advance(10.0)
    scheduled.plans.opened(SHARDS[0], reader())
    scheduled.mine.inside.bytes, scheduled.mine.inside.has_waited = 300, True
    assert scheduled.walk.due(scheduled.lane) == pytest.approx(scheduled.clock.now + 3.0)


def test_a_lane_that_wants_nothing_is_never_due(scheduled: Scheduled) -> None:
    """It has no need."""
    scheduled.lane.indices.clear()
    assert scheduled.walk.due(scheduled.lane) == float("inf")
