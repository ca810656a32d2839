"""How much the cache may hold now."""

from __future__ import annotations

from support.house import FakeClock

from forebay_proxy.policy.eviction.headroom import FIRST_WAIT_S, LAST_WAIT_S, LIFT_BYTES, MARGIN_BYTES, Headroom

MIB = 2**20
ASKED = 100 * MIB


def room_of(floor: int = 0) -> tuple[Headroom, FakeClock]:
    clock = FakeClock()
    return Headroom(ASKED, floor, ASKED, clock), clock


def exactly(held: int) -> tuple[int, int]:
    """Nothing is under way on the disk."""
    return held, held


def test_what_others_leave() -> None:
    """What we hold and what is free above the floor; never more than was asked for, never less than nothing."""
    headroom, _ = room_of(floor=10 * MIB)
    headroom.looked(30 * MIB, *exactly(40 * MIB))
    assert headroom.capacity_bytes == 60 * MIB
    headroom.looked(0, *exactly(5 * MIB))
    assert headroom.capacity_bytes == 0
    headroom.looked(900 * MIB, *exactly(5 * MIB))
    assert headroom.capacity_bytes == ASKED


def test_a_file_system_that_does_not_say() -> None:
    """What was asked for counts then, and what it refuses."""
    headroom, _ = room_of(floor=10 * MIB)
    headroom.looked(None, *exactly(5 * MIB))
    assert headroom.capacity_bytes == ASKED
    headroom.refused(50 * MIB)
    assert headroom.capacity_bytes == 50 * MIB - MARGIN_BYTES


def test_a_refusal_teaches_a_ceiling() -> None:
    """The lowest of those that come together; free bytes that do not grow change nothing."""
    headroom, _ = room_of()
    headroom.looked(60 * MIB, *exactly(40 * MIB))
    headroom.refused(40 * MIB)
    headroom.refused(35 * MIB)
    headroom.refused(45 * MIB)
    for held in (40, 30, 20):
        headroom.looked((100 - held) * MIB, *exactly(held * MIB))
        assert headroom.capacity_bytes == 35 * MIB - MARGIN_BYTES


def test_more_room_lifts_it_at_once() -> None:
    """Whoever filled the disk gave it back. What we free ourselves is no more room: it may shrink further before it grows."""
    headroom, _ = room_of()
    headroom.refused(40 * MIB)
    headroom.looked(1 * MIB, *exactly(40 * MIB))
    headroom.looked(20 * MIB, *exactly(21 * MIB))
    headroom.looked(1 * MIB, *exactly(36 * MIB))
    assert headroom.capacity_bytes == 38 * MIB - 1 * MIB  # ours, less what the others took
    headroom.looked(LIFT_BYTES, *exactly(37 * MIB))
    assert headroom.capacity_bytes == LIFT_BYTES + 37 * MIB


def test_a_quota_is_tried_again_ever_less_often() -> None:
    """30, 60, 120 … 600 s; a long peace, and it begins anew."""
    headroom, clock = room_of()
    waits = []
    for _ in range(7):
        headroom.refused(40 * MIB)
        start = clock()
        while headroom.capacity_bytes < ASKED:
            clock.advance(1)
            headroom.looked(900 * MIB, *exactly(40 * MIB))
        waits.append(clock() - start)
        clock.advance(5)
    assert waits == [30, 60, 120, 240, 480, LAST_WAIT_S, LAST_WAIT_S]
    clock.advance(3 * LAST_WAIT_S)
    headroom.refused(40 * MIB)
    clock.advance(FIRST_WAIT_S)
    headroom.looked(900 * MIB, *exactly(40 * MIB))
    assert headroom.capacity_bytes == ASKED


def test_what_is_under_way_changes_nothing() -> None:
    """A segment that is allocated or freed between the file system's count and ours is no room, and no lack of it."""
    headroom, _ = room_of(floor=10 * MIB)
    headroom.looked(40 * MIB, *exactly(30 * MIB))
    assert headroom.capacity_bytes == 60 * MIB
    headroom.looked(40 * MIB, 22 * MIB, 46 * MIB)  # 16 of them came after the count, 8 went before it, or nothing did
    assert headroom.capacity_bytes == 60 * MIB
    headroom.looked(40 * MIB, 24 * MIB, 29 * MIB)  # whatever of that is on the disk, others took 1
    assert headroom.capacity_bytes == 59 * MIB
    headroom.looked(40 * MIB, 32 * MIB, 50 * MIB)  # and gave it back, and 2 more
    assert headroom.capacity_bytes == 62 * MIB


def test_there_is_never_more_room_than_the_file_system_has() -> None:
    """Whatever the books say of what it holds: its blocks may be shared or packed."""
    headroom, _ = room_of(floor=10 * MIB)
    headroom.looked(30 * MIB, *exactly(60 * MIB), 80 * MIB)
    assert headroom.capacity_bytes == 70 * MIB
