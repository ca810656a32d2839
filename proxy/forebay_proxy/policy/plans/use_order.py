"""When a shard is used next, from plans where somebody announced it, else guessed from what its jobs have read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from math import inf

from forebay_proxy.policy.plans.epochs import EpochTracker
from forebay_proxy.policy.plans.next_use import NextUse, Rank
from forebay_proxy.policy.plans.plan_storage import PlanStorage
from forebay_proxy.policy.plans.reader_plan import ReaderPlan
from forebay_proxy.policy.plans.shard_ids import ShardIds

__all__ = ["UseOrder"]


class UseOrder:
    """Of all shards, as plans and passes have them; and who wants to hear of a change. Not thread-safe: the event loop's only."""

    def __init__(
        self,
        shard_ids: ShardIds,
        plan_storage: PlanStorage,
        passes: EpochTracker,
        planning: Container[str],
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
        number = self._shard_ids.number(name)
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
        # Who has announced what comes next has not announced this; who has been silent for that long is not about to open it.
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
