"""The look-ahead of one reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.policy.schedule.window import MIN_BYTES, START_BYTES, ReadAheadWindow


def test_a_wait_doubles_it_and_a_refusal_halves_it() -> None:
    """Two events are all the feedback there is."""
    window = ReadAheadWindow(100 * START_BYTES)
    assert window.bytes == START_BYTES
    window.waited()
    assert window.bytes == 2 * START_BYTES
    window.refused()
    assert window.bytes == START_BYTES


def test_a_wait_brings_it_back_where_the_disk_was_tight() -> None:
    """And no further: what was refused before is asked for again first."""
    window = ReadAheadWindow(100 * START_BYTES)
    window.refused()
    window.refused()
    window.waited()
    assert (window.bytes, window.tight) == (START_BYTES // 2, True)
    window.waited()
    assert (window.bytes, window.tight) == (START_BYTES, False)


def test_it_comes_back_by_what_is_granted() -> None:
    """A window's worth of grants doubles it, up to where it was; then the disk is tight no more."""
    window = ReadAheadWindow(100 * START_BYTES)
    window.refused()
    window.refused()
    window.granted(window.bytes)
    assert (window.bytes, window.tight) == (START_BYTES // 2, True)
    window.granted(window.bytes)
    assert (window.bytes, window.tight) == (START_BYTES, False)
    window.granted(START_BYTES)
    assert window.bytes == START_BYTES


def test_a_share_that_grows_again_is_given_back() -> None:
    """Readers that left leave their room to the others, up to what their waits asked for."""
    window = ReadAheadWindow(100 * START_BYTES)
    window.limit(START_BYTES // 4)
    assert window.bytes == START_BYTES // 4
    window.limit(100 * START_BYTES)
    assert window.bytes == START_BYTES


def test_a_wait_among_many_readers_takes_nothing_for_good() -> None:
    """It asks for more, and got less while others had their share; once they have left it looks as far as before."""
    window = ReadAheadWindow(100 * START_BYTES)
    window.limit(START_BYTES // 4)
    window.waited()
    assert window.bytes == START_BYTES // 4
    window.limit(100 * START_BYTES)
    assert window.bytes == START_BYTES


@given(st.integers(0, 2**40), st.lists(st.one_of(st.sampled_from(["waited", "refused", "granted"]), st.integers(0, 2**40))))
def test_it_stays_between_its_bounds(limit: int, steps: list[str | int]) -> None:
    """Never less than two segments, never more than its limit, whatever happens."""
    window = ReadAheadWindow(limit)
    for step in steps:
        if isinstance(step, int):
            window.limit(step)
        else:
            getattr(window, step)(*([2**23] if step == "granted" else []))
        assert MIN_BYTES <= window.bytes <= window.limit_bytes
