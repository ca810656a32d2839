"""How evenly ranks are loaded: the most over the mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.telemetry.rank_balance import FIGURES, RankLoad, balance_of_rows, rank_balance

LOADS = st.builds(RankLoad, st.integers(0, 10**9), st.integers(0, 10**7), st.floats(0, 1e6), st.floats(0, 1e6))


def test_no_ranks_no_balance() -> None:
    """A job that has told nothing is not even: it is not known."""
    assert rank_balance({}) is None


def test_the_most_over_the_mean() -> None:
    """And whose it is."""
    found = rank_balance({"0": RankLoad(100, 10, 4.0), "1": RankLoad(300, 10, 0.0)})
    assert found is not None
    assert (found.ratio("samples"), found.ratio("steps"), found.ratio("stall_s")) == (1.5, 1.0, 2.0)
    assert (found.skews["samples"].rank, found.skews["stall_s"].rank) == ("1", "0")
    assert str(found) == "samples 1.50 (rank 1), stall 2.00 (rank 0)"


def test_milliseconds_are_even() -> None:
    """Of ranks that hardly stalled none is the slow one."""
    found = rank_balance({"0": RankLoad(5, 5, 0.001), "1": RankLoad(5, 5, 0.9)})
    assert found is not None
    assert (found.ratio("stall_s"), str(found)) == (1.0, "even")


@given(st.dictionaries(st.text(min_size=1, max_size=3), LOADS, min_size=1, max_size=16))
def test_a_ratio_is_between_one_and_the_ranks(loads: dict[str, RankLoad]) -> None:
    """One rank that does it all is as uneven as it gets."""
    found = rank_balance(loads)
    assert found is not None
    assert all(1 - 1e-9 <= found.ratio(figure) <= len(loads) * (1 + 1e-9) for figure in FIGURES)


@pytest.mark.parametrize("figure", FIGURES)
def test_one_rank_is_even(figure: str) -> None:
    """With itself."""
    found = rank_balance({"7": RankLoad(3, 2, 50.0, 9.0)})
    assert found is not None
    assert found.ratio(figure) == 1.0


def row(rank: str, steps: int, **stall_s: float) -> dict[str, object]:
    return {"rank": rank, "lately": {"samples": 8 * steps, "steps": steps, "stall_s": stall_s, "reader_wait_s": {"origin": 2.0}}}


def test_the_last_minute_of_a_rank_in_two_processes() -> None:
    """One that was started anew goes on where the other has ended; causes count together."""
    found = balance_of_rows([row("0", 10, decode=1.0, map=5.0), row("1", 4), row("1", 6)])
    assert found is not None
    assert found.as_json() == {
        "samples": {"ratio": 1.0, "rank": "0"}, "steps": {"ratio": 1.0, "rank": "0"}, "stall_s": {"ratio": 2.0, "rank": "0"},
        "reader_wait_s": {"ratio": 1.3333, "rank": "1"},
    }  # fmt: skip
