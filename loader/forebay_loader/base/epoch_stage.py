"""A stage of a pipeline whose passes differ by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["EpochStage"]


class EpochStage(ABC):
    """``fb.WebDataset`` tells it, before each pass and in the thread that makes it, which epoch the pass is of."""

    @abstractmethod
    def begin(self, epoch: int, turn: int) -> None:
        """The next pass that this thread makes is of ``epoch``; ``turn`` counts the passes of one epoch."""
