"""All readers' plans: what each reader opens next, and when a shard is needed again. Pure; the clock is an argument.

A reader's plan is a list of shards and a position. Opening the shard at the position, or a later one, moves the position there; shards in
between count as *skipped*. Opening a shard before the position is a *repeat*; opening one that is not in the plan is *unplanned*. Neither
moves the position. A planned shard is needed at its distance from the position divided by the reader's measured rate (shards per second).
*Nearest need first* over all readers decides what is fetched; *farthest use first* decides what leaves.

A plan of half a million shards is taken and removed in slices: ``replacing`` and ``appending`` yield between them. The old plan counts
until the new one is complete. A withdrawn plan stops counting at once, and is removed later (``tidy``).

Without plans, guesses take their place (``EpochTracker``). ``next_use`` alone decides the order; ``Rank`` has its ranks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf

from forebay_proxy.core.events import Events, Fact
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.entries import Entries, Siblings
from forebay_proxy.policy.plans.epochs import EpochTracker
from forebay_proxy.policy.plans.live_jobs import ANONYMOUS, LiveJobs
from forebay_proxy.policy.plans.plan_storage import SLICE, PlanStorage
from forebay_proxy.policy.plans.reader_plan import START_RATE, PlanGap, PlansFull, ReaderPlan, check_held
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = [
    "SILENCE_S",
    "START_RATE",
    "NextUse",
    "NextUseChanged",
    "PlanAdvanced",
    "PlanGap",
    "PlanRegistry",
    "PlansFull",
    "Rank",
    "ReaderPlan",
    "SetShardOpened",
]


class Rank(IntEnum):
    """How soon a segment may leave. From "leaves first" to "stays":

    =====  ============================================================================  ====================
    rank   meaning                                                                       within the rank
    =====  ============================================================================  ====================
    DEAD   no plan has it, and no live job reads a set with it (``EpochTracker``)        oldest opening first
    READ   every live job that knows the group has read it in its present pass           tails before heads
    LATER  unread, not announced, while every reader of its jobs has a plan              latest opening first
    AHEAD  announced                                                                     farthest need first
    SOON   unread in some pass, and nobody has announced anything                        latest opening first
    NOW    a reader is inside it                                                         latest opening first
    =====  ============================================================================  ====================

    "Tails before heads" compares segments of all shards, so what is missing is spread evenly over the set. Otherwise a shuffle that begins
    with shards that are not cached would keep its readers waiting for a slow origin (simulated: 4 % of an epoch at 96 shards of up to 16
    segments and half the bandwidth needed, against 1 %). Of equal tails the latest opening leaves first.

    "Latest opening first" keeps a fixed part of a set that does not fit. LRU would keep nothing of a cyclic scan. Leased segments
    are never offered.
    """

    DEAD = 0
    READ = 1
    LATER = 2
    AHEAD = 3
    SOON = 4
    NOW = 5


@dataclass(slots=True, order=True, unsafe_hash=True)  # not frozen: each decision makes one, and frozen costs 1 us more
class NextUse:
    """When a shard is used next, ordered from "leaves first" to "stays". Treat it as immutable."""

    rank: Rank
    order: float
    then: float = 0.0  # breaks ties of ``order``


Announced = Sequence[Shard] | Entries

SILENCE_S = 60.0  # promised in docs/protocol.md: a plan ends after this much silence of its reader
CUT_FROM = 4096  # opened shards are cut off from this many on, if they are half of the plan
AT_ONCE = 8  # slices that are removed at once: nearly always all of them
EACH_SECOND = 32  # slices that each ``expire`` removes of what was left: some 10 ms


@dataclass(frozen=True, slots=True)
class PlanAdvanced(Fact):
    """A reader moved, or its plan was replaced, extended or withdrawn."""

    plan: ReaderPlan


@dataclass(frozen=True, slots=True)
class NextUseChanged(Fact):
    """The next use of these shards has changed since somebody asked for it."""

    names: Iterable[str]


@dataclass(frozen=True, slots=True)
class SetShardOpened(Fact):
    """A reader opened a shard of the set ``key``."""

    key: str


class PlanRegistry:
    """All readers' plans and passes. Not thread-safe: used on the event loop alone."""

    def __init__(self, clock: Callable[[], float], events: Events | None = None) -> None:
        """Without ``events``, changes are not reported."""
        self.clock = clock
        self._events = events or Events()
        self.storage = PlanStorage(self._tell)
        self._plans: dict[ReaderName, ReaderPlan] = {}
        self.jobs = LiveJobs(clock)
        self.epochs = EpochTracker(self.jobs)
        self._planning: Counter[str] = Counter()  # job -> how many of its readers have a plan
        self._siblings = Siblings()
        self._watched = set[str]()  # names whose next use somebody asked for: ``NextUseChanged`` reports them

    def __repr__(self) -> str:
        ahead = sum(len(plan) - plan.position for plan in self._plans.values())
        return f"<PlanRegistry {len(self._plans)} readers, {ahead} shards ahead, {len(self.epochs.groups)} groups>"

    def __len__(self) -> int:
        return len(self._plans)

    # Announcements

    def replace(
        self, reader: ReaderName, shards: Announced, epoch: int | None = None, set_name: str | None = None, at: int | None = None
    ) -> None:
        """Take ``shards`` as what ``reader`` opens next, in order, instead of its earlier plan. Raises ``PlansFull``."""
        deque(self.replacing(reader, shards, epoch, set_name, at), 0)

    def append(
        self, reader: ReaderName, shards: Announced, epoch: int | None = None, set_name: str | None = None, at: int | None = None
    ) -> None:
        """Append ``shards`` to the plan of ``reader``; without a plan, the same as ``replace``. Raises ``PlansFull``."""
        deque(self.appending(reader, shards, epoch, set_name, at), 0)

    def replacing(
        self, reader: ReaderName, shards: Announced, epoch: int | None = None, set_name: str | None = None, at: int | None = None
    ) -> Iterator[None]:
        """``replace`` in slices: yields between them. If it is closed before its end, nothing was taken. Raises ``InvalidShardUrl`` too.

        ``at`` is how many entries the reader announced before these.
        """
        entries = shards if isinstance(shards, Entries) else Entries.of(shards)
        before = self._plans.get(reader)
        if before is None:
            check_held(readers=len(self._plans) + 1)
        with self.storage.entering(reader, epoch, set_name, self.clock()) as plan:
            yield from self.storage.write(plan, entries, instead_of=before)
            before = self._plans.get(reader)
            if before is not None and before.says(plan):
                before.pace.heard_at = self.clock()
                before.first = before.first if at is None else at + len(plan) - len(before)
                self.storage.exchange_credentials(before, plan)
                return
            plan.first = at or 0
            yield from self.storage.mention(plan)
            yield from self._go_live(plan)

    def appending(
        self, reader: ReaderName, shards: Announced, epoch: int | None = None, set_name: str | None = None, at: int | None = None
    ) -> Iterator[None]:
        """``append`` in slices. If it is closed before its end, the plan holds the first of ``shards``, or none.

        ``at`` is how many entries the reader announced before these: with it, entries that the plan has already are skipped, because a
        message may come twice. Raises ``PlanGap`` if entries are missing in between.
        """
        entries = shards if isinstance(shards, Entries) else Entries.of(shards)
        plan = self._plans.get(reader)
        end = plan.first + len(plan) if plan is not None else 0
        if at is not None and at > end:
            raise PlanGap(end, at)
        if plan is None:
            yield from self.replacing(reader, entries, epoch, set_name, at)
            return
        plan.pace.heard_at = self.clock()
        if at is not None:
            entries = entries.after(end - at)
        if plan.position >= max(CUT_FROM, len(plan) // 2):
            yield from self._cut(plan)
        with self.storage.entering(reader, plan.epoch, plan.set_name, self.clock()) as more:
            yield from self.storage.write(more, entries)
            plan = self._plans.get(reader)
            if plan is None:  # withdrawn meanwhile
                more.first = end
                yield from self.storage.mention(more)
                yield from self._go_live(more)
                return
            yield from self.storage.extend(plan, more)
        if plan.live:
            self._events.emit(PlanAdvanced(plan))

    def _cut(self, plan: ReaderPlan) -> Iterator[None]:
        """Drop what the reader has opened already, so that a plan that is appended to for days does not grow.

        If the reader announces between two slices, this is left for the next time: the copy would have the older credentials.
        """
        credentials = plan.credentials
        with self.storage.entering(plan.reader, plan.epoch, plan.set_name, plan.pace.heard_at) as rest:
            self.storage.copy_ahead(rest, plan)
            yield from self.storage.mention(rest)
            if self._plans.get(plan.reader) is plan and plan.credentials is credentials:
                start = len(plan) - len(rest)
                rest.first = plan.first + start
                rest.position = plan.position - start  # perhaps further on than when the copying began
                yield from self._go_live(rest)

    def _go_live(self, plan: ReaderPlan) -> Iterator[None]:
        """Make ``plan`` the plan of its reader."""
        before = self._plans.get(plan.reader)
        if before is None:
            check_held(readers=len(self._plans) + 1)  # others may have come between two slices
            self._planning[plan.reader.job] += 1
        else:
            plan.pace.rate, plan.pace.opened_at = before.pace.rate, before.pace.opened_at
            before.end()
            self.epochs.ended(plan.reader.job, before.epoch)
        self.epochs.began(plan.set_name, plan.reader.job, plan.epoch, self.clock())
        self._plans[plan.reader] = plan
        plan.go_live()
        self._events.emit(PlanAdvanced(plan))
        if before is not None:
            self.storage.discard(before, AT_ONCE)
        for start in range(plan.position, len(plan), SLICE):
            self._tell(plan.names[start : start + SLICE])
            yield

    def withdraw(self, reader: ReaderName) -> bool:
        """Forget what ``reader`` announced and has not read. Returns False if there was nothing."""
        plan = self._plans.pop(reader, None)
        if plan is None:
            return False
        self._planning[reader.job] -= 1
        if not self._planning[reader.job]:
            del self._planning[reader.job]
        plan.end()
        self.epochs.ended(reader.job, plan.epoch)
        self._events.emit(PlanAdvanced(plan))
        self.storage.discard(plan, AT_ONCE)
        return True

    def _tell(self, names: Iterable[str]) -> None:
        """Report that the time of need of these shards has changed."""
        watched = self._watched.intersection(names)
        if watched:
            self._events.emit(NextUseChanged(watched))

    # Openings

    def opened(self, shard: Shard, reader: ReaderName | None) -> str:
        """A reader opened ``shard``. Returns how that fits its plan: "planned", "skipped", "repeated", "unplanned" or "no-plan"."""
        now = self.clock()
        plan = self._plans.get(reader) if reader else None
        told = (plan.set_name, plan.epoch) if plan is not None else (None, None)
        job = reader.job if reader else ANONYMOUS
        for key in self.epochs.opened(shard, job, now, *told):
            self._events.emit(SetShardOpened(key))
        if plan is None:
            return "no-plan"
        plan.pace.heard_at = now
        index = self.storage.next_mention(plan, shard.name)
        if index is None:
            return "repeated" if plan.has_passed(shard.name) else "unplanned"
        skipped = index > plan.position
        plan.advance(index + 1, now)
        self.storage.sweep(plan, AT_ONCE)
        self._events.emit(PlanAdvanced(plan))
        return "skipped" if skipped else "planned"

    def heard(self, reader: ReaderName) -> None:
        """The reader is alive: it reads on, or sent something."""
        plan = self._plans.get(reader)
        if plan is not None:
            plan.pace.heard_at = self.clock()

    def expire(self, alive: Callable[[ReaderName], bool]) -> None:
        """End the plans of readers that were silent for ``SILENCE_S`` and are not ``alive`` (inside a shard)."""
        now = self.clock()
        for reader in [reader for reader, plan in self._plans.items() if now - plan.pace.heard_at > SILENCE_S and not alive(reader)]:
            self.withdraw(reader)
        self.epochs.groups.expire(now)
        self.storage.tidy(EACH_SECOND)

    # Questions

    def mentions(self, name: str) -> Iterator[tuple[ReaderPlan, int]]:
        """(plan, index) of each mention of the shard that is still ahead of its reader."""
        return self.storage.ahead(name)

    def next_use(self, name: str, group_name: str) -> NextUse:
        """When the shard is used next, from plans and guesses. ``NextUseChanged`` reports a change, until ``forget``."""
        self._watched.add(name)
        need = self.storage.first_need(name)
        if need < inf:
            return NextUse(Rank.AHEAD, -need)
        now = self.clock()
        opened_at = self.epochs.last_opened(name) or 0.0
        unread = self.epochs.unread_by(name, group_name, now)
        if unread is None:
            return NextUse(Rank.DEAD, opened_at)
        if not unread:
            return NextUse(Rank.READ, -opened_at)
        # A job with plans has not announced this shard. A job that has been silent for that long is not about to open it.
        later = all(job in self._planning or heard_at < now - SILENCE_S for job, heard_at in unread.items())
        return NextUse(Rank.LATER if later else Rank.SOON, -opened_at)

    def inside(self, name: str) -> NextUse:
        """The next use of a shard that a reader is inside."""
        return NextUse(Rank.NOW, -(self.epochs.last_opened(name) or 0.0))

    def shard_at(self, plan: ReaderPlan, index: int) -> Shard:
        """The shard that ``plan`` announces at ``index``, with the credential that came with it."""
        name = plan.names[index]
        shard, credential = self._siblings.shard(plan.texts.get(name, name)), plan.credential_at(index)
        return shard if credential is None else credential.put_on(shard)

    def get(self, reader: ReaderName) -> ReaderPlan | None:
        """The live plan of ``reader``; None without one."""
        return self._plans.get(reader)

    def all(self) -> list[ReaderPlan]:
        """All live plans."""
        return list(self._plans.values())

    def forget(self, name: str) -> None:
        """The shard left the cache for good: forget its last opening."""
        self.epochs.forget(name)
        self._watched.discard(name)
