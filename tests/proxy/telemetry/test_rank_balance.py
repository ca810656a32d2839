"""How evenly ranks are loaded: the most over the mean."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.telemetry.rank_balance import FIGURES, rank_balance


def row(rank: str, steps: int, samples: int | None = None, **stall_s: float) -> dict[str, Any]:
    samples = 8 * steps if samples is None else samples
    return {"rank": rank, "lately": {"samples": samples, "steps": steps, "stall_s": stall_s, "reader_wait_s": {"origin": 2.0}}}


def test_no_ranks_no_balance() -> None:
    """A job that has told nothing is not even: it is not known."""
    assert rank_balance([]) is None


def test_the_most_over_the_mean() -> None:
    """And whose it is."""
    found = rank_balance([row("0", 10, 100, map=4.0), row("1", 10, 300)])
    assert found is not None
    assert (found.ratio("samples"), found.ratio("steps"), found.ratio("stall_s")) == (1.5, 1.0, 2.0)
    assert (found.skews["samples"].rank, found.skews["stall_s"].rank) == ("1", "0")
    assert str(found) == "samples 1.50 (rank 1), stall 2.00 (rank 0)"


def test_milliseconds_are_even() -> None:
    """Of ranks that hardly stalled none is the slow one."""
    found = rank_balance([row("0", 5, map=0.001), row("1", 5, map=0.9)])
    assert found is not None
    assert (found.ratio("stall_s"), str(found)) == (1.0, "even")


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**9), st.floats(0, 1e6)), min_size=1, max_size=16))
def test_a_ratio_is_between_one_and_the_ranks(loads: list[tuple[int, int, float]]) -> None:
    """One rank that does it all is as uneven as it gets; one alone is even."""
    found = rank_balance([row(str(rank), steps, samples, map=stall_s) for rank, (steps, samples, stall_s) in enumerate(loads)])
    assert found is not None
    assert all(1 - 1e-9 <= found.ratio(figure) <= len(loads) * (1 + 1e-9) for figure in FIGURES)


def test_the_last_minute_of_a_rank_in_two_processes() -> None:
    """One that was started anew goes on where the other has ended; causes count together."""
    found = rank_balance([row("0", 10, decode=1.0, map=5.0), row("1", 4), row("1", 6)])
    assert found is not None
    assert [(round(found.ratio(figure), 2), found.skews[figure].rank) for figure in FIGURES] == [
        (1.0, "0"),
        (1.0, "0"),
        (2.0, "0"),
        (1.33, "1"),
    ]
