"""Which epoch a data set is in: counted across DataLoader workers that live for one epoch and workers that live for all.

The count lies in memory that fork inherits and spawn is handed. A new set of workers shares its base seed: the first
of them to come to an iteration takes the next epoch for all, and each counts its own: a worker that runs ahead, or one that was killed
at its start, cannot put its siblings out of step, and loaders that take turns use no epoch twice. Each process that owns a DataLoader
has a count of its own.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from multiprocessing import context, current_process
from typing import Any, Iterator, Optional

from forebay_loader.base.argument_types import check_epoch
from forebay_loader.base.shared_memory import SharedPart, lives, training_pid
from forebay_loader.plan.plan_client import told_epoch

__all__ = ["Epochs"]

MAX_OWNERS = 16  # training processes forked from the one that built the data set; the oldest is forgotten
SEEDS = 1 << 32  # enough of a seed to know it by
MAX_STARTS = 2  # sets of workers that begin at the same time, or take turns
MAX_BEGUN = 4  # iterations that a worker may be behind the first of its set
PAGE_BYTES = 4096  # one page is written as a whole, even when the writer is killed
_MOST_BYTES = 16 * PAGE_BYTES


class Epochs:
    """Counts the iterations of one data set. ``told`` is a number, or what is asked for one; then nothing is counted."""

    def __init__(self, told: Any = None, first: int = 0) -> None:
        check_epoch(told)
        self.told = told
        self._first = first
        self._part = SharedPart(_MOST_BYTES)
        self._run: Optional[_Run] = None
        self.value: Optional[int] = None  # the epoch being read in this process, for plans

    def __repr__(self) -> str:
        return f"<epoch {self.value}>"

    def begin(self, resumed: Optional[int] = None) -> int:
        """The epoch of an iteration that begins now: ``resumed`` for an iteration that goes on with that epoch; later epochs are counted
        from there.

        Raises ``ValueError`` where ``epoch=`` names another epoch than ``resumed``.
        """
        told = told_epoch(self.told)
        if resumed is not None and told not in (None, resumed):
            raise ValueError(
                f"the state that was loaded is of epoch {resumed}, and what epoch= names says {told}: let it say {resumed} too"
            )
        self.value = self._counted(resumed) if told is None else told
        return self.value

    def set(self, epoch: int) -> None:
        """The next iteration is of ``epoch``, later ones count on. An iteration that has begun keeps its epoch, in late workers too."""
        with self._owned() as own:
            own["next"], own["set"] = epoch, own["set"] + 1

    def upcoming(self) -> tuple[int, int]:
        """(the epoch of the next iteration unless ``epoch=`` names another one, how often ``set`` was called)."""
        with self._owned() as own:
            return int(own["next"]), int(own["set"])

    def _counted(self, resumed: Optional[int]) -> int:
        with self._owned() as own:
            data = sys.modules.get("torch.utils.data")
            worker = data.get_worker_info() if data is not None else None
            if worker is None:
                return _next(own, resumed)
            if self._run is None or self._run.pid != os.getpid():
                self._run = _Run(os.getpid())
            return self._run.begin(worker, own, resumed)

    @contextmanager
    def _owned(self) -> Iterator[dict[str, Any]]:
        """What the memory has, as JSON, of the process whose DataLoader this is: read and changed under its lock."""
        with self._part.locked():
            found = self._part.read(_MOST_BYTES).rstrip(b" \0")
            state = json.loads(found or b"{}")
            own = state.pop(str(training_pid()), None) or {"next": self._first, "set": 0, "starts": []}
            state[str(training_pid())] = own  # the newest last
            for forgotten in list(state)[:-MAX_OWNERS]:
                del state[forgotten]
            yield own
            self._part.write(json.dumps(state, separators=(",", ":")).encode().ljust(max(PAGE_BYTES, len(found))))

    def __getstate__(self) -> dict[str, Any]:
        """Shared with a process that is being started; anything else that pickles gets a count of its own."""
        if context.get_spawning_popen() is not None:
            return {"told": self.told, "first": self._first, "part": self._part}
        with self._owned() as own:
            return {"told": self.told, "first": own["next"], "part": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.told, self._first, self._run, self.value = state["told"], state["first"], None, None
        self._part = state["part"] or SharedPart(_MOST_BYTES)


class _Run:
    """How far one worker process has counted, and which set of workers it is of."""

    def __init__(self, pid: int) -> None:
        self.pid, self.count, self._base, self._set = pid, 0, 0, -1
        self._of: Any = None

    def begin(self, worker: Any, own: dict[str, Any], resumed: Optional[int]) -> int:
        """The epoch of this process's next iteration: the next one of the data set for the first of a set of workers that comes to it.

        ``resumed``, which all workers of a set say, is what the first takes instead.
        """
        number, self.count = self.count, self.count + 1
        start = next((start for start in own["starts"] if _name(start) == self._of), None)
        if start is None and self._set != own["set"]:
            start = _start_of(worker, own)
        if start is None:  # forgotten, for sets that came later: it counts on alone
            own["next"] = max(own["next"], self._base + number + 1)
            return self._base + number
        own["starts"].remove(start)
        own["starts"].insert(0, start)
        found = next((epoch for begun, epoch in start[_BEGUN] if begun == number), None)
        if found is None:
            found = _next(own, resumed)
            start[_BEGUN] = [[number, found], *start[_BEGUN]][:MAX_BEGUN]
        self._of, self._set, self._base = _name(start), own["set"], int(found) - number
        return int(found)


def _next(own: dict[str, Any], resumed: Optional[int]) -> int:
    """Take the next epoch, or ``resumed``; the one after it is the next from then on."""
    found = int(own["next"]) if resumed is None else resumed
    own["next"] = found + 1
    return found


# A set of workers: its seed, a bit for each worker that came, the place and pid of its first worker, its last iterations with their epochs.
_SEED, _BITS, _PLACE, _PID, _BEGUN = range(5)


def _name(start: list[Any]) -> tuple[int, int, int]:
    return start[_SEED], start[_PLACE], start[_PID]


def _start_of(worker: Any, own: dict[str, Any]) -> list[Any]:
    """The set of workers that ``worker`` belongs to; a new one if it is the first to come."""
    bit, place = 1 << int(worker.id), _place(int(worker.id))
    seed = (int(worker.seed) - int(worker.id) + (int(worker.num_workers) << 20)) % SEEDS  # a set of more or fewer workers is another one
    start: list[Any]
    for start in own["starts"]:
        # A worker whose bit is set belongs to a later set with the same seed: the program seeds torch at each epoch. So does a worker that
        # was made long after the first one of a set, once that one is gone.
        if start[_SEED] != seed or start[_BITS] & bit:
            continue
        if abs(place - start[_PLACE]) < int(worker.num_workers) or lives(start[_PID]):
            start[_BITS] |= bit
            return start
    start = [seed, bit, place, os.getpid(), []]
    own["starts"] = [start, *own["starts"][: MAX_STARTS - 1]]
    return start


def _place(worker_id: int) -> int:
    """The same number for all workers of a set, if their parent started no other process between them: multiprocessing numbers its
    children.
    """
    identity = current_process()._identity
    return int(identity[-1]) - worker_id if identity else 0
