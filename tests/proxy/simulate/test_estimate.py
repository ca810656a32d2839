"""What a cache can do for a run: the figures, and the words."""

from __future__ import annotations

import pytest

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.simulate.estimate import Estimate

GB = 10**9


def estimate(dataset: float = 1000, cache: float = 500, origin: float = 0.5, rate: float = 0.8, workers: int = 64) -> Estimate:
    """Sizes in GB, rates in GB/s."""
    return Estimate(int(dataset * GB), int(cache * GB), origin * GB, rate * GB, workers)


@pytest.mark.parametrize(("share", "hits"), [(0.25, 0.034), (0.5, 0.153), (0.75, 0.403), (0.9, 0.670)])
def test_lru_hits_far_less(share: float, hits: float) -> None:
    """f + (1 - f) ln(1 - f): 3, 15, 40 and 67 percent."""
    assert estimate(cache=1000 * share).lru_hit_bytes / (1000 * GB) == pytest.approx(hits, abs=0.001)


def test_a_cache_that_holds_all() -> None:
    """Every byte of a later epoch is a hit, for LRU too: nothing is pushed out."""
    found = estimate(cache=1000)
    assert (found.hit_bytes, found.lru_hit_bytes, found.origin_bytes) == (1000 * GB, 1000 * GB, 0)
    assert found.verdict.startswith(
        "the cache holds everything from the second epoch on. The first epoch takes 33 min 20 s, of which 12 min 30 s"
    )


def test_an_origin_faster_than_the_trainer() -> None:
    """No cache makes that faster."""
    verdict = estimate(origin=1.25).verdict
    assert verdict.startswith("no cache can make this faster: the origin (1.25 GB/s) is faster than the trainer (800 MB/s)")
    assert "saves the origin 499 GB an epoch" in verdict
    assert estimate(origin=1.25).sufficient_bytes == 0


def test_origin_bound() -> None:
    """How long the accelerator waits, and the cache with which it would not."""
    found = estimate(origin=0.25)
    assert found.verdict == "origin-bound: the accelerator waits 38 % of the time; a cache of 689 GB would end that"
    ended = Estimate(1000 * GB, found.sufficient_bytes, 0.25 * GB, 0.8 * GB, 64)
    assert ended.waiting_ratio == pytest.approx(0.0, abs=1e-9)
    assert Estimate(1000 * GB, found.sufficient_bytes - 10 * GB, 0.25 * GB, 0.8 * GB, 64).waiting_ratio > 0.01


def test_a_cache_too_small_to_keep_anything() -> None:
    """Three segments a reader: the one it is in and two ahead; or what is on its way meanwhile."""
    found = estimate(cache=1, origin=0.25)
    assert found.smallest_useful_bytes == 64 * 3 * SEGMENT_BYTES
    assert "too small to keep anything (64 workers" in found.verdict
    assert estimate(workers=1, rate=10, origin=5).smallest_useful_bytes == int(10 * GB * (0.1 + SEGMENT_BYTES / 50e6))


def test_five_runs_by_hand() -> None:
    """Reckoned on paper: (cache, origin, hits, first epoch, epoch) of 100 GB read at 0.8 GB/s by 8 workers, W = 0.134217728 GB."""
    for cache, origin, hits, first_s, epoch_s in [
        (500, 0.3, 100.0, 333.33, 125.0),  # all fits: 100 / 0.3, then 100 / 0.8
        (50, 1.25, 49.865782272, 125.0, 125.0),  # the origin is faster than the trainer
        (50, 0.3, 49.865782272, 333.33, 167.11),  # slower than (D - C) / b allows: 50.134 / 0.3
        (50, 0.5, 49.865782272, 200.0, 125.0),  # makes up for it: 50.134 / 0.5 = 100.3 < 125
        (0.1, 0.3, 0.0, 333.33, 333.33),  # less than lies ahead: nothing is kept
    ]:
        found = estimate(dataset=100, cache=cache, origin=origin, workers=8)
        assert found.hit_bytes == pytest.approx(hits * GB)
        assert (found.first_epoch_s, found.epoch_s) == pytest.approx((first_s, epoch_s), abs=0.01)


def test_a_cache_that_holds_all_of_a_fast_origin() -> None:
    """It saves bytes and no time, and both are said."""
    verdict = estimate(cache=1000, origin=1.25).verdict
    assert "saves the origin 1.0 TB an epoch" in verdict
    assert "makes no epoch faster" in verdict


def test_a_small_cache_that_keeps_a_little_is_not_said_to_keep_nothing() -> None:
    """Between two segments a worker and three."""
    found = estimate(cache=1.2, origin=0.25)
    assert found.hit_bytes > 0
    assert found.verdict.startswith("origin-bound: ")


def test_nothing_to_read() -> None:
    """No division by it."""
    found = estimate(dataset=0)
    assert (found.verdict, found.waiting_ratio, found.lru_hit_bytes) == ("there is nothing to read", 0.0, 0)
