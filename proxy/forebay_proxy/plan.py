"""What each reader opens next, when a shard is needed again, and what to fetch first. Pure; the clock is an argument.

Turn-taking rule. A reader's plan is a list of shards and a position in it, moved by the reader's own openings: opening the shard at the
position or any later one moves it there (what was passed over counts as skipped); a shard not in what is left is a deviation and moves
nothing. Time of need of a planned shard = its distance from the position divided by the reader's measured rate (shards a second).
*Nearest need first* over all readers decides what is fetched; *farthest use first* decides who leaves.

Without plans the same ordering runs on guesses (``Passes``). ``next_use`` is the one function that orders: see ``Use`` for the ranks.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from forebay_proxy.errors import ForebayError
from forebay_proxy.passes import ANONYMOUS, Passes
from forebay_proxy.shard import Shard
from forebay_proxy.use import Rank, Use
from forebay_proxy.wire.plan import ReaderName

__all__ = ["MOST_READERS", "MOST_SHARDS", "SILENCE_S", "Plans", "PlansFull", "ReaderPlan"]

SILENCE_S = 60.0  # the contract: a plan ends after this much silence of its reader
START_RATE = 0.2  # shards a second before anything is measured: 50 MB/s of 250 MB shards
# What all plans together may hold, because it is held in memory: a client that makes up readers must not eat the node.
MOST_READERS = 4096  # eight ranks of 32 workers with two openers each are 512
MOST_SHARDS = 1 << 21  # the largest public set has 585,270 shards; a gigabyte and a half when all of it is used
MOST_NAME_BYTES = 512 << 20  # the most one plan may bring (wire/plan.py), which is far more than two million ordinary names
RATE_WEIGHT = 0.3  # of the newest interval in the running mean: three openings to forget a burst


class PlansFull(ForebayError):
    """All plans together hold as much as may be held. What the reader announced before stays."""

    status = 429
    retryable = True
    title = "Too many plans"


@dataclass(slots=True)
class ReaderPlan:
    """One reader's announced future: ``shards[position:]`` is what it has not opened yet."""

    reader: ReaderName
    epoch: int | None
    set_name: str | None
    shards: list[Shard]
    heard_at: float
    position: int = 0
    opened_at: float | None = None
    rate: float = START_RATE
    name_bytes: int = 0
    repeats: dict[str, deque[int]] = field(default_factory=dict)  # later mentions of a shard than the announced one (a resampled plan)

    def need_at(self, index: int) -> float:
        """When the shard at ``index`` will be opened, on the plans' clock, at the reader's measured rate.

        A moment, not a distance: it stands still while time passes, so that a heap keyed by it stays in order.
        """
        last = self.heard_at if self.opened_at is None else self.opened_at
        return last + (index - self.position + (self.opened_at is not None)) / self.rate


