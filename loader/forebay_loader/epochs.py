"""Which epoch a data set is in: counted across DataLoader workers that live for one epoch and workers that live for all.

The count lies in a small file without a name that fork inherits and spawn is handed. A new set of workers shares its base seed: the first
of them to come takes the next epoch for all; from there each counts its own iterations, so that a worker that runs ahead, or one that was
killed at its start, cannot put its siblings out of step. Each process that owns a DataLoader has a count of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import threading
import weakref
from contextlib import contextmanager
from multiprocessing import context, current_process, parent_process, reduction
from typing import Any, Iterator, Optional

from forebay_loader.subject import told_epoch

__all__ = ["Epochs"]

MAX_OWNERS = 16  # training processes forked from the one that built the data set; the oldest is forgotten
SEEDS = 1 << 48  # enough of a seed to know it by
MAX_STARTS = 2  # sets of workers that begin at the same time
PAGE_BYTES = 4096  # one page is written as a whole, even when the writer is killed
_THREADS = threading.Lock()  # the file's lock is a process's, not a thread's


def _renew() -> None:
    global _THREADS  # noqa: PLW0603  # after a fork it may be held by a thread that is not in this child
    _THREADS = threading.Lock()


os.register_at_fork(after_in_child=_renew)


class Epochs:
    """Counts the iterations of one data set. ``told`` is a number, or what is asked for one; then nothing is counted."""

    def __init__(self, told: Any = None, first: int = 0) -> None:
        self.told = told
        self._first = first
        self._file: Optional[_File] = _File(_opened())
        self._run: Optional[_Run] = None
        self.value: Optional[int] = None  # the epoch being read in this process, for plans

    def __repr__(self) -> str:
        return f"<epoch {self.value}>"

    def begin(self) -> int:
        """The epoch of an iteration that begins now."""
        told = told_epoch(self.told)
        self.value = self._counted() if told is None else told
        return self.value

    def set(self, epoch: int) -> None:
        """The next iteration is of ``epoch``, the ones after it count on."""
        with self._owned() as own:
            own["next"], own["starts"], own["set"] = epoch, [], own["set"] + 1

    def upcoming(self) -> tuple[int, int]:
        """The epoch that the next iteration will be of if nobody tells, and how often one was set."""
        with self._owned() as own:
            return int(own["next"]), int(own["set"])

    def _counted(self) -> int:
        with self._owned() as own:
            worker = _worker()
            if worker is None:
                epoch = int(own["next"])
            else:
                self._run = run = self._run_of(worker, own)
                epoch = run.base + run.count
                run.count += 1
            own["next"] = max(own["next"], epoch + 1)
            return epoch

    def _run_of(self, worker: Any, own: dict[str, Any]) -> _Run:
        """The iterations of this worker process; new where it is new, or where an epoch was set since."""
        run = self._run
        if run is not None and (run.pid, run.set) == (os.getpid(), own["set"]):
            return run
        return _Run(os.getpid(), own["set"], _base_of(worker, own))

    @contextmanager
    def _owned(self) -> Iterator[dict[str, Any]]:
        """The state of the process whose DataLoader this is, under the lock."""
        assert self._file is not None
        with self._file.changed() as state:
            own = state.pop(str(_owner()), None) or {"next": self._first, "set": 0, "starts": []}
            state[str(_owner())] = own  # the newest last
            for forgotten in list(state)[:-MAX_OWNERS]:
                del state[forgotten]
            yield own

    def __getstate__(self) -> dict[str, Any]:
        """Shared with a process that is being started; anything else that pickles gets a count of its own."""
        if context.get_spawning_popen() is not None:
            assert self._file is not None
            return {"told": self.told, "first": self._first, "file": reduction.DupFd(self._file.descriptor)}
        with self._owned() as own:
            return {"told": self.told, "first": own["next"], "file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.told, self._first, self._run, self.value = state["told"], state["first"], None, None
        handed = state["file"]
        self._file = _File(_opened() if handed is None else os.dup(handed.detach()))


class _Run:
    """How far one worker process has counted since the epoch it began with."""

    def __init__(self, pid: int, set: int, base: int) -> None:
        self.pid, self.set, self.base, self.count = pid, set, base, 0


def _base_of(worker: Any, own: dict[str, Any]) -> int:
    """The epoch at which the set of workers began that ``worker`` belongs to."""
    seed, bit, place = (int(worker.seed) - int(worker.id)) % SEEDS, 1 << int(worker.id), _place(int(worker.id))
    for start in own["starts"]:
        # A worker that came already is not of that set: somebody seeds torch at each epoch. Nor is one that was made long after its first
        # worker, which is gone: this one's namesake was killed before it came.
        if start[0] == seed and not start[2] & bit and (abs(place - start[3]) < int(worker.num_workers) or _lives(start[4])):
            start[2] |= bit
            return int(start[1])
    own["starts"] = [[seed, own["next"], bit, place, os.getpid()], *own["starts"][: MAX_STARTS - 1]]
    return int(own["next"])


def _place(worker_id: int) -> int:
    """The same for all workers of a set, if nobody else started processes between them: multiprocessing numbers those of a parent."""
    identity = current_process()._identity
    return int(identity[-1]) - worker_id if identity else 0


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody's
        return True
    return True


class _File:
    """A JSON object in a file without a name, read and changed under its lock."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    @contextmanager
    def changed(self) -> Iterator[dict[str, Any]]:
        with _THREADS:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
            try:
                state = json.loads(os.pread(self.descriptor, 16 * PAGE_BYTES, 0) or b"{}")
                yield state
                text = json.dumps(state, separators=(",", ":")).encode()
                os.pwrite(self.descriptor, text.ljust(max(PAGE_BYTES, os.fstat(self.descriptor).st_size)), 0)
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)


def _opened() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("forebay-epochs")
    with tempfile.TemporaryFile() as file:  # not Linux, or a Python built for an old one
        return os.dup(file.fileno())


def _worker() -> Any:
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def _owner() -> int:
    """The process whose DataLoader this is: the parent of a worker, else this one."""
    parent = parent_process()
    return parent.pid if parent is not None and parent.pid is not None and _worker() is not None else os.getpid()
