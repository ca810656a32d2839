"""Who waits, counted while it lasts."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader

from forebay_proxy.core.events import Event, Events, ReaderWaited
from forebay_proxy.telemetry.waits import OPENING, READING, Waits

A = "https://o/a.tar"


class Desk:
    """Waits on a clock that stands still, and what they told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[Event] = []
        board = Events()
        board.listen(self.told.append)
        self.waits = Waits(board, self.clock)


def test_a_wait_is_counted_while_it_lasts() -> None:
    """Each look tells what it has grown by, its end the rest: the sum is exact."""
    desk = Desk()
    with desk.waits.waiting(reader(), A, "https://o", OPENING) as wait:
        desk.clock.advance(3)
        desk.waits.look(1)
        assert desk.told == [ReaderWaited("job", 3, reader())]
        assert (desk.waits.openings(), desk.waits.readers(), desk.waits.seconds(wait)) == (1, {reader()}, 3)
        desk.clock.advance(0.5)
    assert desk.told == [ReaderWaited("job", 3, reader()), ReaderWaited("job", 0.5, reader())]
    assert (wait.seconds, len(desk.waits), desk.waits.openings()) == (3.5, 0, 0)


def test_a_wait_that_fails_is_counted_too() -> None:
    """The origin gave up: the reader had waited all the same."""
    desk = Desk()

    def given_up() -> None:
        with desk.waits.waiting(None, A, "https://o", READING):
            desk.clock.advance(2)
            raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        given_up()
    assert desk.told == [ReaderWaited("", 2, None)]
    assert len(desk.waits) == 0


def test_what_took_no_time_is_no_fact() -> None:
    """A listener hears of waits, not of each look."""
    desk = Desk()
    with desk.waits.waiting(reader(), A, "https://o", READING):
        desk.waits.look(1)
    assert desk.told == []


def test_the_share_is_of_the_readers_time() -> None:
    """One of two readers waits all the time: a half. Nobody there: unknown. What is older than a minute is forgotten."""
    desk = Desk()
    assert desk.waits.share() is None
    with desk.waits.waiting(reader(), A, "https://o", READING):
        for _ in range(30):
            desk.clock.advance(1)
            desk.waits.look(2)
        assert desk.waits.share() == 0.5
    for _ in range(60):
        desk.clock.advance(1)
        desk.waits.look(2)
    assert desk.waits.share() == 0
    for _ in range(60):
        desk.waits.look(0)
    assert desk.waits.share() is None
