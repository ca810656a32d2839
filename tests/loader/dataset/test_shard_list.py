"""The first stages: order, shares, stripes, and what an empty share says."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from forebay_loader.dataset.shard_list import FairShare, NodeSplit, ShardList, ShardOrder, WorkerSplit, epoch_order
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


def test_as_listed() -> None:
    """Without a shuffle every pass is the list."""
    made = shards(4)
    assert [numbers(made()), numbers(made())] == [[0, 1, 2, 3]] * 2


def test_a_fresh_order_each_epoch() -> None:
    """Shuffled: the epoch's permutation, another one the next time."""
    made = shards(9, ShardOrder(5, shuffled=True))
    assert [numbers(made()), numbers(made())] == [epoch_order(9, 5, 0), epoch_order(9, 5, 1)]


def test_passes_within_an_epoch_differ() -> None:
    """A pass that was begun for a turn has that turn's order."""
    made = shards(9, ShardOrder(5, shuffled=True))
    made.begin(3, 2)
    assert numbers(made()) == epoch_order(9, 5, 3, 2)


def test_draws_are_this_readers_own(become: Become) -> None:
    """Two workers of two ranks draw four different sequences, and the same ones again in the same epoch."""
    drawn = set()
    for rank, worker in itertools.product(range(2), range(2)):
        become(worker, 2)
        for _ in range(2):
            made = shards(50, ShardOrder(resampled=True), World(rank, 2, "group"))
            drawn.add(tuple(numbers(itertools.islice(made(), 30))))
    assert len(drawn) == 4


def test_the_rank_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickled with its rank: what the environment says elsewhere does not matter."""
    stage = pickle.loads(pickle.dumps(NodeSplit(World(1, 3, "group"), named=True)))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert list(stage(range(7))) == [1, 4]


def test_a_world_that_was_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Built before anybody could tell: it is asked where it is pickled."""
    stage = NodeSplit(World(), named=True)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    text = pickle.dumps(stage)
    monkeypatch.delenv("RANK")
    assert list(pickle.loads(text)(range(7))) == [2, 5]


@pytest.mark.parametrize(("n", "workers"), [(5, 2), (4, 4), (3, 4), (1, 3), (2, 7)])
def test_workers_share_everything(become: Become, n: int, workers: int) -> None:
    """Every sample once over all workers of a rank, with more shards than workers and with fewer."""
    found = []
    for worker in range(workers):
        become(worker, workers)
        made, split = shards(n), WorkerSplit()
        own = list(FairShare(split, made, empty_check=True)(samples(split(made()), 5)))
        assert len({shard for shard, _ in own}) == 1 or n >= workers
        found += own
    assert sorted(found) == sorted(samples(shards(n)(), 5))


def test_a_worker_reads_one_shard_when_they_are_few(become: Become) -> None:
    """A worker opens its one shard, not all: nothing is read that no stripe needs."""
    become(2, 3)
    assert numbers(WorkerSplit()(shards(2)())) == [0]


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


def test_stages_can_be_pickled() -> None:
    """With the split that one asks the other about still the same object."""
    split, made = WorkerSplit(), shards(3)
    loaded = pickle.loads(pickle.dumps([made, NodeSplit(ONE, named=False), split, FairShare(split, made, empty_check=True)]))
    assert loaded[3]._split is loaded[2]
    assert loaded[3]._shards is loaded[0]
    assert numbers(loaded[2](loaded[1](loaded[0]()))) == [0, 1, 2]
