"""The collation of a metered loader: it also says when a batch was made. In a worker its first call begins the worker's page."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, Callable, Deque, Tuple

from forebay_loader.base.activity import profiled

__all__ = ["MADE", "BatchMark", "MadeBatches"]


class MadeBatches:
    """How many batches this process has made, when the last ones, and when it began to collate the last one, in ns."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.batches = 0
        self.begun_ns = 0
        self.unseen: Deque[int] = deque(maxlen=64)  # the observer takes them out

    def add(self) -> None:
        self.unseen.append(time.monotonic_ns())
        self.batches += 1


MADE = MadeBatches()
os.register_at_fork(after_in_child=MADE.renew)


class BatchMark:
    """``collate`` of a loader. Pickled for workers that are spawned: unpickled there it begins the page. ``begin`` is called often."""

    def __init__(self, collate: Callable[[Any], Any], begin: Callable[[], None]) -> None:
        self._collate = collate
        self._begin = begin

    def __repr__(self) -> str:
        return f"<BatchMark of {self._collate!r}>"

    def __getstate__(self) -> Tuple[Callable[[Any], Any], Callable[[], None]]:
        return self._collate, self._begin

    def __setstate__(self, state: Tuple[Callable[[Any], Any], Callable[[], None]]) -> None:
        self._collate, self._begin = state
        self._begin()

    def __call__(self, data: Any) -> Any:
        self._begin()
        MADE.begun_ns = time.monotonic_ns()
        with profiled("forebay.collate"):
            batch = self._collate(data)
        MADE.add()
        return batch
