"""Which rank of how many: read once, where the data set is built, and pickled with it. And which worker of how many, where it is read.

A spawned DataLoader worker has neither an initialised process group nor, under launchers such as Lightning's, a ``RANK``: asked there,
every rank would read everything. So workers are told. A data set made before ``init_process_group`` learns its rank when it is pickled or
read: until then only the environment could speak, and under Slurm with several ranks a task it speaks of tasks.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, NamedTuple, Optional

from forebay_loader.base.argument_types import rank_of

__all__ = ["Worker", "World", "here_worker", "in_worker", "loader_worker", "play", "take_role"]

_PAIRS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
ALONE = "nothing"
_OUTRIGHT = ("data_parallel", "group", "the process group")


class World(NamedTuple):
    """``rank`` of ``size``; ``told_by`` names what said so, for messages."""

    rank: int = 0
    size: int = 1
    told_by: str = ALONE

    @classmethod
    def here(cls, data_parallel: Optional[tuple[int, int]] = None, group: Any = None, environ: Optional[Mapping[str, str]] = None) -> World:
        """``data_parallel=(rank, size)``, else ``group`` or the initialised process group, else ``RANK``/``WORLD_SIZE``, else Slurm's.

        Raises ``ValueError`` where what was told is no rank, or this process is not of ``group``, ``TypeError`` where it is no pair.
        """
        if data_parallel is not None:
            return cls(*rank_of(data_parallel), "data_parallel")._checked()
        return _of_group(group) or _of_environment(os.environ if environ is None else environ) or cls()

    def resolved(self) -> World:
        """Itself; where only the environment had told it, or nothing, what a process group says that has come up since."""
        if self.told_by in _OUTRIGHT:
            return self
        return _of_group(None) or (World.here() if self.told_by == ALONE else self)

    def place(self) -> int:
        """Of the worker that asks, among those of all ranks: each has another one; the main process of rank 0 has 0."""
        return self.rank + self.size * here_worker().id

    def tell_worker(self) -> None:
        """In a DataLoader worker that cannot know: leave the rank where webdataset's own splitters, and reader names, look for it."""
        if self.size < 2 or not in_worker() or ("RANK" in os.environ and "WORLD_SIZE" in os.environ) or _of_group(None) is not None:
            return
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(self.rank), str(self.size)

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} (told by {self.told_by})"

    def _checked(self) -> World:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"{self.told_by} says rank {self.rank} of {self.size}: a rank is 0 or more and below the number of ranks")
        return self


class Worker(NamedTuple):
    """DataLoader worker ``id`` of ``workers``; the main process is 0 of 1."""

    id: int = 0
    workers: int = 1


def here_worker(environ: Optional[Mapping[str, str]] = None) -> Worker:
    """Who this process is, as webdataset finds it: ``WORKER`` and ``NUM_WORKERS``, else the DataLoader's worker info."""
    environ = os.environ if environ is None else environ
    if _ROLES.now is None and "WORKER" in environ and "NUM_WORKERS" in environ:
        return Worker(int(environ["WORKER"]), int(environ["NUM_WORKERS"]))
    return loader_worker()


def loader_worker() -> Worker:
    """Who this process is to its DataLoader: the role that it plays, else what torch's worker info says."""
    if _ROLES.now is not None:
        return _ROLES.now
    info = _worker_info()
    return Worker() if info is None else Worker(int(info.id), int(info.num_workers))


def play(worker: Worker) -> None:
    """Be ``worker`` from now to the end of the data set's next iteration: one that goes on has torch begin with its first worker, whoever's
    turn it was. Order and shares are the role's; torch's own number stays what readers are named by."""
    _ROLES.now = _ROLES.coming = worker


def take_role() -> None:
    """An iteration of a data set begins: it is of the role that waits for it, or of none."""
    _ROLES.now, _ROLES.coming = _ROLES.coming, None


class _Roles:
    """Of this process: the role it has ``now``, and the one that its next iteration takes."""

    now: Optional[Worker] = None
    coming: Optional[Worker] = None


_ROLES = _Roles()


def in_worker() -> bool:
    """Whether this process is a DataLoader's worker."""
    return _worker_info() is not None


def _worker_info() -> Any:
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def _of_group(group: Any) -> Optional[World]:
    distributed = sys.modules.get("torch.distributed")  # never imported for this: it costs seconds
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        if group is not None:
            raise ValueError("group was given, but torch.distributed is not initialised in this process: call init_process_group first")
        return None
    rank, size = int(distributed.get_rank(group)), int(distributed.get_world_size(group))
    if rank < 0:
        raise ValueError("this process does not belong to the process group that was given: name its data-parallel group")
    return World(rank, size, "the process group" if group is None else "group")


def _of_environment(environ: Mapping[str, str]) -> Optional[World]:
    for rank_name, size_name in _PAIRS:
        rank, size = environ.get(rank_name, ""), environ.get(size_name, "")
        if rank and size:
            return _read(f"{rank_name} and {size_name}", rank, size)
    return None


def _read(names: str, rank: str, size: str) -> World:
    if not (rank.isascii() and rank.isdigit() and size.isascii() and size.isdigit()):
        raise ValueError(f"{names} are {rank!r} and {size!r}, which are not numbers; data_parallel=(rank, size) says it outright")
    return World(int(rank), int(size), names)._checked()
