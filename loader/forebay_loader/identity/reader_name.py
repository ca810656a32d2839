"""Who is reading: ``job/rank/worker/opener``, found in the environment a launcher leaves behind.

The opener (``pid.n``) tells apart data sets that one worker reads side by side: training and validation, mixed branches. Opener 0 stands
for all reading without a plan. ``CLAIMS`` remembers which opener announced a URL, so that every later opening of the URL carries that name
and moves its plan on.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading
from collections import OrderedDict
from typing import Mapping, MutableMapping, Optional

from forebay_loader.base.environ_snapshot import seen
from forebay_loader.identity.run_name import launched_run, own_run
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["CLAIMS", "NameClaims", "ensure_job", "next_opener", "reader_name"]

MAX_JOB_CHARACTERS = 64
MAX_CLAIMS = 8192  # announced and never opened: far more than any read-ahead, small enough to forget
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")
_OPENERS = itertools.count(1)
_MADE = "FOREBAY_JOB_MADE"  # the same name, where no person gave it
_MADE_HERE: set[str] = set()  # in this process, or in one that forked it
_NAMES = (b"FOREBAY_JOB", b"RANK", b"SLURM_PROCID")  # of reader_name


def ensure_job(environ: Optional[MutableMapping[str, str]] = None) -> str:
    """The job's name: ``FOREBAY_JOB``, else that of the run its launcher tells, else one of this very process.

    A name that is made here is exported to the environment, so that child processes, such as workers, belong to the same job. A program
    that such a process starts is a run of its own: a notebook that has read a shard may start two trainings one after the other.
    """
    environ = os.environ if environ is None else environ
    if environ.get("FOREBAY_JOB") and not _is_of_another_run(environ):
        return _fit(environ["FOREBAY_JOB"])
    called, told_apart = launched_run(environ)
    if not called:
        called, told_apart = own_run(environ)
    found = f"{_fit(called)[: MAX_JOB_CHARACTERS - 1 - len(told_apart)]}-{told_apart}" if told_apart else _fit(called)
    environ["FOREBAY_JOB"] = environ[_MADE] = found
    _MADE_HERE.add(found)
    return found


def _is_of_another_run(environ: Mapping[str, str]) -> bool:
    """Whether ``FOREBAY_JOB`` was made by a process that started this program: neither a fork, nor a worker, nor a rank of that run.

    A rank that is started by its own training, as Lightning does, has a LOCAL_RANK; torchrun's ranks have that too, and their own name.
    """
    name = environ["FOREBAY_JOB"]
    if environ.get(_MADE) != name or name in _MADE_HERE:
        return False
    return not _is_worker() and ("LOCAL_RANK" not in environ or "TORCHELASTIC_RUN_ID" in environ)


def _is_worker() -> bool:
    """Whether multiprocessing started this process, or the server that forks its workers; also while it imports the program again."""
    begun = sys.modules.get("multiprocessing.process")  # not there: so this is none
    if begun is None:
        return False
    if begun.parent_process() is not None or getattr(begun.current_process(), "_inheriting", False):
        return True
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return b"\0from multiprocessing.forkserver import " in file.read()
    except OSError:
        return False


def rank_of(environ: Mapping[str, str]) -> int:
    """The global rank: ``RANK``, else Slurm's, else torch.distributed's if it is initialised, else 0."""
    for name in ("RANK", "SLURM_PROCID"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return _distributed_rank() or 0


def worker_of() -> int:
    """The DataLoader worker's id; 0 in the main process, as webdataset counts."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return 0 if info is None else int(info.id)


def _distributed_rank() -> Optional[int]:
    distributed = sys.modules.get("torch.distributed")  # never imported for this: it costs seconds
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank())


def reader_name(opener: str = "", environ: Optional[MutableMapping[str, str]] = None) -> str:
    """``job/rank/worker/opener`` of this process; without ``opener`` the one for what no plan announced."""
    environ = os.environ if environ is None else environ
    return str(ReaderName(ensure_job(environ), str(rank_of(environ)), str(worker_of()), opener or f"{os.getpid()}.0"))


class OwnName:
    """``reader_name()``, made anew only when something it is made of has changed: each opening without a plan wants it."""

    def __init__(self) -> None:
        self._known: tuple[tuple[object, ...], str] = (), ""

    def now(self) -> str:
        made_of, name = self._known
        if made_of != _made_of():
            name = reader_name()
            self._known = _made_of(), name  # once more: it may have named the job
        return name


def _made_of() -> tuple[object, ...]:
    return seen(_NAMES), os.getpid(), worker_of(), _distributed_rank()


_OWN = OwnName()


def next_opener() -> str:
    """A name for one more sequence of openings in this process."""
    return f"{os.getpid()}.{next(_OPENERS)}"


class NameClaims:
    """Which reader announced a URL and has not opened it yet: URL -> names, oldest first. Bounded, oldest URLs forgotten."""

    def __init__(self, limit: int = MAX_CLAIMS) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        self._lock = threading.Lock()
        self._names: OrderedDict[str, list[str]] = OrderedDict()

    def announce(self, url: str, name: str) -> None:
        with self._lock:
            self._names.setdefault(url, []).append(name)
            if len(self._names) > self._limit:
                self._names.popitem(last=False)

    def opening(self, url: str) -> str:
        """The name to open ``url`` under: its announcer's, else this process's own."""
        with self._lock:
            names = self._names.get(url)
            found = names.pop(0) if names else ""
            if names is not None and not names:
                del self._names[url]
        return found or _OWN.now()

    def forget(self, url: str, name: str) -> None:
        """Take back one announcement that will not be opened."""
        with self._lock:
            names = self._names.get(url, [])
            if name in names:
                names.remove(name)
            if not names:
                self._names.pop(url, None)


CLAIMS = NameClaims()
os.register_at_fork(after_in_child=CLAIMS.clear)  # what the parent announced, the parent opens


def _fit(text: str) -> str:
    """``text`` as one segment of a path."""
    return _UNFIT.sub("_", text)[:MAX_JOB_CHARACTERS].strip(".") or "_"
