"""The collation of a metered loader: it also says when a batch was made. In a worker its first call begins the worker's page."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, Callable, Deque

from forebay_loader.meter.clock.batch_samples import samples_in

__all__ = ["MADE", "BatchMark", "MadeBatches"]


class MadeBatches:
    """How many batches and samples this process has made, and when the last ones, in ns."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.batches = 0
        self.samples = 0
        self.unseen: Deque[int] = deque(maxlen=64)  # the observer takes them out

    def add(self, samples: int) -> None:
        self.unseen.append(time.monotonic_ns())
        self.batches += 1
        self.samples += samples


MADE = MadeBatches()
os.register_at_fork(after_in_child=MADE.renew)


class BatchMark:
    """``collate`` of a loader. It is pickled for workers that are spawned: its unpickling there begins the page. ``begin`` is idempotent.

    ``batched``: the loader collates lists of samples.
    """

    def __init__(self, collate: Callable[[Any], Any], begin: Callable[[], None], *, batched: bool) -> None:
        self._collate = collate
        self._begin = begin
        self._batched = batched

    def __repr__(self) -> str:
        return f"<BatchMark of {self._collate!r}>"

    def __getstate__(self) -> "tuple[Callable[[Any], Any], Callable[[], None], bool]":
        return self._collate, self._begin, self._batched

    def __setstate__(self, state: "tuple[Callable[[Any], Any], Callable[[], None], bool]") -> None:
        self._collate, self._begin, self._batched = state
        self._begin()

    def __call__(self, data: Any) -> Any:
        self._begin()
        batch = self._collate(data)
        MADE.add(samples_in(batch, batched=self._batched))
        return batch
