"""What a cursor passes, and what it stops at."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader, shard_of

from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.segments import SEGMENT_BYTES as SEGMENT
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.cursor_walk import CHECKS_AHEAD, FRONT, CursorWalk, NeedTimes
from forebay_proxy.policy.schedule.cursors import OriginCursor
from forebay_proxy.policy.schedule.lane_queues import LaneQueues
from forebay_proxy.policy.schedule.pending_shards import PendingShards, RevalidationQueue
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
        plans = PlanRegistry(FakeClock())
        self.view = View()
        self.readers = PlannedReaders(plans, self.view)
        self.pending = PendingShards(RevalidationQueue(plans, lambda name: None))
        needs = NeedTimes(self.view, self.readers.rates)
        self.lanes = LaneQueues(self.readers.shares, needs.due)
        self.walk = CursorWalk(self.readers, self.view, self.pending, self.lanes, needs)
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
