"""What ``fb.WebLoader`` was asked for beside torch's arguments, checked where it is given."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from types import SimpleNamespace
from typing import Optional

from forebay_loader.base.argument_types import whole
from forebay_loader.loading.batch_ladder import BatchLadder

__all__ = ["LoaderArguments"]

_TAILS = (None, "repeat", "drop")


class LoaderArguments(SimpleNamespace):
    """Named as there."""

    def check(self) -> None:
        """Raises ``TypeError`` and ``ValueError``."""
        if self.equal_steps not in ("auto", True, False):
            raise ValueError(f"equal_steps is {self.equal_steps!r}; it can be 'auto', True or False")
        if self.batches_per_epoch is not None:
            whole("batches_per_epoch", self.batches_per_epoch, "a number of batches, at least one", least=1)
        whole("snapshot_every", self.snapshot_every, "a number of batches, or 0 for no state", least=0)
        if not isinstance(self.steps_timeout_s, (int, float)) or not self.steps_timeout_s > 0:
            raise TypeError(f"steps_timeout_s takes a number of seconds above 0; got {self.steps_timeout_s!r}")
        if self.counts is not None and not callable(self.counts) and not isinstance(self.counts, MappingABC):
            raise TypeError(f"counts takes a dict of samples by URL or file name, or a function of the URLs; got {self.counts!r}")
        if self.tail not in _TAILS:
            raise ValueError(f"tail is {self.tail!r}; it can be 'repeat' or 'drop'")
        self._check_ladder()

    def ladder(self) -> Optional[BatchLadder]:
        """A fresh one; None where none was asked for."""
        if self.batch_ladder is None:
            return None
        return BatchLadder(tuple(self.batch_ladder), self.on_batch_size, self.batch_ladder_steps)

    def _check_ladder(self) -> None:
        whole("batch_ladder_steps", self.batch_ladder_steps, "a number of steps, at least one", least=1)
        if self.on_batch_size is not None and not callable(self.on_batch_size):
            raise TypeError(f"on_batch_size takes a function of the new batch size; got {self.on_batch_size!r}")
        if self.batch_ladder is None:
            if self.on_batch_size is not None:
                raise ValueError("on_batch_size is called where batch_ladder= changes the batch size, and none was given")
            return
        if isinstance(self.batch_ladder, (str, bytes)) or not isinstance(self.batch_ladder, (list, tuple)):
            raise TypeError(f"batch_ladder takes batch sizes such as (32, 64, 128); got {self.batch_ladder!r}")
        sizes = [whole("batch_ladder", size, "batch sizes such as (32, 64, 128)", least=1) for size in self.batch_ladder]
        if len(sizes) < 2 or sizes != sorted(set(sizes)) or any(size % sizes[0] for size in sizes):
            raise ValueError(
                f"batch_ladder takes two sizes or more that ascend and are multiples of the first, your own; got {self.batch_ladder!r}"
            )
