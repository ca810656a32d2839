"""How much the cache may hold now."""

from __future__ import annotations

from support.house import FakeClock

from forebay_proxy.policy.eviction.headroom import CEILING_S, LIFT_BYTES, MARGIN_BYTES, Headroom

MIB = 2**20
ASKED = 100 * MIB


def room_of(floor: int = 0) -> tuple[Headroom, FakeClock]:
    clock = FakeClock()
    return Headroom(ASKED, floor, ASKED, clock), clock


def test_a_file_system_that_does_not_say() -> None:
    """What was asked for counts then, and what it refuses."""
    headroom, _ = room_of(floor=10 * MIB)
    headroom.looked(None, 5 * MIB)
    assert headroom.capacity_bytes == ASKED
    headroom.refused(50 * MIB)
    assert headroom.capacity_bytes == 50 * MIB - MARGIN_BYTES


def test_a_refusal_teaches_a_ceiling() -> None:
    """The lowest of those that come together; free bytes that do not grow change nothing."""
    headroom, _ = room_of()
    headroom.looked(60 * MIB, 40 * MIB)
    headroom.refused(40 * MIB)
    headroom.refused(35 * MIB)
    headroom.refused(45 * MIB)
    for held in (40, 30, 20):
        headroom.looked((100 - held) * MIB, held * MIB)
        assert headroom.capacity_bytes == 35 * MIB - MARGIN_BYTES


def test_more_room_lifts_it_at_once() -> None:
    """Whoever filled the disk gave it back. What we free ourselves is no more room: it may shrink further before it grows."""
    headroom, _ = room_of()
    headroom.refused(40 * MIB)
    headroom.looked(1 * MIB, 40 * MIB)
    headroom.looked(20 * MIB, 21 * MIB)
    headroom.looked(1 * MIB, 36 * MIB)
    assert headroom.capacity_bytes == 38 * MIB - 1 * MIB  # ours, less what the others took
    headroom.looked(LIFT_BYTES, 37 * MIB)
    assert headroom.capacity_bytes == LIFT_BYTES + 37 * MIB


def test_a_quota_is_tried_again_after_a_while() -> None:
    """The last refusal counts."""
    headroom, clock = room_of()
    headroom.refused(40 * MIB)
    clock.advance(CEILING_S - 1)
    headroom.refused(40 * MIB)
    clock.advance(CEILING_S - 1)
    headroom.looked(900 * MIB, 40 * MIB)
    assert headroom.capacity_bytes == 40 * MIB - MARGIN_BYTES
    clock.advance(1)
    headroom.looked(900 * MIB, 40 * MIB)
    assert headroom.capacity_bytes == ASKED


def test_there_is_never_more_room_than_the_file_system_has() -> None:
    """Whatever the books say of what it holds: its blocks may be shared or packed."""
    headroom, _ = room_of(floor=10 * MIB)
    headroom.looked(30 * MIB, 60 * MIB, 80 * MIB)
    assert headroom.capacity_bytes == 70 * MIB
