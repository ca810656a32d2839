"""Who waits, counted while it lasts."""

from __future__ import annotations

from contextlib import suppress

import pytest
from support.house import FakeClock, reader

from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.requests import ReaderWaited
from forebay_proxy.telemetry.waits import OPENING, READING, Waits

A = "https://o/a.tar"


class Clocked:
    """Waits on a clock that stands still, and what they told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[Event] = []
        board = Events()
        board.listen(self.told.append)
        self.waits = Waits(board, self.clock)


def test_a_wait_is_counted_while_it_lasts() -> None:
    """Each look tells what it has grown by, its end the rest: the sum is exact."""
    clocked = Clocked()
    with clocked.waits.waiting(reader(), A, "https://o", OPENING) as wait:
        clocked.clock.advance(3)
        clocked.waits.look(1)
        assert clocked.told == [ReaderWaited("job", 3, reader())]
        assert (clocked.waits.openings(), clocked.waits.readers(), clocked.waits.seconds(wait)) == (1, {reader()}, 3)
        clocked.clock.advance(0.5)
    assert clocked.told == [ReaderWaited("job", 3, reader()), ReaderWaited("job", 0.5, reader())]
    assert (wait.seconds, len(clocked.waits), clocked.waits.openings()) == (3.5, 0, 0)


def test_a_wait_that_fails_is_counted_too() -> None:
    """The origin gave up: the reader had waited all the same."""
    clocked = Clocked()

    def given_up() -> None:
        with clocked.waits.waiting(None, A, "https://o", READING):
            clocked.clock.advance(2)
            raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        given_up()
    assert clocked.told == [ReaderWaited("", 2, None)]
    assert len(clocked.waits) == 0


@pytest.mark.parametrize(
    ("fails", "pause_s", "again", "seconds"),
    [(True, 1.0, A, 6.0), (True, 10.0, A, 0.0), (False, 1.0, A, 0.0), (True, 1.0, "https://o/b.tar", 0.0)],
    ids=["in vain", "long ago", "in success", "another shard"],
)
def test_who_asks_again_waits_still(fails: bool, pause_s: float, again: str, seconds: float) -> None:
    """The wait is as long as all its questions together; what is counted is counted once."""
    clocked = Clocked()
    with suppress(ValueError), clocked.waits.waiting(reader(), A, "https://o", OPENING):
        clocked.clock.advance(5)
        if fails:
            raise ValueError
    clocked.clock.advance(pause_s)
    with clocked.waits.waiting(reader(), again, "https://o", OPENING) as wait:
        assert clocked.waits.seconds(wait) == seconds
        clocked.clock.advance(2)
    assert wait.seconds == 2
    assert clocked.told == [ReaderWaited("job", 5, reader()), ReaderWaited("job", 2, reader())]


def test_who_asks_again_before_its_last_question_is_dropped_waits_still() -> None:
    """That a client has left is noticed late. Clients without a name are many."""
    clocked = Clocked()
    for who, seconds in ((reader(), 5.0), (None, 0.0)):
        with clocked.waits.waiting(who, A, "https://o", OPENING):
            clocked.clock.advance(5)
            with clocked.waits.waiting(who, A, "https://o", OPENING) as wait:
                assert clocked.waits.seconds(wait) == seconds


def test_the_share_is_of_the_readers_time() -> None:
    """One of two readers waits all the time: a half. Nobody there: unknown. What is older than a minute is forgotten."""
    clocked = Clocked()
    assert clocked.waits.share() is None
    with clocked.waits.waiting(reader(), A, "https://o", READING):
        for _ in range(30):
            clocked.clock.advance(1)
            clocked.waits.look(2)
        assert clocked.waits.share() == 0.5
    for _ in range(60):
        clocked.clock.advance(1)
        clocked.waits.look(2)
    for _ in range(59):
        clocked.waits.look(0)
    assert clocked.waits.share() == 0
    clocked.waits.look(0)
    assert clocked.waits.share() is None


def test_two_waits_of_one_reader_are_no_more_than_all_its_time() -> None:
    """One worker that opens two shards at once waits for both."""
    clocked = Clocked()
    with clocked.waits.waiting(reader(), A, "https://o", OPENING), clocked.waits.waiting(reader(), A, "https://o", READING):
        for _ in range(10):
            clocked.clock.advance(1)
            clocked.waits.look(1)
    assert clocked.waits.share() == 1.0


def test_the_waits_of_now_can_be_walked_while_they_end() -> None:
    """The longest first; a listener that tells of one may end another."""
    clocked = Clocked()
    first = clocked.waits.waiting(reader(), A, "https://o", OPENING)
    wait = first.__enter__()
    clocked.clock.advance(1)
    with clocked.waits.waiting(reader(1), A, "https://o", READING) as second:
        walked = iter(clocked.waits)
        assert next(walked) is wait
        first.__exit__(None, None, None)
        assert list(walked) == [second]
        assert clocked.waits.openings() == 0
