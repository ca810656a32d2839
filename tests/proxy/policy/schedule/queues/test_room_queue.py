"""Who found no room is tried again in the order of need."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.policy.schedule.queues.room_queue import RoomQueue


@dataclass(eq=False)
class Lane:
    tight: int = 0


def queue_of(*dues: float) -> tuple[RoomQueue[Lane], list[Lane]]:
    queue, lanes = RoomQueue[Lane](), [Lane() for _ in dues]
    for lane, due in zip(lanes, dues, strict=True):
        queue.put(lane, due)
    return queue, lanes


def test_nobody_is_tried_while_there_is_no_room() -> None:
    """When there may be some, the nearest is first, and one refusal ends the trying."""
    queue, lanes = queue_of(3.0, 1.0, 2.0)
    assert queue.next() is None
    queue.roomy = True
    assert [queue.next(), queue.next()] == [lanes[1], lanes[2]]
    queue.roomy = False
    assert (queue.next(), len(queue)) == (None, 1)


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
