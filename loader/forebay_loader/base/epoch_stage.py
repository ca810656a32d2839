"""Parts of a pipeline that behave differently in each epoch, and how ``fb.WebDataset`` tells them the epoch.

It passes four numbers for each pass:

- ``epoch``: the epoch of the iteration.
- ``turn``: the number of the pass within the iteration (``.repeat``).
- ``phase``: how far training is. It is the epoch if an iteration is one epoch, and the number of earlier passes if ``.repeat(n)`` makes
  several of one iteration. It is None if the data set is endless and nothing says where an epoch ends.
- ``place``: a number that differs between ranks and workers which may read the same sample in one pass. Ranks and workers may do so if
  shards are drawn with replacement, and workers if shards are not split between them. Otherwise it is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Mapping, Optional

__all__ = ["EpochDecoder", "EpochStage"]


class EpochStage(ABC):
    """A stage whose ``begin`` is called before each pass, in the thread that makes the pass."""

    @abstractmethod
    def begin(self, epoch: int, turn: int, phase: Optional[int] = None, place: int = 0) -> None:
        """The next pass in this thread belongs to ``epoch``. ``turn`` counts the passes of one epoch."""


class EpochDecoder(ABC):
    """An object in ``fb.WebDataset(…).decode(…)`` that makes a decoder for each pass."""

    @abstractmethod
    def of_pass(
        self, epoch: int, turn: int, phase: Optional[int], place: int = 0, sample: Optional[Callable[[], Mapping[str, Any]]] = None
    ) -> Callable[[str, Any], Any]:
        """Return the decoder for one pass: it takes a member's suffix and bytes, and returns None if it does not decode them.

        ``sample()`` returns the sample that the member belongs to.
        """
