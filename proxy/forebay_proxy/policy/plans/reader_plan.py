"""One reader's plan: the shards it will open, its position among them, and its pace. Pure.

All plans together are bounded, because they are held in memory: a client that invents readers must not use up the node's memory.
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
MOST_SHARDS = 1 << 21  # entries; the largest public set has 585,270 shards. 0.4 GB, plus URLs that differ from the name
MOST_NAME_BYTES = 512 << 20  # the most that one plan may bring (wire/protocol/plan.py), far more than two million ordinary names
_STEP = "withdraw plans that are not needed (DELETE), or announce a shorter future"


class PlansFull(ForebayError):
    """All plans together hold as much as is allowed. The reader's earlier plan stays."""

    status = 429
    retryable = True
    title = "Too many plans"


class PlanGap(ForebayError):
    """The entries to append begin beyond the end of the plan: a message was lost, or the plan has ended. The plan stays as it is."""

    status = 409
    title = "Plan has a gap"

    def __init__(self, held: int, at: int) -> None:
        super().__init__(f"the plan ends after {held} entries, and these begin at {at}", next_step="send the whole plan (PUT)")


def check_held(readers: int = 0, shards: int = 0, name_bytes: int = 0) -> None:
    """Check that all plans together may hold so much. Raises ``PlansFull``."""
    for held, most, what in (
        (readers, MOST_READERS, "readers"), (shards, MOST_SHARDS, "shards"), (name_bytes, MOST_NAME_BYTES, "bytes of names"),
    ):  # fmt: skip
        if held > most:
            raise PlansFull(f"all plans together would hold {held} {what}, and {most} are taken", next_step=_STEP)


START_RATE = 0.2  # shards per second before anything is measured: 50 MB/s of 250 MB shards
RATE_WEIGHT = 0.3  # of the newest interval in the running mean: a burst is forgotten after three openings
# How far back a repeat is searched for: 2 ms. Opening a shard again from further back counts as unplanned, no more.
REMEMBERED = 1 << 16


@dataclass(slots=True, eq=False)
class ReaderPace:
    """When a reader was last heard of, and how fast it opens shards. Moments are in seconds on the plans' clock."""

    heard_at: float
    since: float  # until the first opening: the moment from which needs are computed
    opened_at: float | None = None
    rate: float = START_RATE  # shards per second


@dataclass(slots=True, eq=False)
class ReaderPlan:
    """A reader's plan; it has not opened ``names[position:]`` yet. Only ``PlanRegistry`` changes it.

    When a plan is replaced, or its past is cut off, a new object takes its place: an index is valid as long as its object is.
    """

    reader: ReaderName
    epoch: int | None
    set_name: str | None
    pace: ReaderPace
    serial: int  # number among all stored plans; mentions refer to it
    names: list[str] = field(default_factory=list)  # of the shards, in the order of use
    texts: dict[str, str] = field(default_factory=dict)  # name -> URL as it was sent, if it differs
    credentials: list[tuple[int, PlanCredential | None]] = field(default_factory=list)  # (from entry, credential)
    name_bytes: int = 0  # characters of ``names``; text_bytes: of ``texts``
    text_bytes: int = 0
    first: int = 0  # entries that the reader announced before these in its life: reveals messages that came twice or were lost
    mentioned_from: int = 0  # the entries that can be found by shard; only ``PlanStorage`` changes these two
    mentioned_to: int = 0
    position: int = 0
    live: bool = False  # complete, and not withdrawn
    ended: bool = False  # it was live
    _zero: float = inf  # when index 0 is needed; _step: seconds per entry. Kept, because need_at is called very often
    _step: float = 0.0

    def __len__(self) -> int:
        return len(self.names)

    def need_at(self, index: int) -> float:
        """When the reader will open the shard at ``index``, on the plans' clock, at its measured rate; infinity if the plan is withdrawn.

        This is a moment, not a distance: it stays the same while time passes, so a heap with this key stays in order.
        """
        return self._zero + index * self._step

    def says(self, other: ReaderPlan) -> bool:
        """Whether ``other`` announces the shards ahead in this plan, or repeats the plan as first announced, within its epoch."""
        if (self.epoch, self.set_name) != (other.epoch, other.set_name):
            return False
        if self.names[self.position :] == other.names:
            return True
        # Without an epoch, or at the plan's end, the same list may also be the next pass over an unshuffled set.
        return self.epoch is not None and self.position < len(self) and self.names == other.names

    def go_live(self) -> None:
        """Make the plan count from now on."""
        self.live = True
        self._reckon()

    def end(self) -> None:
        """The plan was withdrawn or replaced."""
        self.live, self.ended = False, True
        self._zero = inf

    def advance(self, position: int, now: float) -> None:
        """The reader opened the shard before ``position``. Shards that it passed over are not read: this is one opening at any distance."""
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
        """Whether the reader has recently opened or passed over this shard."""
        try:
            self.names.index(name, max(0, self.position - REMEMBERED), self.position)
        except ValueError:
            return False
        return True
