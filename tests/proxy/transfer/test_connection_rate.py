"""How many ranges an origin's connections make worth having."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.transfer.connection_rate import (
    ALONE,
    FAST_BYTES_S,
    FEW_RANGES,
    LEAST_BYTES,
    MOST_RANGES,
    ConnectionRate,
)

MB = 10**6


def test_an_unknown_origin_gets_the_most() -> None:
    """Nothing is known: better too many than a stall."""
    assert ConnectionRate().ranges == MOST_RANGES


def test_a_slow_connection_gets_the_most() -> None:
    """50 MB/s, as object stores give."""
    connection_rate = ConnectionRate()
    connection_rate.measured(8 * MB, 0.16, 1)
    assert connection_rate.ranges == MOST_RANGES


def test_a_fast_connection_gets_few() -> None:
    """Two of them feed any loader."""
    connection_rate = ConnectionRate()
    connection_rate.measured(8 * MB, 0.02, 2)
    assert connection_rate.ranges == FEW_RANGES


def test_an_origin_that_became_slow_is_noticed() -> None:
    """Within two shards after 200 MB/s."""
    connection_rate = ConnectionRate()
    connection_rate.measured(8 * MB, 0.04, 1)
    for _ in range(2):
        connection_rate.measured(8 * MB, 0.4, 1)
    assert connection_rate.ranges == MOST_RANGES


@pytest.mark.parametrize(("size", "company"), [(LEAST_BYTES - 1, 1), (8 * MB, ALONE + 1)])
def test_what_tells_of_something_else_does_not_count(size: int, company: int) -> None:
    """A tiny body tells of its first byte, a crowd of the sharing."""
    connection_rate = ConnectionRate()
    connection_rate.measured(size, 1e-9, company)
    assert connection_rate.connection_bytes_s is None


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1e3), st.integers(1, 64))))
def test_ranges_follow_the_rate(bodies: list[tuple[int, float, int]]) -> None:
    """Whatever was measured, few ranges mean a fast connection."""
    connection_rate = ConnectionRate()
    for size, seconds, company in bodies:
        connection_rate.measured(size, seconds, company)
    known = connection_rate.connection_bytes_s
    assert (connection_rate.ranges == FEW_RANGES) == (known is not None and known >= FAST_BYTES_S)
