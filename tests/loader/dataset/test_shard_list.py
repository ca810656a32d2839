"""The first stages: order, shares, stripes, and what an empty share says."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.dataset.shard_list import (
    FairShare,
    NodeSplit,
    ShardList,
    ShardOrder,
    WorkerSplit,
    epoch_order,
    resampled_order,
    split,
    worker_part,
)
from forebay_loader.identity.world import World
from forebay_loader.plan.epochs import Epochs

ONE = World(0, 1, "data_parallel")
Become = Callable[[int, int], None]


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Become:
    """This process passes for worker ``id`` of ``count``."""

    def be(id: int, count: int) -> None:
        monkeypatch.setenv("WORKER", str(id))
        monkeypatch.setenv("NUM_WORKERS", str(count))

    return be


def shards(n: int, order: ShardOrder = ShardOrder(), world: World = ONE) -> ShardList:  # noqa: B008  # frozen
    return ShardList([f"{number}.tar" for number in range(n)], order, Epochs(), world)


def numbers(items: Any) -> list[int]:
    return [int(item["url"][:-4]) for item in items]


def samples(items: Any, each: int) -> list[tuple[int, int]]:
    """What tar reading gives: ``each`` samples a shard."""
    return [(number, sample) for number in numbers(items) for sample in range(each)]


def test_a_world_that_was_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built before anybody could tell: it is asked where it is pickled."""
    stage = NodeSplit(World(), named=True)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    text = pickle.dumps(stage)
    monkeypatch.delenv("RANK")
    assert list(pickle.loads(text)(range(7))) == [2, 5]


def test_a_splitter_that_never_ends(become: Become) -> None:
    """An endless source in front is split as it comes."""
    become(1, 2)
    assert numbers(itertools.islice(WorkerSplit()(itertools.cycle(list(shards(3)()))), 4)) == [1, 0, 2, 1]


def test_fewer_samples_than_workers(become: Become) -> None:
    """A stripe without a sample is an empty pass, not an error: the shard had some."""
    become(2, 3)
    split, made = WorkerSplit(), shards(1)
    assert list(FairShare(split, made, empty_check=True)(samples(split(made()), 2))) == []


def test_an_empty_rank() -> None:
    """A rank without a shard says so: which, of how many, and what to do."""
    made, split = shards(1, world=World(1, 2, "group")), WorkerSplit()
    items = NodeSplit(made.world, named=True)(made())
    with pytest.raises(
        ValueError, match=r"rank 1 of 2 \(told by group\), worker 0 of 1 has no shard: 1 shards for 2 ranks; .*nodesplitter=iter"
    ):
        list(FairShare(split, made, empty_check=True)(samples(split(items), 5)))


def test_shards_without_samples() -> None:
    """Shards that gave nothing are another matter, and another message."""
    made, split = shards(2), WorkerSplit()
    with pytest.raises(ValueError, match=r"rank 0 of 1.*read its shards to the end, of 2 listed.*select_files"):
        list(FairShare(split, made, empty_check=True)(samples(split(made()), 0)))


def test_without_the_check(caplog: pytest.LogCaptureFixture) -> None:
    """empty_check=False: an empty pass and one notice."""
    made = shards(2)
    for _ in range(2):
        split = WorkerSplit()
        assert list(FairShare(split, made, empty_check=False)(samples(split(made()), 0))) == []
    assert len(caplog.records) == 1


# The order of shards and its split: pure, so checked against plain counting.


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
    """No two of them give one order, or the same draws."""
    keys = [(0, 0), (0, 1), (1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (11, 0), (1, 10)]
    for orders in ([tuple(epoch_order(30, *key)) for key in keys], [tuple(islice(resampled_order(99, *key), 20)) for key in keys]):
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
