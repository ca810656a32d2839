"""Room over time, as far as it can still be had, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.telemetry.least_free import LeastFree

_step = st.one_of(st.integers(0, 9), st.tuples(st.integers(0, 40), st.integers(1, 9)))
_steps = st.one_of(st.lists(_step, max_size=20), st.lists(_step, min_size=20, max_size=120))  # hypothesis' lists are short by themselves


@given(_steps, st.sampled_from([1, 2, 8, 16, 1024]))
def test_it_is_the_least_of_every_suffix(steps: list[int | tuple[int, int]], window: int) -> None:
    """After any moments and any takings, for every moment of the window, also when the ring has gone round."""
    free, naive = LeastFree(window), list[int]()
    for step in steps:
        if isinstance(step, int):
            free.append(step)
            naive.append(step)
        elif naive:
            moment = max(free.oldest, len(naive) - 1 - step[0])
            room = min(step[1], *naive[moment:])
            free.take(moment, room)
            naive[moment:] = [left - room for left in naive[moment:]]
        assert len(free) == len(naive)
        assert free.oldest == max(0, len(naive) - window)
        for moment in range(free.oldest, len(naive)):
            assert free.since(moment) == min(naive[moment:])


def test_it_grows_with_its_moments() -> None:
    """Beyond what it began with nothing is lost, and only the window bounds how far it looks back."""
    free = LeastFree(4096)
    for moment in range(5000):
        free.append(moment)
    assert [free.since(moment) for moment in range(free.oldest, 5000)] == list(range(904, 5000))


@pytest.mark.parametrize("window", [0, -4, 3, 1000])
def test_a_window_is_a_power_of_two(window: int) -> None:
    """Another one is a mistake of ours, said at once."""
    with pytest.raises(ValueError, match="powers of two"):
        LeastFree(window)
