"""Counts and limits of skips. No I/O.

A *skip* is a shard, a file or a sample that is left out because a handler said so: a shard that cannot be opened, the rest of a broken tar,
one file in it, or a sample that a later stage refuses. Nobody knows how many samples an unread shard held, so shards are counted apart from
samples.
"""

from __future__ import annotations

import sys
from itertools import compress, repeat
from operator import length_hint
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Union

__all__ = ["FIRST", "IN_A_ROW", "Skip", "SkipCounts", "SkipLimits", "Tally"]

# With a share as the limit, so many skips never end a run. At half the allowed rate, the chance of more before the share itself allows
# as many is 1.4 % (Poisson, 5 expected, 11 met). With 1 instead of 10 it would be 25 %, and a single broken file could end a run.
FIRST = 10
# If a limit was asked for. A stage that refuses a thousand samples in a row cannot work, or the shard is unusable.
IN_A_ROW = 1000


class Skip(NamedTuple):
    """One skip. ``stage`` is "open", "read", "decode" or "map"; ``what`` is "shard", "file" or "sample".

    ``shard`` and ``message`` hold no secret. ``shard`` and ``key`` are "" if not known. ``function`` is the stage's own name, such as
    "to_tuple". ``then`` is "continue", "replaced", or "stop" if the handler ended the reading.
    """

    stage: str
    what: str
    shard: str
    key: str
    error: str
    message: str
    function: str = ""
    then: str = "continue"

    def __str__(self) -> str:
        where = " of ".join(each for each in (self.key, self.shard) if each) or "a sample whose name is not known"
        return f"{where}: {self.error}: {self.message} ({self.function or self.stage})"


class SkipCounts(NamedTuple):
    """Counts so far: ``samples`` read and ``shards`` begun, and what was skipped.

    Skipped are shards (``open``, ``read``), files of samples (``file``), and samples (``decode``, ``map``). ``touched``: shards with any
    skip. ``stopped``: how often a handler ended the reading.
    """

    samples: int = 0
    shards: int = 0
    open: int = 0
    read: int = 0
    file: int = 0
    decode: int = 0
    map: int = 0
    touched: int = 0
    stopped: int = 0

    @property
    def of_shards(self) -> int:
        return self.open + self.read

    @property
    def of_samples(self) -> int:
        return self.file + self.decode + self.map

    @property
    def all(self) -> int:
        return self.of_shards + self.of_samples

    def __str__(self) -> str:
        said = f"{self.of_samples:,} of {self.samples:,} samples skipped{_by(self, 'file', 'decode', 'map')}"
        if self.of_shards:
            of = f" of {self.shards:,}" if self.shards else ""  # "" if shards are not counted
            said += f", {self.of_shards:,}{of} shards skipped{_by(self, 'open', 'read')}"
        if self.touched:
            said += f"; in {self.touched:,} shard{'s' if self.touched > 1 else ''}"
        return said


class SkipLimits(NamedTuple):
    """``most``: a number of skips, or a share of samples and of shards. ``in_a_row``: skips in a row in one stage. None for no limit."""

    most: Union[int, float, None] = None
    in_a_row: Optional[int] = None

    @classmethod
    def of(cls, most: Union[int, float, None], in_a_row: Optional[int]) -> SkipLimits:
        """Check ``max_skipped`` and ``max_consecutive_skips``. Raises ``TypeError`` or ``ValueError``."""
        if most is not None and (isinstance(most, bool) or not isinstance(most, (int, float))):
            raise TypeError(f"max_skipped takes a number of skips, or a share such as 0.001; got {most!r}")
        if most is not None and (most < 0 or (isinstance(most, float) and not 0 < most < 1)):
            raise ValueError(f"max_skipped takes a whole number from 0, or a share between 0 and 1; got {most!r}")
        if in_a_row is not None and (isinstance(in_a_row, bool) or not isinstance(in_a_row, int)):
            raise TypeError(f"max_consecutive_skips takes a whole number from 1; got {in_a_row!r}")
        if in_a_row is not None and in_a_row < 1:
            raise ValueError(f"max_consecutive_skips takes a whole number from 1; got {in_a_row!r}")
        return cls(most, IN_A_ROW if in_a_row is None and most is not None else in_a_row)

    def passed(self, counts: SkipCounts, *, over: bool = False) -> str:
        """Which limit ``counts`` exceed, as a text; "" if none. ``over``: the epoch has ended, so its share is exact."""
        most = self.most
        if most is None:
            return ""
        if isinstance(most, int):
            return f"{counts.all:,} skips, and max_skipped={most}" if counts.all > most else ""
        for skipped, begun, things in ((counts.of_samples, counts.samples, "samples"), (counts.of_shards, counts.shards, "shards")):
            if not begun:  # for example a stage after a loader: nobody counts its samples
                continue
            borne = most * begun
            if not over or begun * most < 1:  # too few to judge a share
                borne = max(borne, FIRST)
            if skipped > borne:
                return f"{skipped:,} of {begun:,} {things} skipped, {skipped / begun:.2%}, and max_skipped={most} is {most:.2%}"
        return ""

    def passed_in_a_row(self, skips: int) -> str:
        """The same for ``skips`` in a row in one stage."""
        if self.in_a_row is None or skips <= self.in_a_row:
            return ""
        return f"{skips:,} skips in a row in one stage, and max_consecutive_skips={self.in_a_row}"


def _by(counts: SkipCounts, *kinds: str) -> str:
    said = ", ".join(f"{number:,} {kind}" for kind in kinds if (number := int(getattr(counts, kind))))
    return f" ({said})" if said else ""


class Tally:
    """Counts the items that have passed through ``counting``."""

    def __init__(self) -> None:
        self._left = repeat(True, sys.maxsize)  # each item takes one; length_hint says how many are left

    def counting(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield all ``items``, at a third of the cost of a generator."""
        return compress(items, self._left)

    def now(self) -> int:
        return sys.maxsize - length_hint(self._left)
