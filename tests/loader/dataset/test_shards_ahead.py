"""Shards that are opened before their turn: together, a bounded number, and none of them is left open."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Iterable
from itertools import count, islice

import pytest

from forebay_loader.dataset.samples_again import AHEAD, ShardsAhead
from forebay_loader.resume.cursor import Cursor
from forebay_loader.resume.pass_state import PassState, draws_of, packed
from forebay_loader.resume.sample_buffer import SampleBuffer

PATIENCE_S = 30.0


class HeldOpen:
    """What ``enter`` gives: whether it was closed."""

    def __init__(self, item: int) -> None:
        self.item = item
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def test_so_many_at_once() -> None:
    """All that may be open are being opened while the first is waited for; the next one begins when one is taken."""
    gate, begun = threading.Event(), []

    def enter(item: int) -> HeldOpen:
        begun.append(item)
        assert gate.wait(PATIENCE_S)
        return HeldOpen(item)

    ahead = ShardsAhead([*range(60), *range(60)], enter)
    until = time.monotonic() + PATIENCE_S
    while len(begun) < AHEAD and time.monotonic() < until:
        time.sleep(0.001)
    assert sorted(begun) == list(range(AHEAD))
    gate.set()
    assert [ahead.take(item).item for item in (*range(60), 3)] == [*range(60), 3]
    assert sorted(begun) == sorted([*range(60), 3])


def test_an_error_comes_when_its_shard_is_taken() -> None:
    """Not before, and the others are not lost with it."""

    def enter(item: int) -> HeldOpen:
        if item == 1:
            raise OSError("gone")
        return HeldOpen(item)

    ahead = ShardsAhead(range(3), enter)
    assert ahead.take(0).item == 0
    with pytest.raises(OSError, match="gone"):
        ahead.take(1)
    assert ahead.take(2).item == 2


def test_what_nobody_took_is_closed() -> None:
    """That which is open already, and that which is just being opened."""
    gate, made = threading.Event(), [HeldOpen(item) for item in range(3)]

    def enter(item: int) -> HeldOpen:
        assert item != 2 or gate.wait(PATIENCE_S)
        return made[item]

    ahead = ShardsAhead(range(3), enter)
    taken = ahead.take(0)
    ahead.close()
    gate.set()
    assert all(each.closed.wait(PATIENCE_S) for each in made[1:])
    assert not taken.closed.is_set()


class Noted:
    """Stands for what reads samples again: the order that it was told, and the one in which it was asked."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.asked: list[int] = []

    def expect(self, ordinals: Iterable[int]) -> None:
        self.told = list(ordinals)

    def one(self, ordinal: int) -> int:
        self.asked.append(ordinal)
        return ordinal

    def batch(self, ordinals: Iterable[int]) -> list[int]:
        return list(ordinals)


@pytest.mark.parametrize(("held", "size"), [(40, 40), (25, 40), (3, 40)])
@pytest.mark.parametrize("ended", [False, True])
def test_a_buffer_tells_the_order_of_its_draws(held: int, size: int, ended: bool) -> None:
    """It is the order in which it asks for them: of a full buffer, one that still grows, and one behind the end of its data."""
    rng = random.Random(7)
    buffer = {"kind": "shuffle", "refs": packed(range(held)), "rng": draws_of(rng), "ended": ended}
    began = PassState(0, (0, 1), array("i"), array("i"), array("i"), held, {}, (buffer,))
    noted, cursor = Noted(), Cursor(began=began)
    cursor.again = noted
    samples = SampleBuffer(random.Random(1), cursor, size, min(size, 10)).shuffled(count(held))
    list(islice(samples, 6 * size))
    assert noted.told
    assert noted.asked[: len(noted.told)] == noted.told
    assert len(noted.told) >= 0.6 * held
