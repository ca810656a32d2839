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

LEFT_OUT = 2000  # samples, where stages leave out what is read
DRAWS = 30  # as often as one sample of an rsample's should have come: that none did has a probability of e**-30


class EmptyPasses:
    """Passes in a row that gave nothing. ``places`` share the shards of each out among them, ``listed`` are those, if that is known, and of
    the samples ``rsample`` takes a ``share``."""

    def __init__(self, places: int, listed: Optional[int] = None, share: float = 1.0) -> None:
        self._enough = ROUNDS * max(1, places if listed is None else min(places, listed))
        self._samples = max(LEFT_OUT, DRAWS / share) if share > 0 else LEFT_OUT
        self._passes = 0
        self._left_out = 0

    def __repr__(self) -> str:
        return f"<EmptyPasses, {self._passes} of {self._enough}>"

    def gave(self) -> None:
        """A pass gave something."""
        self._passes = self._left_out = 0

    def over(self, read: int = 0) -> bool:
        """One more pass gave nothing, of ``read`` samples that no handler passed over. Whether it was the last to try: the log says so."""
        self._passes += 1
        self._left_out += max(0, read)
        if self._passes < self._enough or 0 < self._left_out < self._samples:
            return False
        what = f"{self._left_out} samples were read, and stages left all of them out" if self._left_out else "there was none"
        notice_once("empty-passes", f"{self._passes} passes in a row gave no sample ({what}): this worker or rank ends")
        return True
