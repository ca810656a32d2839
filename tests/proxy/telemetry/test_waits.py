"""Who waits, counted while it lasts."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader

from forebay_proxy.core.events import Event, Events, ReaderWaited
from forebay_proxy.telemetry.waits import OPENING, READING, Waits

A = "https://o/a.tar"


class Intake:
    """Waits on a clock that stands still, and what they told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[Event] = []
        board = Events()
        board.listen(self.told.append)
        self.waits = Waits(board, self.clock)


def test_a_wait_is_counted_while_it_lasts() -> None:
    """Each look tells what it has grown by, its end the rest: the sum is exact."""
    intake = Intake()
    with intake.waits.waiting(reader(), A, "https://o", OPENING) as wait:
        intake.clock.advance(3)
        intake.waits.look(1)
        assert intake.told == [ReaderWaited("job", 3, reader())]
        assert (intake.waits.openings(), intake.waits.readers(), intake.waits.seconds(wait)) == (1, {reader()}, 3)
        intake.clock.advance(0.5)
    assert intake.told == [ReaderWaited("job", 3, reader()), ReaderWaited("job", 0.5, reader())]
    assert (wait.seconds, len(intake.waits), intake.waits.openings()) == (3.5, 0, 0)


def test_a_wait_that_fails_is_counted_too() -> None:
    """The origin gave up: the reader had waited all the same."""
    intake = Intake()

    def given_up() -> None:
        with intake.waits.waiting(None, A, "https://o", READING):
            intake.clock.advance(2)
            raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        given_up()
    assert intake.told == [ReaderWaited("", 2, None)]
    assert len(intake.waits) == 0


def test_what_took_no_time_is_no_fact() -> None:
    """A listener hears of waits, not of each look."""
    intake = Intake()
    with intake.waits.waiting(reader(), A, "https://o", READING):
        intake.waits.look(1)
    assert intake.told == []


def test_the_share_is_of_the_readers_time() -> None:
    """One of two readers waits all the time: a half. Nobody there: unknown. What is older than a minute is forgotten."""
    intake = Intake()
    assert intake.waits.share() is None
    with intake.waits.waiting(reader(), A, "https://o", READING):
        for _ in range(30):
            intake.clock.advance(1)
            intake.waits.look(2)
        assert intake.waits.share() == 0.5
    for _ in range(60):
        intake.clock.advance(1)
        intake.waits.look(2)
    assert intake.waits.share() == 0
    for _ in range(60):
        intake.waits.look(0)
    assert intake.waits.share() is None


def test_two_waits_of_one_reader_are_no_more_than_all_its_time() -> None:
    """One worker that opens two shards at once waits for both."""
    intake = Intake()
    with intake.waits.waiting(reader(), A, "https://o", OPENING), intake.waits.waiting(reader(), A, "https://o", READING):
        for _ in range(10):
            intake.clock.advance(1)
            intake.waits.look(1)
    assert intake.waits.share() == 1.0


def test_the_waits_of_now_can_be_walked_while_they_end() -> None:
    """The longest first; a listener that tells of one may end another."""
    intake = Intake()
    first = intake.waits.waiting(reader(), A, "https://o", OPENING)
    wait = first.__enter__()
    intake.clock.advance(1)
    with intake.waits.waiting(reader(1), A, "https://o", READING) as second:
        walked = iter(intake.waits)
        assert next(walked) is wait
        first.__exit__(None, None, None)
        assert list(walked) == [second]
        assert intake.waits.openings() == 0
