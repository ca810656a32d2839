"""Memory that a training process shares with its workers: forked ones inherit it, started ones are handed its descriptor.

All data sets of a process have their parts in one nameless file: hundreds of them in one mixture would else take hundreds of descriptors. A
part is never given to another data set, also when its own is gone: a worker may still write there. Untouched pages take no memory.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from multiprocessing import context, parent_process, reduction
from typing import Any, Iterator, Optional

__all__ = ["SharedPart", "lives", "nameless_file", "training_pid"]

_PAGE_BYTES = 4096


class _File:
    """The file of this process, and how much of it is given away."""

    def __init__(self) -> None:
        self.descriptor: Optional[int] = None
        self.used_bytes = 0
        self.handed: dict[tuple[int, int], int] = {}  # by device and inode: descriptors of other processes' files, once each
        # Also of what is read and changed: a lock of the file's is a process's, not a thread's. It may be taken again within: the collector
        # runs at any moment, and a pass that it ends, by a generator that nobody reads any more, writes into a part of its own.
        self.lock = threading.RLock()
        self.held: dict[tuple[int, int], int] = {}  # by descriptor, and where a part begins: how often this thread is inside

    def part(self, size_bytes: int) -> tuple[int, int]:
        """(descriptor, where a new part begins)."""
        with self.lock:
            if self.descriptor is None:
                self.descriptor = nameless_file("forebay-loader")
            start, self.used_bytes = self.used_bytes, self.used_bytes + -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
            return self.descriptor, start

    def known(self, descriptor: int) -> int:
        """The descriptor under which this process has the file of ``descriptor``, which is closed where it has one already."""
        found = os.fstat(descriptor)
        with self.lock:  # closing one would end every lock that a thread of this process has of that file
            kept = self.handed.setdefault((found.st_dev, found.st_ino), descriptor)
            if kept != descriptor:
                os.close(descriptor)
            return kept


_FILE = _File()


def _renew() -> None:
    """A fork's child reads and writes the parts that it inherited, and has a file of its own for what it makes."""
    global _FILE  # noqa: PLW0603  # the old one's lock may be held by a thread that is not in this child
    _FILE = _File()


os.register_at_fork(after_in_child=_renew)


class SharedPart:
    """``size_bytes`` of zeros, for this process and those that it forks or starts; pickled otherwise it is a new one."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._descriptor, self._start = _FILE.part(size_bytes)

    def read(self, size_bytes: int, at: int = 0) -> bytes:
        """What is there; shorter where nothing was ever written behind it."""
        return os.pread(self._descriptor, min(size_bytes, self.size_bytes - at), self._start + at)

    def write(self, data: bytes, at: int = 0) -> None:
        os.pwrite(self._descriptor, data, self._start + at)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else is inside, of whatever process."""
        with _FILE.lock:
            held, place = _FILE.held, (self._descriptor, self._start)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._start)
            held[place] = held.get(place, 0) + 1
            try:
                yield
            finally:
                held[place] -= 1
                if not held[place]:
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._start)

    def __getstate__(self) -> dict[str, Any]:
        """Shared with a process that is being started; anything else that pickles gets one of its own."""
        started = context.get_spawning_popen()
        file = None
        if started is not None:
            handed = vars(started).setdefault("_forebay_files", {})  # a descriptor may be handed over once
            file = handed[self._descriptor] = handed.get(self._descriptor) or reduction.DupFd(self._descriptor)
        return {"size_bytes": self.size_bytes, "start": self._start, "file": file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size_bytes = state["size_bytes"]
        if state["file"] is None:
            self._descriptor, self._start = _FILE.part(self.size_bytes)
        else:
            self._descriptor, self._start = _FILE.known(os.dup(state["file"].detach())), state["start"]


def nameless_file(name: str) -> int:
    """A descriptor of an empty file that no folder lists; ``name`` is for people who look at a process."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:  # not Linux, or a Python built for an old one
        return os.dup(file.fileno())


def training_pid() -> int:
    """The process whose DataLoader this is: the parent of a worker, else this one."""
    data = sys.modules.get("torch.utils.data")
    parent = parent_process()
    in_worker = data is not None and data.get_worker_info() is not None
    return parent.pid if in_worker and parent is not None and parent.pid is not None else os.getpid()


def lives(pid: int) -> bool:
    """Also where it is somebody else's, or has ended and its parent has not asked for it yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody's
        return True
    return True
