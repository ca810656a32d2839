"""What a cursor passes, what it stops at, and when that is needed."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader, shard_of

from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.segments import SEGMENT_BYTES as SEGMENT
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.cursor_walk import CHECKS_AHEAD, FRONT, CursorWalk, PendingShards, RevalidationQueue
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
        self.pending = PendingShards(RevalidationQueue(plans, lambda name: None))
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


def test_the_front_is_a_few_shards_ahead(scheduled: Scheduled) -> None:
    """However long the plan is; what is passed brings the next."""
    assert scheduled.lane.indices == list(range(FRONT))
    scheduled.walk.pass_by(scheduled.lane)
    assert scheduled.lane.indices == list(range(1, FRONT + 1))


def test_a_cursor_stops_at_what_is_missing(scheduled: Scheduled) -> None:
    """What it passed is the reader's lead."""
    scheduled.view.here = {(SHARDS[0].name, 0), (SHARDS[0].name, 2)}
    assert not scheduled.walk.walk(scheduled.lane)
    assert (scheduled.lane.segment, scheduled.mine.lead.bytes) == (1, SEGMENT)
    scheduled.view.here.add((SHARDS[0].name, 1))
    assert scheduled.walk.walk(scheduled.lane)
    assert scheduled.mine.lead.bytes == 3 * SEGMENT


def test_what_cannot_be_had_is_no_lead(scheduled: Scheduled) -> None:
    """The cursor passes it."""
    scheduled.pending.fail(SHARDS[0].name)
    assert scheduled.walk.walk(scheduled.lane)
    assert scheduled.mine.lead.bytes == 0


def test_what_is_being_opened_counts_as_a_shard_like_others(scheduled: Scheduled) -> None:
    """A quarter of the window where none of them is known."""
    del scheduled.view.lengths[SHARDS[0].name]
    scheduled.pending.opening.add(SHARDS[0].name)
    assert scheduled.walk.walk(scheduled.lane)
    assert scheduled.mine.lead.bytes == scheduled.mine.window.bytes // 4
    scheduled.readers.lengths.learn("job", 5 * SEGMENT)
    assert scheduled.walk.walk(scheduled.lane)
    assert scheduled.mine.lead.bytes == 5 * SEGMENT


def test_asking_moves_the_cursor_on(scheduled: Scheduled) -> None:
    """Segment by segment, then to the next shard."""
    asked = []
    for _ in range(4):
        scheduled.lanes.requeue(scheduled.lane)
        request = scheduled.walk.ask(scheduled.lane)
        asked.append((request.shard.name, request.index, request.size))
    assert asked == [(SHARDS[0].name, index, SEGMENT) for index in range(3)] + [(SHARDS[1].name, 0, SEGMENT)]
    assert scheduled.mine.lead.bytes == 4 * SEGMENT


def test_an_unknown_shard_is_opened(scheduled: Scheduled) -> None:
    """What is guessed of its length is not compared with other readers' leads."""
    del scheduled.view.lengths[SHARDS[0].name]
    scheduled.lanes.requeue(scheduled.lane)
    request = scheduled.walk.ask(scheduled.lane)
    assert (request.index, scheduled.pending.opening, scheduled.lane.indices[0]) == (None, {SHARDS[0].name}, 1)
    assert scheduled.mine.lead.known_before(1, 0) == SEGMENT


def test_the_next_few_stored_shards_are_compared(scheduled: Scheduled) -> None:
    """Each once, where its job has not compared it yet."""
    scheduled.view.is_fresh = False
    for _ in range(2):
        scheduled.walk.look_for_checks(scheduled.mine)
    assert [shard.name in scheduled.pending.revalidations for shard in SHARDS] == [index < CHECKS_AHEAD for index in range(len(SHARDS))]
    assert scheduled.mine.asked == set(range(CHECKS_AHEAD))


def test_what_waits_for_its_comparison_is_passed_once(scheduled: Scheduled) -> None:
    """Its answer may be worth nothing by the time the cursor comes back; then the shard is asked for all the same."""
    scheduled.view.is_fresh = False
    assert scheduled.walk.walk(scheduled.lane)
    assert scheduled.mine.lead.bytes == 3 * SEGMENT
    scheduled.pending.ended(SHARDS[0].name)
    scheduled.mine.lead.uncount(0)
    assert not scheduled.walk.walk(scheduled.lane)


# When it is needed


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
