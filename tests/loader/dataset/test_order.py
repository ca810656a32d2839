"""The order of shards and its split: pure, so checked against plain counting."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.dataset.shard_list import epoch_order, resampled_order, split, worker_part


@given(st.integers(0, 200), st.integers(), st.integers(0, 9), st.integers(0, 3))
def test_every_order_is_a_permutation(n: int, seed: int, epoch: int, turn: int) -> None:
    """Whatever the seed, every shard comes once; and the same question has the same answer."""
    order = epoch_order(n, seed, epoch, turn)
    assert sorted(order) == list(range(n))
    assert order == epoch_order(n, seed, epoch, turn)


def test_the_order_is_frozen() -> None:
    """A run that resumes on a newer Forebay meets the order it had: these are the orders of this release, for ever."""
    assert epoch_order(8, 0, 0) == [0, 2, 1, 4, 6, 7, 3, 5]
    assert epoch_order(8, 0, 1) == [6, 1, 0, 2, 3, 4, 5, 7]
    assert epoch_order(8, 42, 0) == [1, 2, 5, 7, 6, 0, 3, 4]
    assert list(islice(resampled_order(8, 0, 0), 8)) == [5, 6, 1, 3, 2, 1, 5, 4]


def test_seed_epoch_and_turn_all_matter() -> None:
    """No two of them give one order."""
    orders = [tuple(epoch_order(30, *key)) for key in [(0, 0), (0, 1), (1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (11, 0), (1, 10)]]
    assert len(set(orders)) == len(orders)


@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 9))
def test_ranks_and_workers_read_everything_once(n: int, size: int, workers: int) -> None:
    """Over all ranks and workers every shard is read as a whole once: by one reader, or in stripes that add up."""
    order = epoch_order(n, 7, 3)
    stripes: dict[int, list[tuple[int, int]]] = {}
    for rank in range(size):
        mine = split(order, rank, size)
        for worker in range(workers):
            part = worker_part(mine, worker, workers)
            for shard in part.shards:
                stripes.setdefault(shard, []).append((part.stripe, part.stripes))
    assert sorted(stripes) == list(range(n))
    for shares in stripes.values():
        assert sorted(shares) == [(stripe, len(shares)) for stripe in range(len(shares))]


@given(st.integers(1, 20), st.integers(1, 20))
def test_no_worker_is_idle(shards: int, workers: int) -> None:
    """A rank with a shard has work for each of its workers, shared as evenly as whole numbers allow."""
    parts = [worker_part(range(shards), worker, workers) for worker in range(workers)]
    loads = [len(part.shards) / part.stripes for part in parts]
    assert all(part.shards for part in parts)
    assert max(loads) - min(loads) <= 1


def test_workers_split_as_webdataset_does() -> None:
    """With shards enough, a worker reads every n-th."""
    assert worker_part([5, 6, 7, 8, 9], 1, 2) == ([6, 8], 0, 1)


@given(st.integers(1, 50), st.integers(1, 5), st.integers(1, 5))
def test_draws_are_one_sequence_dealt_out(n: int, size: int, workers: int) -> None:
    """What ranks and workers draw is one common sequence, each taking every so-manieth."""
    common = list(islice(resampled_order(n, 3, 1), 4 * size * workers))
    for rank in range(size):
        for worker in range(workers):
            own = list(islice(resampled_order(n, 3, 1, first=rank + size * worker, step=size * workers), 4))
            assert own == split(split(common, rank, size), worker, workers)


def test_draws_are_even() -> None:
    """60,000 draws of 6: each about 10,000 times (six standard deviations allow 550)."""
    counted = Counter(islice(resampled_order(6, 0, 0), 60_000))
    assert sorted(counted) == list(range(6))
    assert max(abs(times - 10_000) for times in counted.values()) < 550


@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}, {"turn": 1}])
def test_draws_differ_by_seed_and_epoch(other: dict[str, int]) -> None:
    """Another seed, epoch or turn draws otherwise."""
    usual = {"seed": 0, "epoch": 0, "turn": 0}
    assert list(islice(resampled_order(99, **usual), 20)) != list(islice(resampled_order(99, **{**usual, **other}), 20))
