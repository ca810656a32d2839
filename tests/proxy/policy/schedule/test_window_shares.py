"""Whose window may be how wide."""

from __future__ import annotations

import pytest
from support.house import reader

from forebay_proxy.policy.schedule.window import ReadAheadWindow
from forebay_proxy.policy.schedule.window_shares import WindowShares

CAPACITY = 2**30


@pytest.fixture
def shares() -> WindowShares:
    return WindowShares(lambda: CAPACITY)


def test_jobs_share_half_of_the_cache_evenly(shares: WindowShares) -> None:
    """And readers the part of their job."""
    for worker in range(4):
        shares.enter(reader(worker, "many"))
    shares.enter(reader(0, "one"))
    assert [shares.limit(job) for job in ("many", "one")] == [CAPACITY // 16, CAPACITY // 4]


def test_who_stands_still_leaves_its_share(shares: WindowShares) -> None:
    """And has no window of its own until it goes on; it is told once."""
    one, other = reader(0), reader(1)
    for each in (one, other):
        shares.enter(each)
    window = ReadAheadWindow(shares.limit("job"))
    assert (shares.pause(one), shares.pause(one)) == (True, False)
    assert (shares.width(one, window), shares.limit("job")) == (0, CAPACITY // 2)
    assert (shares.go_on(one), shares.go_on(one)) == (True, False)
    assert (shares.width(one, window) > 0, shares.limit("job")) == (True, CAPACITY // 4)


def test_who_stands_still_may_leave_and_come_back(shares: WindowShares) -> None:
    """It counts once, whatever the order."""
    one, other = reader(0), reader(1)
    for each in (one, other):
        shares.enter(each)
    shares.pause(one)
    shares.leave(one)
    shares.go_on(one)
    assert shares.limit("job") == CAPACITY // 2
    shares.pause(one)
    shares.enter(one)
    assert shares.limit("job") == CAPACITY // 2
    shares.go_on(one)
    assert shares.limit("job") == CAPACITY // 4


def test_whose_share_has_grown(shares: WindowShares) -> None:
    """Since it was last asked: others left, or the disk has more room."""
    for job in ("a", "b"):
        shares.enter(reader(0, job))
    assert shares.grown() == {"a", "b"}
    assert shares.grown() == set()
    shares.leave(reader(0, "b"))
    assert shares.grown() == {"a"}


def test_a_window_follows_its_share(shares: WindowShares) -> None:
    """When others come it is cut at once."""
    one = reader(0)
    shares.enter(one)
    window = ReadAheadWindow(shares.limit("job"))
    before = shares.width(one, window)
    for worker in range(1, 8):
        shares.enter(reader(worker))
    assert (before, shares.width(one, window)) == (window.wanted, CAPACITY // 16)
