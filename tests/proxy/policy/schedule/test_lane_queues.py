"""Where a reader's lanes stand."""

from __future__ import annotations

from support.house import FakeClock, reader, shard_of

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.cursors import OriginCursor, ReaderCursors
from forebay_proxy.policy.schedule.lane_queues import LaneQueues, RoomQueue
from forebay_proxy.policy.schedule.window import ReadAheadWindow, WindowShares

ORIGINS = ("https://a", "https://b")


class Scheduled:
    def __init__(self) -> None:
        plans = PlanRegistry(FakeClock())
        plans.replace(reader(), [shard_of(f"{origin}/set/0.tar") for origin in ORIGINS])
        plan = plans.get(reader())
        assert plan is not None
        self.shares = WindowShares(lambda: 2**40)
        self.shares.add(reader())
        self.mine = ReaderCursors(plan, ReadAheadWindow(self.shares.limit_bytes("job"), SEGMENT_BYTES), plans.shard_at)
        self.queues = LaneQueues(self.shares, lambda lane: float(lane.indices[0]) if lane.indices else 0.0)

    def lane(self, number: int) -> OriginCursor:
        lane = self.mine.lane(ORIGINS[number])
        if not lane.indices:
            lane.insert(number)
        return lane


def test_a_queue_that_nobody_stands_in_goes() -> None:
    """It is made again when somebody does."""
    scheduled = Scheduled()
    lane = scheduled.lane(0)
    scheduled.queues.requeue(lane)
    scheduled.queues.dequeue(lane)
    assert scheduled.queues.nearest(ORIGINS[0]) is None
    assert scheduled.queues.origins() == []
    scheduled.queues.put(lane)
    assert scheduled.queues.nearest(ORIGINS[0]) is lane


def queue_of(*dues: float) -> tuple[RoomQueue, list[OriginCursor]]:
    mine, queue = Scheduled().mine, RoomQueue()
    lanes = [OriginCursor(mine, ORIGINS[0]) for _ in dues]
    for lane, due in zip(lanes, dues, strict=True):
        queue.put(lane, due)
    return queue, lanes


def test_who_is_taken_out_is_passed_over() -> None:
    """Also where it waits again with another need."""
    queue, lanes = queue_of(1.0, 2.0, 3.0)
    queue.remove(lanes[0])
    queue.put(lanes[1], 4.0)
    queue.roomy = True
    assert [queue.next(), queue.next(), queue.next()] == [lanes[2], lanes[1], None]


def test_places_that_are_nobodys_do_not_pile_up() -> None:
    """However often one stands aside."""
    queue, lanes = queue_of(0.0)
    for due in range(1000):
        queue.put(lanes[0], float(due))
    assert len(queue) == 1
    assert len(queue._heap) <= 70
