"""In which order a declared set is fetched: as the last epoch was read, where readers keep to that; else as it is listed. Pure.

Readers of an unshuffled set open the same order each epoch; those of a shuffled one do not, and then any order is as good as another.
Whether readers keep to an order shows while they read: each opening is compared with its place in the epoch before.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from forebay_proxy.policy.plans.sets.shard_sets import ShardSet

__all__ = ["SetCursor"]

KEPT = 0.75  # of the latest openings near their places of the last epoch; by chance few of a large set are
WEIGHT = 1 / 8  # of the newest opening in that share: a dozen openings decide
SLACK = 16  # places off: readers take turns a little otherwise each time
STRANGERS = 64  # openings of other jobs in a row, until one of them is whose order counts
_NOWHERE = (1 << 32) - 1


class SetCursor:
    """A cursor over one set. Twelve bytes a shard. Not thread-safe: the event loop's only."""

    def __init__(self, shards: ShardSet) -> None:
        self._count = len(shards)
        self._before = array("I")  # the epoch before, in order
        self._places = array("I")  # by index: its place there
        self._now = array("I")
        self._job: str | None = None
        self._epoch = 0
        self._strangers = 0
        self._kept = 0.0
        self._following = False
        self._cursor = 0

    def __repr__(self) -> str:
        return f"<SetCursor at {self._cursor} of {self._count} shards{', as read before' if self._following else ''}>"

    @property
    def ended(self) -> bool:
        """Whether every shard has been looked at since the start, or the last ``rewind``."""
        return self._cursor >= self._count + (len(self._before) if self._following else 0)

    def opened(self, index: int, job: str, epoch: int) -> None:
        """``job`` opened the shard at ``index`` in its ``epoch``."""
        if job != self._job:
            self._strangers += 1
            if self._job is not None and self._strangers <= STRANGERS:
                return
            self._job, self._before, self._now, self._epoch = job, array("I"), array("I"), epoch
            self._kept, self._following, self._cursor = 0.0, False, 0
        self._strangers = 0
        if epoch != self._epoch:
            self._begin(epoch)
        if self._before:
            place = self._places[index]
            near = place != _NOWHERE and abs(place - len(self._now)) <= max(SLACK, self._count // 64)
            self._kept += WEIGHT * (near - self._kept)
            self._follow(self._kept >= KEPT)
        if len(self._now) < 2 * self._count:  # a reader that opens one shard for ever
            self._now.append(index)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._before, self._now = epoch, self._now, array("I")
        self._places = array("I", [_NOWHERE]) * self._count
        for place, index in enumerate(self._before):
            self._places[index] = place
        self._cursor = 0

    def _follow(self, following: bool) -> None:
        if following != self._following:
            self._following, self._cursor = following, 0

    def rewind(self) -> None:
        """Look at all of it again."""
        self._cursor = 0

    def next(self, wanted: Callable[[int], bool], steps: int) -> int | None:
        """The index of the next shard that is ``wanted``, within so many looks; None if no such shard was among them."""
        listed_from = len(self._before) if self._following else 0
        if self._following:
            self._cursor = max(self._cursor, min(len(self._now), listed_from))
        while steps and self._cursor < listed_from + self._count:
            place = self._cursor
            index = self._before[place] if place < listed_from else place - listed_from
            self._cursor += 1
            steps -= 1
            if wanted(index):
                return index
        return None
