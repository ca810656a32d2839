"""What a run cost and saved, in one line."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.fake_sidecar import status_of

from forebay_proxy.verbs.summary import summary


def after(**figures: int) -> dict[str, Any]:
    counted = {"sent": 0, "hit": 0, "origin": 0, "saved": 0, **figures}
    return status_of("u", requests={"hit": 3}, bytes=counted, reader_wait_s=4.2, errors=1)


def test_the_difference_is_what_this_run_did() -> None:
    """Hit, origin and saved bytes, reader wait and errors, less what was there before."""
    before = status_of("u", requests={"hit": 1}, bytes={"sent": 10**9, "hit": 0, "origin": 10**9, "saved": 0}, reader_wait_s=1.2, errors=1)
    line = summary(before, after(sent=11 * 10**9, hit=8 * 10**9, origin=3 * 10**9, saved=8 * 10**9))
    assert line == "10.0 GB read, 8.0 GB hit (80 %), 2.0 GB from origins, 8.0 GB saved; readers waited 3.0 s; 0 errors"


def test_no_request_at_all_says_what_to_try() -> None:
    """A command that never came through Forebay should be noticed."""
    assert "env --check" in summary(status_of("u"), status_of("u"))


def test_a_restarted_sidecar_is_said() -> None:
    """Its counters began anew; no negative figure shows."""
    before = {**after(sent=10**12), "instance": "other"}
    line = summary(before, after(sent=10**9))
    assert "restarted" in line
    assert line.startswith("1.0 GB read")


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_it_is_always_one_line(first: int, second: int) -> None:
    """Whatever the counters say."""
    assert "\n" not in summary(after(sent=first), after(sent=second, hit=second))
