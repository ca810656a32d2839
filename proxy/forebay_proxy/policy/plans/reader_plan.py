"""One reader's announced future: the reader's position in it, and its pace. Pure.

What all plans together may hold is bounded, because it is held in memory: a client that makes up readers must not eat the node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from forebay_proxy.core.errors import ForebayError
from forebay_proxy.policy.plans.entries import PlanCredential
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = [
    "MOST_NAME_BYTES", "MOST_READERS", "MOST_SHARDS", "START_RATE", "PlanGap", "PlansFull", "ReaderPace", "ReaderPlan", "check_held",
]  # fmt: skip

MOST_READERS = 4096  # eight ranks of 32 workers with two openers each are 512
MOST_SHARDS = 1 << 21  # entries; the largest public set has 585,270 shards. 0.4 GB, and the URLs where they say more than the name
MOST_NAME_BYTES = 512 << 20  # the most one plan may bring (wire/plan.py), which is far more than two million ordinary names
_STEP = "withdraw plans that are not needed (DELETE), or announce a shorter future"


class PlansFull(ForebayError):
    """All plans together hold as much as may be held. What the reader announced before stays."""

    status = 429
    retryable = True
    title = "Too many plans"


class PlanGap(ForebayError):
    """The entries to be appended begin beyond the end of the plan: a message was lost, or the plan has ended. The plan stays as it is."""

    status = 409
    title = "Plan has a gap"

    def __init__(self, held: int, at: int) -> None:
        super().__init__(f"the plan ends after {held} entries, and these begin at {at}", next_step="send the whole plan (PUT)")


def check_held(readers: int = 0, shards: int = 0, name_bytes: int = 0) -> None:
    """Whether all plans together may hold so much. Raises ``PlansFull``."""
    for held, most, what in (
        (readers, MOST_READERS, "readers"), (shards, MOST_SHARDS, "shards"), (name_bytes, MOST_NAME_BYTES, "bytes of names"),
    ):  # fmt: skip
        if held > most:
            raise PlansFull(f"all plans together would hold {held} {what}, and {most} are taken", next_step=_STEP)


START_RATE = 0.2  # shards a second before anything is measured: 50 MB/s of 250 MB shards
RATE_WEIGHT = 0.3  # of the newest interval in the running mean: three openings to forget a burst
# How far back a repeat is looked for: 2 ms. A reader that opens again what it passed before that is called unplanned, no more.
REMEMBERED = 1 << 16


@dataclass(slots=True, eq=False)
class ReaderPace:
    """When a reader was last heard of, and how fast it opens shards. Moments are in seconds of the plans' clock."""

    heard_at: float
    since: float  # when the need of the first shard is reckoned from, until one was opened
    opened_at: float | None = None
    rate: float = START_RATE  # shards a second


@dataclass(slots=True, eq=False)
class ReaderPlan:
    """``names[position:]`` is what the reader has not opened yet. ``PlanRegistry`` alone changes it.

    A plan that is replaced, or from which the past is cut off, is another object: an index is good for as long as the object is.
    """

    reader: ReaderName
    epoch: int | None
    set_name: str | None
    pace: ReaderPace
    serial: int  # among all plans that are written down; mentions name it
    names: list[str] = field(default_factory=list)  # of the shards, in the order of use
    texts: dict[str, str] = field(default_factory=dict)  # name -> URL as it was sent, where that says more
    credentials: list[tuple[int, PlanCredential | None]] = field(default_factory=list)  # from which entry on they are asked with
    name_bytes: int = 0  # of ``names``, and of ``texts``
    text_bytes: int = 0
    first: int = 0  # how many entries the reader announced before these, over its life; what is told twice, or lost, shows by it
    mentioned_from: int = 0  # which entries can be found by their shard; ``PlanStorage`` alone changes it
    mentioned_to: int = 0
    position: int = 0
    live: bool = False  # taken whole, and not withdrawn
    ended: bool = False  # it was live
    _zero: float = inf  # when index 0 is needed, and how long until the next one is: need_at is asked a hundred thousand times a second
    _step: float = 0.0

    def __len__(self) -> int:
        return len(self.names)

    def need_at(self, index: int) -> float:
        """When the shard at ``index`` will be opened, on the plans' clock, at the reader's measured rate; never if it was withdrawn.

        A moment, not a distance: it stands still while time passes, so that a heap keyed by it stays in order.
        """
        return self._zero + index * self._step

    def says(self, other: ReaderPlan) -> bool:
        """Whether ``other`` announces the shards ahead here; or, sent again within its epoch, all that this plan announced at first."""
        if (self.epoch, self.set_name) != (other.epoch, other.set_name):
            return False
        if self.names[self.position :] == other.names:
            return True
        # Without an epoch, or after its end, the same list again may as well be the next pass over an unshuffled set.
        return self.epoch is not None and self.position < len(self) and self.names == other.names

    def go_live(self) -> None:
        """From now on it counts."""
        self.live = True
        self._reckon()

    def end(self) -> None:
        """It was withdrawn or replaced."""
        self.live, self.ended = False, True
        self._zero = inf

    def advance(self, position: int, now: float) -> None:
        """The reader opened the shard before ``position``. What it passed over it did not read: one opening, whatever the distance."""
        pace = self.pace
        if pace.opened_at is not None and now > pace.opened_at:
            pace.rate += RATE_WEIGHT * (1.0 / (now - pace.opened_at) - pace.rate)
        pace.opened_at = now
        self.position = position
        self._reckon()

    def _reckon(self) -> None:
        pace = self.pace
        self._step = 1.0 / pace.rate
        last = pace.since if pace.opened_at is None else pace.opened_at + self._step
        self._zero = last - self.position * self._step

    def credential_at(self, index: int) -> PlanCredential | None:
        """The headers with which the shard at ``index`` was announced."""
        return next((credential for start, credential in reversed(self.credentials) if start <= index), None)

    def has_passed(self, name: str) -> bool:
        """Whether the reader has opened or passed over this shard lately."""
        try:
            self.names.index(name, max(0, self.position - REMEMBERED), self.position)
        except ValueError:
            return False
        return True
