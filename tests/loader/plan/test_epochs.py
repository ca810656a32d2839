"""Counting epochs across the processes that read them."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from forebay_loader.base import shared_memory
from forebay_loader.plan import epochs as module
from forebay_loader.plan.epochs import Epochs


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The training process, by its ``pid``."""
    owner = SimpleNamespace(pid=1)
    monkeypatch.setattr(module, "training_pid", lambda: owner.pid)
    return owner


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, owner: SimpleNamespace) -> Callable[..., None]:
    """This process passes for DataLoader worker ``id`` of a set whose base seed is ``base``, started as the process number ``place``."""

    def become(id: int, base: int, of: int = 9, place: int | None = None) -> None:
        info = SimpleNamespace(id=id, num_workers=of, seed=base + id)
        monkeypatch.setitem(sys.modules, "torch.utils.data", SimpleNamespace(get_worker_info=lambda: info))  # type: ignore[arg-type]
        if place is not None:
            monkeypatch.setattr(module, "_place", lambda worker_id: place)

    return become


def started(epochs: Epochs) -> Epochs:
    """A worker process's own copy, which shares the file."""
    own = Epochs.__new__(Epochs)
    own.__dict__.update(epochs.__dict__, _run=None)
    return own


def test_iterations_are_counted() -> None:
    """In one process: 0, 1, 2."""
    epochs = Epochs()
    assert [epochs.begin() for _ in range(3)] == [0, 1, 2]
    assert epochs.value == 2


@pytest.mark.parametrize("told", [4, lambda: 4, SimpleNamespace(value=4), SimpleNamespace(get_value=lambda: 4)])
def test_a_told_epoch_holds(told: Any) -> None:
    """A number, what gives one, and a trainer's shared value are taken as they are."""
    epochs = Epochs(told)
    assert [epochs.begin(), epochs.begin()] == [4, 4]


def test_an_epoch_that_is_set() -> None:
    """The next one is it, then it is counted on."""
    epochs = Epochs()
    epochs.begin()
    epochs.set(7)
    assert [epochs.begin(), epochs.begin()] == [7, 8]


