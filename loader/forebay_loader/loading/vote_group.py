"""The gloo group of one ballot with its one open vote, and how both end when the interpreter ends.

A gloo thread keeps a reference to the tensor it reduces until a little after the vote is done. The thread that drops a tensor's last
reference needs the interpreter; if Python is ending then, the thread is ended in the middle of C++, which aborts the process. So the tensor
lives as long as the group's threads, and both outlive the process if a vote is still under way at its end: only the main thread can drop
the last reference.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

__all__ = ["LAST_WORD_S", "VoteGroup"]

LAST_WORD_S = 1.0  # others have mostly voted already, one batch ahead; who is later than this hears it from the broken connection
_OPEN: list[VoteGroup] = []  # of this process


class VoteGroup:
    """``size`` ranks that reduce ``numbers`` integers under MIN, one vote at a time. Made by all of them at once."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float, numbers: int) -> None:
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        with torch.inference_mode(mode=False):  # a tensor that may be written to in any mode later
            self._told = torch.zeros(numbers, dtype=torch.int64, device="cpu")
        self._gloo = distributed.ProcessGroupGloo(distributed.PrefixStore("gloo", store), rank, size, timedelta(seconds=timeout_s))
        self._work: Any = None
        self._pid = os.getpid()
        self._left = False  # no rank votes on it any more
        # The group's destructor waits for unanswered votes, up to their timeout: it runs only while no vote is under way.
        _keep(self._gloo)
        _keep(self._told)
        for other in tuple(_OPEN):
            if other._left:
                other.close()
        _OPEN.append(self)

    def send(self, vote: list[int]) -> None:
        """Vote, without waiting. The vote before must be done."""
        torch, distributed = sys.modules["torch"], sys.modules["torch.distributed"]
        self._told.copy_(torch.tensor(vote, dtype=torch.int64, device="cpu"))
        options = distributed.AllreduceOptions()
        options.reduceOp = distributed.ReduceOp.MIN
        work = self._gloo.allreduce([self._told], options)
        _keep(work)
        self._forget()
        self._work = work

    @property
    def is_ours(self) -> bool:
        """Whether this process made it: a forked child must not vote."""
        return self._pid == os.getpid()

    @property
    def done(self) -> bool:
        """Whether no vote is on its way."""
        return self._work is None or bool(self._work.is_completed())

    def wait(self, wait_s: float) -> list[int]:
        """What all voted. Raises ``RuntimeError`` where that failed, or takes longer than ``wait_s``."""
        self._work.wait(timedelta(seconds=wait_s))
        return list(self._told.tolist())

    def close(self) -> None:
        """Give the group back, with its threads, unless a vote is still on its way."""
        self._left = True
        if self not in _OPEN or not self.is_ours or not self.done:
            return
        _OPEN.remove(self)
        gloo, self._gloo = self._gloo, None
        _let_go(gloo)
        del gloo  # its threads have ended now
        self._forget()
        _let_go(self._told)

    def _forget(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            _let_go(work)


def _end() -> None:
    """Before the interpreter ends: a moment for votes on their way. What is at rest is given back, the rest outlives the interpreter."""
    until = time.monotonic() + LAST_WORD_S
    for line in tuple(_OPEN):
        with suppress(Exception):  # a vote that failed is done, too
            if not line.done:
                line.wait(max(0.001, until - time.monotonic()))
        line.close()


def _keep(held: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))


def _let_go(held: Any) -> None:
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(held))


atexit.register(_end)  # after torch's own, and so before them
os.register_at_fork(after_in_child=_OPEN.clear)  # the threads are the parent's
