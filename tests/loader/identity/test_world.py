"""Which rank this is: who is asked, in which order, and when."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from forebay_loader.identity.world import Worker, World, here_worker, in_worker

SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a launcher nor a process group says anything."""
    for name in (*SLURM, *TORCHRUN, "WORKER", "NUM_WORKERS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """torch.distributed, as far as it is asked: rank 2 of 5; 0 of 2 in the group named ``half``, and not of ``other``."""
    ranks = {None: (2, 5), "half": (0, 2), "other": (-1, -1)}
    made = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda group=None: ranks[group][0],
        get_world_size=lambda group=None: ranks[group][1],
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", made)  # type: ignore[arg-type]
    return made


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is DataLoader worker 1 of 3."""
    made = SimpleNamespace(get_worker_info=lambda: SimpleNamespace(id=1, num_workers=3))
    monkeypatch.setitem(sys.modules, "torch.utils.data", made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environ", "world"),
    [
        ({}, World(0, 1, "nothing")),
        ({**SLURM, **TORCHRUN}, World(1, 4, "RANK and WORLD_SIZE")),  # srun starts torchrun: the inner launcher knows the ranks
        (SLURM, World(3, 8, "SLURM_PROCID and SLURM_NTASKS")),
        ({"RANK": "1", **SLURM}, World(3, 8, "SLURM_PROCID and SLURM_NTASKS")),  # half a pair is no answer
        ({"SLURM_NTASKS": "8"}, World(0, 1, "nothing")),
    ],
)
def test_what_launchers_say(environ: dict[str, str], world: World) -> None:
    """The first whole pair of variables."""
    assert World.here(environ=environ) == world


def test_who_is_asked_first(group: SimpleNamespace) -> None:
    """What was said outright, then an initialised process group, which is the training's own word, then the environment."""
    assert World.here((3, 4), "half", TORCHRUN) == World(3, 4, "data_parallel")
    assert World.here(environ=TORCHRUN) == World(2, 5, "the process group")
    assert World.here(group="half", environ=TORCHRUN) == World(0, 2, "group")


def test_a_group_of_others(group: SimpleNamespace) -> None:
    """A process outside the group has no share in its data."""
    with pytest.raises(ValueError, match="does not belong to the process group"):
        World.here(group="other")


def test_a_group_before_it_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group needs init_process_group, and the message says so."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    with pytest.raises(ValueError, match="init_process_group"):
        World.here(group="half")


@pytest.mark.parametrize("pair", [("4", "4"), ("-1", "4"), ("x", "2"), ("0", "0"), ("1.5", "2")])
def test_no_rank(pair: tuple[str, str]) -> None:
    """A rank that cannot be is an error that names the variables; so is one that was given."""
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE"):
        World.here(environ={"RANK": pair[0], "WORLD_SIZE": pair[1]})
    if pair[0].lstrip("-").isdecimal():
        with pytest.raises(ValueError, match=f"data_parallel says rank {pair[0]} of {pair[1]}"):
            World.here((int(pair[0]), int(pair[1])))


def test_told_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once told, never asked again: the world that was pickled is the world that is read, whatever the environment says there."""
    told = World.here(environ=TORCHRUN)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert pickle.loads(pickle.dumps(told)).resolved() == told


def test_a_process_group_that_came_up_since(group: SimpleNamespace) -> None:
    """Where nothing could tell yet it is asked again, and a launcher's variables give way to it: under Slurm they may count tasks."""
    for world in (World(), World(3, 8, "SLURM_PROCID and SLURM_NTASKS")):
        assert world.resolved()[:2] == (2, 5)
    assert World.here((0, 1)).resolved()[:2] == (0, 1)
    assert World(0, 2, "group").resolved()[:2] == (0, 2)


def test_worker_of_the_data_loader(worker: None) -> None:
    """The DataLoader's worker info counts; webdataset asks WORKER and NUM_WORKERS first, so we do."""
    assert here_worker({}) == Worker(1, 3)
    assert in_worker()
    assert here_worker({"WORKER": "4", "NUM_WORKERS": "6"}) == Worker(4, 6)


def test_the_main_process_is_one_worker() -> None:
    """Worker 0 of 1."""
    assert here_worker({}) == Worker(0, 1)
    assert not in_worker()


@pytest.fixture
def restored() -> Iterator[None]:
    """What ``tell_worker`` writes is taken back."""
    yield
    for name in TORCHRUN:
        os.environ.pop(name, None)


def test_a_worker_is_told(worker: None, restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned worker has no RANK: it is left where webdataset's splitters look."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    World(1, 2, "the process group").tell_worker()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("1", "2")


def test_who_knows_is_left_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training process keeps its environment; in a worker a RANK that is there stays, and so does a world of one."""
    World(1, 2, "data_parallel").tell_worker()
    assert "RANK" not in os.environ
    request.getfixturevalue("worker")
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    World(0, 1).tell_worker()
    assert "RANK" not in os.environ
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "7")
    World(1, 2, "group").tell_worker()
    assert os.environ["RANK"] == "5"
