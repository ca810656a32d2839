"""Long waits are told to the log: once an origin, with their cause, and when they are over."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import pytest
from support.house import FakeClock, reader

from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginAnswered, OriginFailed
from forebay_proxy.telemetry.long_waits import LongWaits
from forebay_proxy.telemetry.origin_board import OriginBoard
from forebay_proxy.telemetry.verdict import verdict
from forebay_proxy.telemetry.waits import OPENING, Waits

O = "https://o"  # noqa: E741


class Clocked:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.waits = Waits(Events(), self.clock)
        self.board = OriginBoard(self.clock)
        self.long = LongWaits(self.waits, self.board, self.clock)

    def verdict(self, disk_state: str = "normal") -> str:
        return verdict(self.waits, self.board, readers=1, disk_state=disk_state, disk_reason="no space left", in_flight={O: 2})


def test_a_long_wait_is_one_warning_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    """Not before five seconds, not for each reader, not each second; the URL's query is not shown; the end is told."""
    clocked = Clocked()
    caplog.set_level(logging.INFO, "forebay")
    with clocked.waits.waiting(reader(), f"{O}/a.tar?token=S3CRET", O, OPENING), clocked.waits.waiting(reader(1), f"{O}/b.tar", O, OPENING):
        clocked.clock.advance(4)
        clocked.board.listen(OriginFailed(O, "throttled", "503 Service Unavailable"))
        clocked.long.look()
        assert caplog.messages == []
        for _ in range(5):
            clocked.clock.advance(2)
            clocked.long.look()
        expected = f"shard {O}/a.tar and 1 more readers: waiting for 6 s; {O}: 503 Service Unavailable; it is asked again"
        assert caplog.messages == [expected]
        clocked.clock.advance(60)
        clocked.long.look()
        assert len(caplog.messages) == 2
    clocked.long.look()
    assert caplog.messages[2:] == [f"readers of {O} go on: up to 2 at once waited, for 74 s in all"]


def test_an_origin_that_is_slow_again_and_again_is_one_warning_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Waits of 8 s for each shard of hours, with a second between them."""
    clocked = Clocked()
    for _ in range(13):
        with clocked.waits.waiting(reader(), f"{O}/a.tar", O, OPENING):
            for _ in range(8):
                clocked.clock.advance(1)
                clocked.long.look()
        clocked.clock.advance(1)
        clocked.long.look()
    assert [text.partition(": ")[2] for text in caplog.messages] == 2 * [f"waiting for 5 s; {O} has not answered yet"]


def test_a_wait_without_an_error_says_what_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """Never answered, where a request that ended without any answer is none; or answered before, and slow now."""
    clocked = Clocked()
    clocked.board.listen(OriginAnswered(O, "GET", 0, 1.0))
    clocked.board.listen(OriginAnswered("https://p", "GET", 206, 0.1))
    for origin in (O, "https://p"):
        with clocked.waits.waiting(reader(), f"{origin}/a.tar", origin, OPENING):
            clocked.clock.advance(6)
            clocked.long.look()
    assert "has not answered yet" in caplog.messages[0]
    assert "is slow" in caplog.messages[1]


def test_the_one_that_waits_longest_is_named_and_the_end_counts_all(caplog: pytest.LogCaptureFixture) -> None:
    """Three wait; once two have gone on, the third is told of; in the end so many at once as there were at the most, from the first on."""
    clocked = Clocked()
    caplog.set_level(logging.INFO, "forebay")
    with ExitStack() as last, ExitStack() as others:
        others.enter_context(clocked.waits.waiting(reader(), f"{O}/a.tar", O, OPENING))
        clocked.clock.advance(2)
        last.enter_context(clocked.waits.waiting(reader(1), f"{O}/b.tar", O, OPENING))
        clocked.clock.advance(5)
        clocked.long.look()
        assert caplog.messages == [f"shard {O}/a.tar and 1 more readers: waiting for 7 s; {O} has not answered yet"]
        others.enter_context(clocked.waits.waiting(reader(2), f"{O}/c.tar", O, OPENING))
        clocked.clock.advance(5)
        clocked.long.look()
        others.close()
        clocked.clock.advance(54)
        clocked.long.look()
        assert len(caplog.messages) == 1
        clocked.clock.advance(1)
        clocked.long.look()
        assert caplog.messages[1:] == [f"shard {O}/b.tar: waiting for 65 s; {O} has not answered yet"]
        last.close()
        clocked.long.look()
    assert caplog.messages[2:] == [f"readers of {O} go on: up to 3 at once waited, for 67 s in all"]


def test_the_verdict_names_who_keeps_readers_waiting() -> None:
    """A long wait first, with what the origin says and how often; then the last minute's share; then that all is well."""
    clocked = Clocked()
    assert clocked.verdict() == "data arrives as fast as it is read: readers waited 0.0 % of the last minute"
    with clocked.waits.waiting(reader(), f"{O}/a.tar", O, OPENING):
        for _ in range(12):
            clocked.clock.advance(1)
            clocked.board.listen(OriginAnswered(O, "GET", 503, 0.1))
            clocked.board.listen(OriginFailed(O, "throttled", "503 Service Unavailable"))
            clocked.waits.look(1)
        assert clocked.verdict() == f"a reader waits for {O}, 12 s by now: 503 Service Unavailable (12 x 503 in the last minute)"
    assert clocked.verdict() == f"readers waited 100 % of the last minute; {O} brings 0 B/s now, 2 requests in the air"
    assert clocked.verdict("down").startswith("the cache disk is down (no space left): bytes pass through memory; readers waited 100 %")
    idle = verdict(clocked.waits, clocked.board, readers=1, disk_state="normal", disk_reason="", in_flight={})
    assert idle == "readers waited 100 % of the last minute"  # an origin that is asked for nothing now is not the reason


def test_who_was_refused_is_no_silence() -> None:
    """Nobody reads because nobody is let in: the last refusal stands where a person looks first."""
    clocked = Clocked()
    told = verdict(
        clocked.waits, clocked.board, readers=0, disk_state="normal", disk_reason="", in_flight={}, refused=("shard s3://b/a.tar: 403", 3.2)
    )
    assert told == "nobody has read in the last minute; who asked last, 3 s ago, was told: shard s3://b/a.tar: 403"
    silent = verdict(clocked.waits, clocked.board, readers=0, disk_state="normal", disk_reason="", in_flight={})
    assert silent == "nobody has read in the last minute"
