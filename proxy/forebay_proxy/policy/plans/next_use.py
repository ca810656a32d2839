"""When a shard is used next, as an order from "leaves first" to "stays longest". Pure.

It is known from plans where somebody announced it, else guessed from what its jobs have read.

From "leaves first" to "stays":

=====  ============================================================================  ====================
rank   meaning                                                                       within the rank
=====  ============================================================================  ====================
DEAD   nobody waits for it: no plan, no set that a live job reads (``EpochTracker``)  oldest opening first
READ   every live job that knows the group has read it in its present pass           tails before heads
LATER  unread, not announced, while every reader of its jobs has a plan              latest opening first
AHEAD  announced                                                                     farthest need first
SOON   unread in some pass, and nobody has announced anything                        latest opening first
NOW    a reader is inside it                                                         latest opening first
=====  ============================================================================  ====================

"Tails before heads" goes across shards: what is missing is then spread evenly over the set. Else a shuffle that begins with shards of
which nothing is here keeps its readers waiting for a slow origin, and what it saves them at its end comes too late (simulated: 4 % of an
epoch at 96 shards of up to 16 segments and half the bandwidth needed, 1 % so). Of equal tails the latest opening is first.
"Latest opening first" is what keeps a fixed part of a set that does not fit, instead of chasing it round (LRU keeps nothing of a cyclic
scan). Leased segments are no matter of this module: they are never offered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from forebay_proxy.policy.plans.epochs import EpochTracker
from forebay_proxy.policy.plans.plan_storage import PlanStorage
from forebay_proxy.policy.plans.reader_plan import ReaderPlan
from forebay_proxy.policy.plans.shard_ids import ShardIds

__all__ = ["NextUse", "Rank", "UseOrder"]


class Rank(IntEnum):
    """Why a segment may leave; lower leaves first. The table in the module's text says what each means."""

    DEAD = 0
    READ = 1
    LATER = 2
    AHEAD = 3
    SOON = 4
    NOW = 5


@dataclass(slots=True, order=True, unsafe_hash=True)  # not frozen: one is made with every decision, and that would take 1 us more
class NextUse:
    """When a shard is used next, ordered from "leaves first" to "stays". AHEAD also says by whose plan, and where in it. Never changed."""

    rank: Rank
    order: float
    plan: ReaderPlan | None = field(default=None, compare=False, repr=False)
    index: int = field(default=0, compare=False, repr=False)
    then: float = 0.0  # who is first among those of the same order


class UseOrder:
    """Of all shards, as plans and passes have them; and who wants to hear of a change. Not thread-safe: the event loop's only."""

    def __init__(
        self,
        shard_ids: ShardIds,
        plan_storage: PlanStorage,
        passes: EpochTracker,
        planning: Collection[str],
        changed: Callable[[Iterable[str]], None],
    ) -> None:
        """``planning`` are the jobs that have announced something; ``changed`` hears of names that somebody has asked for."""
        self._shard_ids = shard_ids
        self._plan_storage = plan_storage
        self._passes = passes
        self._planning = planning
        self._changed = changed
        self._watched: dict[int, str] = {}  # hash of a name -> a name whose use somebody has asked for, and wants to be told of

    def __repr__(self) -> str:
        return f"<UseOrder of {len(self._watched)} shards asked for>"

    def first(self, name: str) -> tuple[float, ReaderPlan | None, int]:
        """(when the shard is opened by some plan, which, at which index); never and none if nobody announced it."""
        number = self._shard_ids.number(name) if self._planning else None
        return (inf, None, 0) if number is None else self._plan_storage.first(number)

    def next(self, name: str, group_name: str, now: float, silence_s: float) -> NextUse:
        """When the shard is used next. Whoever asks is told of a change, until ``forget``."""
        self._watched[hash(name)] = name
        need, plan, index = self.first(name)
        if plan is not None:
            return NextUse(Rank.AHEAD, -need, plan, index)
        opened_at = self._passes.last_opened(name) or 0.0
        unread = self._passes.unread_by(name, group_name, now)
        if unread is None:
            return NextUse(Rank.DEAD, opened_at)
        if not unread:
            return NextUse(Rank.READ, -opened_at)
        # A job with plans has not announced this shard; a job that has been silent for that long is not about to open it.
        later = all(job in self._planning or heard_at < now - silence_s for job, heard_at in unread.items())
        return NextUse(Rank.LATER if later else Rank.SOON, -opened_at)

    def tell(self, numbers: Iterable[int]) -> None:
        """These shards are used at another time than before."""
        watched, hash_of = self._watched, self._shard_ids.hash_of
        names = {watched[hashed] for hashed in map(hash_of, numbers) if hashed in watched} if watched else None
        if names:
            self._changed(names)

    def tell_of(self, hashed: int, name: str) -> None:
        """The same of one, with ``hash`` of its name."""
        if hashed in self._watched:
            self._changed((name,))

    def forget(self, name: str) -> None:
        """Nobody asks for this one any more."""
        self._watched.pop(hash(name), None)
