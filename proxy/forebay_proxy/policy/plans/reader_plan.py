"""One reader's announced future: the reader's position in it, and its pace. Pure.

What all plans together may hold is bounded, because it is held in memory: a client that makes up readers must not eat the node.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.sets.templates import TemplateCredential
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = [
    "MOST_NAME_BYTES", "MOST_READERS", "MOST_SHARDS", "START_RATE", "MentionedSpan", "PlanEntries", "PlanGap", "PlansFull", "ReaderPace",
    "ReaderPlan", "check_entries", "check_names", "check_readers", "fits",
]  # fmt: skip

MOST_READERS = 4096  # eight ranks of 32 workers with two openers each are 512
MOST_SHARDS = 1 << 21  # entries; the largest public set has 585,270 shards. 0.3 GB when all come as indices, 1.5 GB as lists
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


def check_readers(count: int) -> None:
    """Whether a new reader may come to ``count`` others. Raises ``PlansFull``."""
    if count >= MOST_READERS:
        raise PlansFull(f"{count} readers have announced plans, and {MOST_READERS} may", next_step=_STEP)


def fits(count: int) -> bool:
    """Whether so many entries may be held."""
    return count <= MOST_SHARDS


def check_entries(count: int) -> None:
    """Whether so many entries may be held. Raises ``PlansFull``."""
    if not fits(count):
        raise PlansFull(f"all plans together would hold {count} shards, and {MOST_SHARDS} are taken", next_step=_STEP)


def check_names(size: int) -> None:
    """Whether names and patterns of ``size`` bytes may be held. Raises ``PlansFull``."""
    if size > MOST_NAME_BYTES:
        raise PlansFull(f"the names in all plans together would take {size} bytes, and {MOST_NAME_BYTES} are taken", next_step=_STEP)


START_RATE = 0.2  # shards a second before anything is measured: 50 MB/s of 250 MB shards
RATE_WEIGHT = 0.3  # of the newest interval in the running mean: three openings to forget a burst
# How far back a repeat is looked for: 1 ms. A reader that opens again what it passed before that is called unplanned, no more.
REMEMBERED = 1 << 16


@dataclass(slots=True, eq=False)
class PlanEntries:
    """The shards of one plan, in the order of use, and the credentials that came with them."""

    numbers: array[int] = field(default_factory=lambda: array("I"))  # of the catalog
    own: dict[int, Shard] = field(default_factory=dict)  # number -> shard, of those whose credential or URL here is not the catalog's
    dress: TemplateCredential | None = None  # the credential that goes with what came as indices
    first: int = 0  # how many entries the reader announced before these, over its life; what is told twice, or lost, shows by it


@dataclass(slots=True, eq=False)
class MentionedSpan:
    """Which entries of one plan can be found by their shard: those from ``begin`` to ``end``. ``PlanStorage`` alone changes it."""

    serial: int  # of the plan among all that are written down; mentions name it
    begin: int = 0
    end: int = 0


@dataclass(slots=True, eq=False)
class ReaderPace:
    """When a reader was last heard of, and how fast it opens shards. Moments are in seconds of the plans' clock."""

    heard_at: float
    since: float  # when the need of the first shard is reckoned from, until one was opened
    opened_at: float | None = None
    rate: float = START_RATE  # shards a second


@dataclass(slots=True, eq=False)
class ReaderPlan:
    """``numbers[position:]`` of its entries is what the reader has not opened yet. ``PlanRegistry`` alone changes it.

    A plan that is replaced, or from which the past is cut off, is another object: an index is good for as long as the object is.
    """

    reader: ReaderName
    epoch: int | None
    set_name: str | None
    pace: ReaderPace
    mentioned: MentionedSpan
    entries: PlanEntries = field(default_factory=PlanEntries)
    position: int = 0
    live: bool = False  # taken whole, and not withdrawn
    ended: bool = False  # it was live
    moved: Callable[[ReaderPlan], None] | None = None  # who keeps an order of its shards hears that all their needs are others now
    _zero: float = inf  # when index 0 is needed, and how long until the next one is: need_at is asked a hundred thousand times a second
    _step: float = 0.0

    def __len__(self) -> int:
        return len(self.entries.numbers)

    def need_at(self, index: int) -> float:
        """When the shard at ``index`` will be opened, on the plans' clock, at the reader's measured rate; never if it was withdrawn.

        A moment, not a distance: it stands still while time passes, so that a heap keyed by it stays in order.
        """
        return self._zero + index * self._step

    def says(self, other: ReaderPlan) -> bool:
        """Whether ``other`` announces the shards ahead here; or, sent again within its epoch, all that this plan announced at first."""
        if (self.epoch, self.set_name) != (other.epoch, other.set_name):
            return False
        numbers, others = self.entries.numbers, other.entries.numbers
        if numbers[self.position :] == others:
            return True
        # Without an epoch, or after its end, the same list again may as well be the next pass over an unshuffled set.
        return self.epoch is not None and self.position < len(self) and numbers == others

    def go_live(self) -> None:
        """From now on it counts."""
        self.live = True
        self._reckon()

    def end(self) -> None:
        """It was withdrawn or replaced."""
        self.live, self.ended = False, True
        self._zero = inf
        if self.moved is not None:
            self.moved(self)

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
        if self.moved is not None:
            self.moved(self)

    def has_passed(self, number: int) -> bool:
        """Whether the reader has opened or passed over this shard lately."""
        try:
            self.entries.numbers.index(number, max(0, self.position - REMEMBERED), self.position)
        except ValueError:
            return False
        return True
