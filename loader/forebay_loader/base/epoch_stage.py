"""Parts of a pipeline whose passes differ by epoch, and how they are told.

``fb.WebDataset`` says four numbers of a pass. ``epoch`` is that of the iteration, ``turn`` counts the passes of the iteration
(``.repeat``), and ``phase`` says how far training is: the epoch where an iteration is one, all passes before where ``.repeat(n)`` makes
several of one iteration, None where the data set is read without end and nothing says where an epoch ends. ``place`` tells ranks and
workers apart where shards are drawn with replacement, so that several may come to one sample in one pass, and workers where shards are not
shared out among them; else it is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Mapping, Optional

__all__ = ["EpochDecoder", "EpochStage"]


class EpochStage(ABC):
    """``fb.WebDataset`` tells it, before each pass and in the thread that makes it, which epoch the pass is of."""

    @abstractmethod
    def begin(self, epoch: int, turn: int, phase: Optional[int] = None, place: int = 0) -> None:
        """The next pass that this thread makes is of ``epoch``; ``turn`` counts the passes of one epoch."""


class EpochDecoder(ABC):
    """What ``fb.WebDataset(…).decode(…)`` asks for a decoder of each pass."""

    @abstractmethod
    def of_pass(
        self, epoch: int, turn: int, phase: Optional[int], place: int = 0, sample: Optional[Callable[[], Mapping[str, Any]]] = None
    ) -> Callable[[str, Any], Any]:
        """A decoder of one pass: gets a member's suffix and bytes, answers None for what it does not decode. ``sample`` gives the sample
        that the member is of."""
