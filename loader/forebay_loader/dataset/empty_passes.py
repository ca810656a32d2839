"""When to end what repeats its passes: a worker or a rank that has nothing in one pass may have samples in the next.

The order of the shards is fresh in each pass, so a worker meets the empty shard of eight in one of them and others later. What is read
without end must end all the same where no pass would give anything, and not before. So it ends after many empty passes in a row: enough
that every shard came to this worker, and, where samples were read, that a stage that leaves nearly all of them out had its chance.
"""

from __future__ import annotations

from typing import Optional

from forebay_loader.base.notices import notice_once
from forebay_loader.resume.begun_shards import ROUNDS

__all__ = ["EmptyPasses"]

LEFT_OUT = 30_000  # samples, if any were read: that an rsample(0.001) takes none of so many has a probability of e**-30


class EmptyPasses:
    """Passes in a row that gave nothing. ``places`` share the shards of each out among them, ``listed`` are those, if that is known."""

    def __init__(self, places: int, listed: Optional[int] = None) -> None:
        self._enough = ROUNDS * max(1, places if listed is None else min(places, listed))
        self._passes = 0
        self._left_out = 0

    def __repr__(self) -> str:
        return f"<EmptyPasses, {self._passes} of {self._enough}>"

    def gave(self) -> None:
        """A pass gave something."""
        self._passes = self._left_out = 0

    def over(self, read: int = 0) -> bool:
        """One more pass gave nothing, of ``read`` samples; whether it was the last one to try. Says so in the log then."""
        self._passes += 1
        self._left_out += read
        if self._passes < self._enough or 0 < self._left_out < LEFT_OUT:
            return False
        what = f"{self._left_out} samples were read, and stages left all of them out" if self._left_out else "there was none"
        notice_once("empty-passes", f"{self._passes} passes in a row gave no sample ({what}): this worker or rank ends")
        return True
