"""Who waits, counted while it lasts."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
from support.house import FakeClock, reader

from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.origins import OriginAnswered, OriginFailed
from forebay_proxy.core.facts.requests import ReaderWaited
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.waits import OPENING, READING, LongWaits, Waits

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


# Long waits are told to the log: once an origin, with their cause, and when they are over

O = "https://o"  # noqa: E741


class Watched:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waits = Waits(Events(), self.clock)
        self.board = OriginBoard(self.clock)
        self.long = LongWaits(self.waits, self.board, self.clock)


def test_a_long_wait_is_one_warning_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    """Not before five seconds, not for each reader, not each second; the URL's query is not shown; the end is told."""
    watched = Watched()
    caplog.set_level(logging.INFO, "forebay")
    with watched.waits.waiting(reader(), f"{O}/a.tar?token=S3CRET", O, OPENING), watched.waits.waiting(reader(1), f"{O}/b.tar", O, OPENING):
        watched.clock.advance(4)
        watched.board.listen(OriginFailed(O, "throttled", "503 Service Unavailable"))
        watched.long.look()
        assert caplog.messages == []
        for _ in range(5):
            watched.clock.advance(2)
            watched.long.look()
        expected = f"shard {O}/a.tar and 1 more readers: waiting for 6 s; {O}: 503 Service Unavailable; it is asked again"
        assert caplog.messages == [expected]
        watched.clock.advance(60)
        watched.long.look()
        assert len(caplog.messages) == 2
    watched.long.look()
    assert caplog.messages[2:] == [f"readers of {O} go on: up to 2 at once waited, for 74 s in all"]


def test_an_origin_that_is_slow_again_and_again_is_one_warning_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Waits of 8 s for each shard of hours, with a second between them."""
    watched = Watched()
    for _ in range(13):
        with watched.waits.waiting(reader(), f"{O}/a.tar", O, OPENING):
            for _ in range(8):
                watched.clock.advance(1)
                watched.long.look()
        watched.clock.advance(1)
        watched.long.look()
    assert [text.partition(": ")[2] for text in caplog.messages] == 2 * [f"waiting for 5 s; {O} has not answered yet"]


def test_a_wait_without_an_error_says_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """Never answered, where a request that ended without any answer is none; or answered before, and slow now."""
    watched = Watched()
    watched.board.listen(OriginAnswered(O, "GET", 0, 1.0))
    watched.board.listen(OriginAnswered("https://p", "GET", 206, 0.1))
    for origin in (O, "https://p"):
        with watched.waits.waiting(reader(), f"{origin}/a.tar", origin, OPENING):
            watched.clock.advance(6)
            watched.long.look()
    assert "has not answered yet" in caplog.messages[0]
    assert "is slow" in caplog.messages[1]
