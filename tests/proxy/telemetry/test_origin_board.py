"""How each origin does, in numbers and words."""

from __future__ import annotations

from support.house import FakeClock

from forebay_proxy.core.facts.origins import FetchJoined, FetchRetried, OriginAnswered, OriginBytes, OriginFailed
from forebay_proxy.telemetry.origin_board import MOST_ORIGINS, OriginBoard

O = "https://o"  # noqa: E741


def test_a_row_says_what_a_person_asks() -> None:
    """Rate now, in the air, last code, throttled, retries, last error and when."""
    clock = FakeClock()
    board = OriginBoard(clock)
    for fact in (
        OriginAnswered(O, "GET", 206, 0.1), OriginBytes(O, 50_000_000, "demand"), OriginAnswered(O, "GET", 503, 0.1),
        OriginFailed(O, "throttled", "503 Service Unavailable"), FetchRetried(O, "throttled", resumed=False), FetchJoined(),
    ):  # fmt: skip
        board.listen(fact)
    clock.advance(4)
    (row,) = board.rows({O: 3}, {O: 8})
    assert row == {
        "origin": O, "in_flight": 3, "rate_bytes_s": 5_000_000, "first_byte_s": 0.1, "slots": 8, "bytes": 50_000_000, "requests": 2,
        "last_code": 503,
        "last_answer_s_ago": 4, "codes_last_minute": {"206": 1, "503": 1}, "throttled": 1, "retries": 1, "failures": 1,
        "last_error": "503 Service Unavailable", "last_error_s_ago": 4,
    }  # fmt: skip
    assert board.busiest() == (O, 5_000_000)
    assert board.refusals(O) == {503: 1}
    state = board.get(O)
    assert state is not None
    assert state.last_code == 503
    assert board.get("https://other") is None


def test_an_error_counts_from_a_moment_on() -> None:
    """What went wrong before a wait began, and was followed by something good, does not explain it."""
    clock = FakeClock()
    board = OriginBoard(clock)
    for good in (OriginAnswered(O, "GET", 206, 0.1), OriginBytes(O, 1, "demand")):
        board.listen(OriginFailed(O, "reset"))
        board.listen(good)
        assert board.error_since(O, clock()) == "reset"
        assert board.error_since(O, clock() + 1) == ""
    assert board.error_since("https://other", 0) == ""


def test_an_origin_that_is_left_alone_explains_who_begins_to_wait() -> None:
    """A 503 that names a minute is the reason for all of it; a shard that is not there is nobody else's, and an old error no news."""
    clock = FakeClock()
    board = OriginBoard(clock)
    board.listen(OriginAnswered(O, "GET", 206, 0.1))
    board.listen(OriginAnswered(O, "GET", 503, 0.1))
    board.listen(OriginFailed(O, "throttled", "503 Service Unavailable"))
    assert board.error_since(O, clock() + 50) == "503 Service Unavailable"
    assert board.error_since(O, clock() + 70) == ""
    board.listen(OriginAnswered(O, "GET", 404, 0.1))
    board.listen(OriginFailed(O, "status", "the origin answered 404"))
    assert board.error_since(O, clock() + 50) == ""


def test_what_one_second_brought_is_one_count() -> None:
    """A thousand answers in a second push no earlier second out, and each second ages by itself."""
    clock = FakeClock()
    board = OriginBoard(clock)
    board.listen(OriginBytes(O, 1000, "demand"))
    board.listen(OriginAnswered(O, "GET", 206, 0.1))
    clock.advance(6)
    for _ in range(1000):
        board.listen(OriginAnswered(O, "GET", 200, 0.1))
    board.listen(OriginBytes(O, 500, "demand"))
    (row,) = board.rows({})
    assert (row["codes_last_minute"], row["rate_bytes_s"], row["in_flight"]) == ({"200": 1000, "206": 1}, 150, 0)
    assert row["last_answer_s_ago"] == 0
    clock.advance(4)
    assert board.rows({})[0]["rate_bytes_s"] == 150
    clock.advance(1)
    assert board.rows({})[0]["rate_bytes_s"] == 50
    clock.advance(49)
    assert board.rows({})[0]["codes_last_minute"] == {"200": 1000, "206": 1}
    clock.advance(1)
    assert board.rows({})[0]["codes_last_minute"] == {"200": 1000}


def test_a_refusal_is_no_answer_or_400_and_more() -> None:
    """The most frequent first; of an origin that was never heard of there is none."""
    board = OriginBoard(FakeClock())
    for code in (0, 200, 206, 304, 399, 400, 503, 503):
        board.listen(OriginAnswered(O, "GET", code, 0.1))
    assert list(board.refusals(O).items()) == [(503, 2), (0, 1), (400, 1)]
    assert board.refusals("https://other") == {}


def test_the_one_unheard_for_longest_makes_room() -> None:
    """A client may name any number of hosts; the busiest is the one that brings most now."""
    board = OriginBoard(FakeClock())
    assert board.busiest() is None
    for number in (*range(MOST_ORIGINS), 0, MOST_ORIGINS):
        board.listen(OriginBytes(f"https://{number}", 10, "demand"))
    kept = [row["origin"] for row in board.rows({})]
    assert (len(kept), kept[:2], "https://1" in kept) == (MOST_ORIGINS, [f"https://{MOST_ORIGINS}", "https://0"], False)
    assert board.busiest() == ("https://0", 2)
