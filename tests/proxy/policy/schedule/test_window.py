"""The look-ahead of one reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import reader

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.schedule.window import MIN_SEGMENTS, START_BYTES, ReadAheadWindow, WindowShares


def test_a_wait_doubles_it_and_a_refusal_halves_it() -> None:
    """Two events are all the feedback there is."""
    window = ReadAheadWindow(100 * START_BYTES, SEGMENT_BYTES)
    assert window.bytes == START_BYTES
    window.waited()
    assert window.bytes == 2 * START_BYTES
    window.refused()
    assert window.bytes == START_BYTES


def test_a_wait_brings_it_back_where_the_disk_was_tight() -> None:
    """And no further: what was refused before is asked for again first."""
    window = ReadAheadWindow(100 * START_BYTES, SEGMENT_BYTES)
    window.refused()
    window.refused()
    window.waited()
    assert (window.bytes, window.tight) == (START_BYTES // 2, True)
    window.waited()
    assert (window.bytes, window.tight) == (START_BYTES, False)


def test_it_comes_back_by_what_is_granted() -> None:
    """A window's worth of grants doubles it, up to where it was; then the disk is tight no more."""
    window = ReadAheadWindow(100 * START_BYTES, SEGMENT_BYTES)
    window.refused()
    window.refused()
    window.granted(window.bytes)
    assert (window.bytes, window.tight) == (START_BYTES // 2, True)
    window.granted(window.bytes)
    assert (window.bytes, window.tight) == (START_BYTES, False)
    window.granted(START_BYTES)
    assert window.bytes == START_BYTES


def test_a_wait_among_many_readers_takes_nothing_for_good() -> None:
    """It asks for more, and got less while others had their share; once they have left it looks as far as before."""
    window = ReadAheadWindow(100 * START_BYTES, SEGMENT_BYTES)
    window.share_changed(START_BYTES // 4)
    window.waited()
    assert window.bytes == START_BYTES // 4
    window.share_changed(100 * START_BYTES)
    assert window.bytes == START_BYTES


@given(st.integers(0, 2**40), st.lists(st.one_of(st.sampled_from(["waited", "refused", "granted"]), st.integers(0, 2**40))))
def test_it_stays_between_its_bounds(limit: int, steps: list[str | int]) -> None:
    """Never less than two segments, never more than its limit, whatever happens."""
    window = ReadAheadWindow(limit, SEGMENT_BYTES)
    for step in steps:
        if isinstance(step, int):
            window.share_changed(step)
        else:
            getattr(window, step)(*([2**23] if step == "granted" else []))
        assert MIN_SEGMENTS * SEGMENT_BYTES <= window.bytes <= window.limit_bytes


CAPACITY = 2**30


@pytest.fixture
def shares() -> WindowShares:
    return WindowShares(lambda: CAPACITY)


def test_jobs_share_half_of_the_cache_evenly(shares: WindowShares) -> None:
    """And readers the part of their job."""
    for worker in range(4):
        shares.add(reader(worker, "many"))
    shares.add(reader(0, "one"))
    assert [shares.limit_bytes(job) for job in ("many", "one")] == [CAPACITY // 16, CAPACITY // 4]


def test_whose_share_has_grown(shares: WindowShares) -> None:
    """Since it was last asked: others left, or the disk has more room."""
    for job in ("a", "b"):
        shares.add(reader(0, job))
    assert shares.grown() == {"a", "b"}
    assert shares.grown() == set()
    shares.remove(reader(0, "b"))
    assert shares.grown() == {"a"}