# Workers that live for one epoch, as they begin: (number, base seed, at times how many they are), and the epochs they are told.
BEGUN: dict[str, tuple[list[Any], list[int]]] = {
    "new workers for each epoch": ([(number, base) for base in (500, 7, 90) for number in (1, 0, 2)], [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    "one base seed each epoch, as after torch.manual_seed": ([(0, 1234), (1, 1234)] * 3, [0, 0, 1, 1, 2, 2]),
    "one base seed, and a worker more, which comes first": ([(0, 9, 2), (1, 9, 2), (2, 9, 3), (0, 9, 3), (1, 9, 3)], [0, 0, 1, 1, 1]),
    "a worker killed before it began": ([(0, 5), (1, 6), (0, 6)], [0, 1, 1]),
    "two loaders side by side": ([(0, 10), (0, 20), (1, 10), (1, 20)], [0, 1, 0, 1]),
}


@pytest.mark.parametrize("begun", BEGUN)
def test_workers_of_one_epoch(worker: Callable[..., None], begun: str) -> None:
    """Those of a set agree, and the next set is one further, whatever their seeds and whoever comes first."""
    epochs, seen = Epochs(), []
    for one in BEGUN[begun][0]:
        worker(*one)
        seen.append(started(epochs).begin())
    assert seen == BEGUN[begun][1]


def test_workers_that_stay(worker: Callable[[int, int], None]) -> None:
    """Persistent workers count for themselves: one that runs ahead does not move its sibling."""
    epochs = Epochs()
    first, second = started(epochs), started(epochs)
    worker(0, 5)
    ahead = [first.begin() for _ in range(3)]
    worker(1, 5)
    assert (ahead, [second.begin() for _ in range(3)]) == ([0, 1, 2], [0, 1, 2])


def test_one_base_seed_and_a_worker_killed_before_it_began(worker: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next set does not take it for the one that never came: all of it is in one epoch, though the seed is the same."""
    epochs, seen = Epochs(), []
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for first, numbers in ((1, (0,)), (10, (1, 0)), (19, (1, 0))):
        for number in numbers:
            worker(number, 3, place=first)
            with monkeypatch.context() as other:
                other.setattr(os, "getpid", lambda: ended.pid)
                seen.append(started(epochs).begin())
    assert seen == [0, 1, 1, 2, 2]


def test_a_set_stays_one_where_others_start_processes_between(worker: Callable[..., None]) -> None:
    """Its first worker lives, so whoever has its seed is of it, however many processes were started between them."""
    epochs, seen = Epochs(), []
    for number, place in ((0, 1), (1, 40)):
        worker(number, 3, place=place)
        seen.append(started(epochs).begin())
    assert seen == [0, 0]


def test_setting_reaches_workers_that_stay(worker: Callable[[int, int], None]) -> None:
    """set_epoch is heard by persistent workers at their next iteration, by all alike."""
    epochs = Epochs()
    workers = [started(epochs), started(epochs)]
    for number, own in enumerate(workers):
        worker(number, 5)
        own.begin()
    epochs.set(40)
    seen = []
    for number, own in enumerate(workers):
        worker(number, 5)
        seen.append([own.begin(), own.begin()])
    assert seen == [[40, 41], [40, 41]]


@pytest.mark.parametrize("epoch", [0, 40])
@pytest.mark.parametrize("base", [5, 6])
def test_setting_while_workers_still_begin(worker: Callable[[int, int], None], epoch: int, base: int) -> None:
    """One worker comes to the iteration that was left only after the epoch was set: it moves neither itself nor the others."""
    epochs = Epochs()
    early, late = started(epochs), started(epochs)
    worker(0, 5)
    early.begin()
    epochs.set(epoch)
    worker(1, 5)
    late.begin()
    if base != 5:  # workers that do not stay: the next iteration has others
        early, late = started(epochs), started(epochs)
    seen = []
    for number, own in ((1, late), (0, early)):
        worker(number, base)
        seen.append([own.begin(), own.begin()])
    assert seen == [[epoch, epoch + 1]] * 2


def test_each_training_process_counts_for_itself(owner: SimpleNamespace) -> None:
    """Ranks forked from the process that built the data set share its file, not its count."""
    epochs, seen = Epochs(), []
    for pid in (101, 102, 101, 102, 102):
        owner.pid = pid
        seen.append(epochs.begin())
    assert seen == [0, 0, 1, 1, 2]


def test_many_owners_stay_in_one_page(owner: SimpleNamespace, worker: Callable[[int, int], None]) -> None:
    """The state keeps to one page, which a killed writer leaves whole."""
    epochs = Epochs()
    for number in range(100):
        owner.pid = 4_000_000 + number
        for base in range(6):
            worker(255, 2**63 - 1000 + base)
            started(epochs).begin()
    assert len(epochs._part.read(2 * module.PAGE_BYTES).rstrip(b"\0")) <= module.PAGE_BYTES


def _count(epochs: Epochs, times: int) -> list[int]:
    return [epochs.begin() for _ in range(times)]


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_the_count_travels(start: str) -> None:
    """A process that is started gets the same file, whichever way it is started; it is another owner."""
    epochs = Epochs()
    with multiprocessing.get_context(start).Pool(1, _keep, (epochs,)) as pool:
        assert pool.apply(_count_kept, (2,)) == [0, 1]
        assert pool.apply(_owners) == 1
    assert epochs.begin() == 0
    assert len(_state(epochs)) == 2


_KEPT: list[Epochs] = []


def _keep(epochs: Epochs) -> None:
    _KEPT[:] = [epochs]


def _count_kept(times: int) -> list[int]:
    return _count(_KEPT[0], times)


def _owners() -> int:
    return len(_state(_KEPT[0]))


def _state(epochs: Epochs) -> dict[str, Any]:
    return dict(json.loads(epochs._part.read(1 << 16).rstrip(b" \0")))


def test_a_pickle_has_a_count_of_its_own() -> None:
    """Pickled for anything else, it begins where the original stands, and goes on alone."""
    epochs = Epochs()
    epochs.begin()
    other = pickle.loads(pickle.dumps(epochs))
    assert [other.begin(), other.begin()] == [1, 2]
    assert epochs.begin() == 1


def test_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no such file, a temporary one does."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(shared_memory, "_FILE", shared_memory._File())
    epochs = Epochs()
    assert [epochs.begin(), epochs.begin()] == [0, 1]


def test_two_sets_of_workers_that_take_turns(worker: Callable[[int, int], None]) -> None:
    """Two persistent loaders over one data set: each iteration of either is the data set's next epoch, for all workers of its set."""
    epochs = Epochs()
    sets = {seed: [started(epochs), started(epochs)] for seed in (5, 700)}
    seen = []
    for seed in (5, 700, 700, 5, 700, 5, 5):
        found = []
        for number, own in enumerate(sets[seed]):
            worker(number, seed)
            found.append(own.begin())
        seen.append(found)
    assert seen == [[epoch, epoch] for epoch in range(7)]


def test_a_worker_behind_its_set_while_another_set_begins(worker: Callable[[int, int], None]) -> None:
    """It is told the epoch that its set's first worker took, not the one that comes next."""
    epochs = Epochs()
    early, late, other = started(epochs), started(epochs), started(epochs)
    seen = []
    for number, seed, own in ((0, 5, early), (0, 700, other), (1, 5, late), (0, 5, early), (0, 700, other), (1, 5, late)):
        worker(number, seed)
        seen.append(own.begin())
    assert seen == [0, 1, 0, 2, 3, 2]