class Plans:
    """All readers' plans and passes. Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plans: dict[ReaderName, ReaderPlan] = {}
        self._announced: dict[str, dict[ReaderName, int]] = {}  # shard name -> index in each plan that still has it ahead
        self._passes = Passes()
        self._shards_held = self._bytes_held = 0  # of all plans, what is read already but not forgotten included
        self._planning: Counter[str] = Counter()  # job -> how many of its readers have a plan
        self.changed: Callable[[Iterable[str]], None] = lambda names: None  # shards that are now used at another time than before

    def __repr__(self) -> str:
        ahead = sum(len(plan.shards) - plan.position for plan in self._plans.values())
        return f"<Plans {len(self._plans)} readers, {ahead} shards ahead, {len(self._passes)} groups>"

    def __len__(self) -> int:
        return len(self._plans)

    # What readers say

    def replace(self, reader: ReaderName, shards: list[Shard], epoch: int | None = None, set_name: str | None = None) -> None:
        """Take ``shards`` as what ``reader`` opens next, in order, instead of anything it said before. Raises ``PlansFull``."""
        before = self._plans.get(reader)
        self._check_room(shards, before, is_new=before is None)
        self.withdraw(reader)
        plan = ReaderPlan(reader, epoch, set_name, [], self._clock())
        if before is not None:
            plan.rate, plan.opened_at = before.rate, before.opened_at
        self._plans[reader] = plan
        self._planning[reader.job] += 1
        self._extend(plan, shards)

    def append(self, reader: ReaderName, shards: list[Shard], epoch: int | None = None, set_name: str | None = None) -> None:
        """Add ``shards`` behind what ``reader`` announced; the same as ``replace`` if it announced nothing. Raises ``PlansFull``."""
        plan = self._plans.get(reader)
        if plan is None:
            self.replace(reader, shards, epoch, set_name)
            return
        plan.heard_at = self._clock()
        self._forget_past(plan)
        self._check_room(shards, None, is_new=False)
        self._extend(plan, shards)

    def _check_room(self, shards: list[Shard], replaced: ReaderPlan | None, *, is_new: bool) -> None:
        """Whether ``shards`` fit beside what is held, once ``replaced`` is gone."""
        step = "withdraw plans that are not needed (DELETE), or announce a shorter future"
        if is_new and len(self._plans) >= MOST_READERS:
            raise PlansFull(f"{len(self._plans)} readers have announced plans, and {MOST_READERS} may", next_step=step)
        count = self._shards_held + len(shards) - (len(replaced.shards) if replaced else 0)
        if count > MOST_SHARDS:
            raise PlansFull(f"all plans together would hold {count} shards, and {MOST_SHARDS} are taken", next_step=step)
        size = self._bytes_held + _name_bytes(shards) - (replaced.name_bytes if replaced else 0)
        if size > MOST_NAME_BYTES:
            raise PlansFull(f"the names in all plans together would take {size} bytes, and {MOST_NAME_BYTES} are taken", next_step=step)

    def withdraw(self, reader: ReaderName) -> bool:
        """Forget what ``reader`` announced and has not read; False if there was nothing."""
        plan = self._plans.pop(reader, None)
        if plan is None:
            return False
        self._shards_held -= len(plan.shards)
        self._bytes_held -= plan.name_bytes
        self._planning[reader.job] -= 1
        if not self._planning[reader.job]:
            del self._planning[reader.job]
        ahead = {shard.name for shard in plan.shards[plan.position :]}
        for name in ahead:
            self._unannounce(name, reader)
        self.changed(ahead)
        return True

    def _extend(self, plan: ReaderPlan, shards: list[Shard]) -> None:
        start = len(plan.shards)
        plan.shards.extend(shards)
        size = _name_bytes(shards)
        plan.name_bytes += size
        self._bytes_held += size
        self._shards_held += len(shards)
        for index, shard in enumerate(shards, start):
            # The first mention counts: a resampled plan may hold a shard several times.
            if self._announced.setdefault(shard.name, {}).setdefault(plan.reader, index) != index:
                plan.repeats.setdefault(shard.name, deque()).append(index)
        self.changed({shard.name for shard in shards})

    def _forget_past(self, plan: ReaderPlan) -> None:
        """Drop what the reader has opened already, so that a plan appended to for days does not grow."""
        if plan.position < 4096:
            return
        for name in {shard.name for shard in plan.shards[plan.position :]}:
            readers = self._announced.get(name, {})
            if plan.reader in readers:
                readers[plan.reader] -= plan.position
        for name, later in plan.repeats.items():
            plan.repeats[name] = deque(index - plan.position for index in later)
        size = _name_bytes(plan.shards[: plan.position])
        plan.name_bytes -= size
        self._bytes_held -= size
        self._shards_held -= plan.position
        del plan.shards[: plan.position]
        plan.position = 0

    def _unannounce(self, name: str, reader: ReaderName) -> None:
        readers = self._announced.get(name)
        if readers is None:
            return
        readers.pop(reader, None)
        if not readers:
            del self._announced[name]

    # What readers do

    def opened(self, shard: Shard, reader: ReaderName | None) -> str:
        """A reader opened ``shard``. Returns how that fits its plan: "planned", "skipped", "unplanned" or "no-plan"."""
        now = self._clock()
        self._passes.opened(shard, reader.job if reader else ANONYMOUS, now)
        plan = self._plans.get(reader) if reader else None
        if plan is None:
            return "no-plan"
        plan.heard_at = now
        index = self._announced.get(shard.name, {}).get(plan.reader)
        if index is None or index < plan.position:
            return "unplanned"
        skipped = index > plan.position
        self._advance(plan, index, now)
        return "skipped" if skipped else "planned"

    def _advance(self, plan: ReaderPlan, index: int, now: float) -> None:
        """Move past ``index``; later mentions of the shards passed become their first ones."""
        passed = plan.shards[plan.position : index + 1]
        if plan.opened_at is not None and now > plan.opened_at:
            newest = len(passed) / (now - plan.opened_at)
            plan.rate += RATE_WEIGHT * (newest - plan.rate)
        plan.opened_at = now
        plan.position = index + 1
        names = {shard.name for shard in passed}
        for name in names:
            self._unannounce(name, plan.reader)
            later = plan.repeats.get(name, deque())
            while later and later[0] < plan.position:
                later.popleft()
            if later:
                self._announced.setdefault(name, {})[plan.reader] = later.popleft()
            if not later:
                plan.repeats.pop(name, None)
        self.changed(names)

    def declare(self, shard: Shard) -> None:
        """Somebody asked for ``shard`` ahead of any job: until a job reads its group, it counts as unread."""
        self._passes.declare(shard, self._clock())

    def heard(self, reader: ReaderName) -> None:
        """The reader is alive (it reads on, or sent something)."""
        plan = self._plans.get(reader)
        if plan is not None:
            plan.heard_at = self._clock()

    def expire(self, alive: Callable[[ReaderName], bool]) -> list[ReaderName]:
        """End the plans of readers silent for ``SILENCE_S`` who are not ``alive`` (inside a shard); returns whose they were."""
        now = self._clock()
        gone = [reader for reader, plan in self._plans.items() if now - plan.heard_at > SILENCE_S and not alive(reader)]
        for reader in gone:
            self.withdraw(reader)
        self._passes.expire(now)
        return gone

    # What follows from it

    def need_at(self, name: str) -> float | None:
        """When some reader opens the shard by its plan, on the plans' clock; None if nobody announced it."""
        readers = self._announced.get(name)
        if not readers:
            return None
        return min(self._plans[reader].need_at(index) for reader, index in readers.items())

    def next_use(self, name: str, group_name: str) -> Use:
        """When the shard is used next, as far as plans and guesses tell."""
        need_at = self.need_at(name)
        if need_at is not None:
            return Use(Rank.AHEAD, -need_at)
        opened_at = self._passes.last_opened(name) or 0.0
        unread = self._passes.unread_by(name, group_name, self._clock())
        if unread is None:
            return Use(Rank.DEAD, opened_at)
        if not unread:
            return Use(Rank.READ, -opened_at)
        return Use(Rank.LATER if all(job in self._planning for job in unread) else Rank.SOON, -opened_at)

    def inside(self, name: str) -> Use:
        """The use of a shard that a reader is inside."""
        return Use(Rank.NOW, -(self._passes.last_opened(name) or 0.0))

    def nearest(self) -> Iterator[tuple[float, ReaderPlan, Shard]]:
        """(when needed, the plan it is from, shard) over all readers, nearest need first."""
        heap = [
            (plan.need_at(plan.position), order, plan.position, plan)
            for order, plan in enumerate(self._plans.values())
            if plan.position < len(plan.shards)
        ]
        heapq.heapify(heap)
        while heap:
            need, order, index, plan = heap[0]
            yield need, plan, plan.shards[index]
            if index + 1 < len(plan.shards):
                heapq.heapreplace(heap, (plan.need_at(index + 1), order, index + 1, plan))
            else:
                heapq.heappop(heap)

    def all(self) -> list[ReaderPlan]:
        return list(self._plans.values())

    def last_opened(self, name: str) -> float | None:
        return self._passes.last_opened(name)

    def forget(self, name: str) -> None:
        """The shard left the cache for good: its last opening is of no more use."""
        self._passes.forget(name)


def _name_bytes(shards: list[Shard]) -> int:
    return sum(len(shard.name) for shard in shards)
