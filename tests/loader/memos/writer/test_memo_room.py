"""Who leaves for whom: what nobody used for two passes, the oldest first; else the newcomer stays outside."""

from __future__ import annotations

import random

import pytest

from forebay_loader.memos.writer.memo_room import MemoRoom


def key(number: int, of: int = 0) -> bytes:
    return bytes([of]) * 8 + number.to_bytes(16, "little")


def test_what_fits_is_kept() -> None:
    """To the last byte; what is larger than all never is."""
    room = MemoRoom(100)
    assert room.admit(key(1), 60) == []
    assert room.admit(key(2), 40) == []
    assert room.admit(key(3), 1) is None
    assert MemoRoom(100).admit(key(1), 101) is None
    assert (len(room), room.held_bytes) == (2, 100)


def test_an_entry_anew_takes_its_own_place() -> None:
    """Another size counts instead of the first."""
    room = MemoRoom(100)
    assert room.admit(key(1), 90) == []
    assert room.admit(key(1), 100) == []
    assert (len(room), room.held_bytes) == (1, 100)
    room.forget(key(1))
    room.forget(key(2))
    assert room.held_bytes == 0


def test_a_transform_that_nobody_asks_for_leaves() -> None:
    """Entries of an earlier run whose code was another: the oldest first, no more than must."""
    room = MemoRoom(100, [(key(number, of=1), 20) for number in range(5)])
    room.used(key(9))
    assert room.admit(key(1), 30) == [key(0, of=1), key(1, of=1)]


def test_an_entry_of_an_earlier_run_stays_for_two_passes() -> None:
    """Its transform is asked for, it may come yet; after that it leaves."""
    room = MemoRoom(100, [(key(0), 50), (key(1), 50)])
    for _ in range(3):
        room.used(key(1))
        assert room.admit(key(2), 50) in (None, [key(0)])
    assert room.admit(key(3), 50) == [key(0)] or key(0) not in room._entries


def test_a_store_that_is_too_large_shrinks() -> None:
    """That of a run with another size."""
    room = MemoRoom(50, [(key(number), 20) for number in range(5)])
    assert room.excess() == [key(0), key(1), key(2)]
    assert room.held_bytes == 40


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_passes_over_more_than_fits_hit_what_fits(share: float) -> None:
    """Shuffled passes over 200 entries: of each the share that there is room for, as no order could better; the oldest use gives less."""
    room, rng, hits = MemoRoom(int(200 * share)), random.Random(1), 0
    for number in range(6):
        order = list(range(200))
        rng.shuffle(order)
        for one in order:
            held = key(one) in room._entries
            room.used(key(one))
            hits += held and number > 0
            if not held:
                room.admit(key(one), 1)
        assert room.held_bytes <= room.bound_bytes
    assert hits >= 0.95 * 5 * int(200 * share)
