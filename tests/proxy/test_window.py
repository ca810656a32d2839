"""The look-ahead of one reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.window import MIN_BYTES, START_BYTES, Window


def test_a_wait_doubles_it_and_a_refusal_halves_it() -> None:
    """Two events are all the feedback there is."""
    window = Window(100 * START_BYTES)
    assert window.bytes == START_BYTES
    window.waited()
    assert window.bytes == 2 * START_BYTES
    window.refused()
    assert window.bytes == START_BYTES


@given(st.integers(0, 2**40), st.lists(st.one_of(st.sampled_from(["waited", "refused"]), st.integers(0, 2**40))))
def test_it_stays_between_its_bounds(limit: int, steps: list[str | int]) -> None:
    """Never less than two segments, never more than its limit, whatever happens."""
    window = Window(limit)
    for step in steps:
        if isinstance(step, int):
            window.limit(step)
        else:
            getattr(window, step)()
        assert MIN_BYTES <= window.bytes <= window.limit_bytes
