"""Replays a workload on the sidecar's own policy, and on LRU beside it. Pure and deterministic; no time passes, no byte is moved.

A reader reads each shard that it opens to the end, one segment after the other, and stays in the last segment until it opens the next
shard. Before each segment the scheduler says what to fetch ahead, until it has said all. Whatever is asked for is stored at once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT, Segments, allocated
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.admission import AdmissionPolicy
from forebay_proxy.policy.eviction.ledger import Grant, Ledger
from forebay_proxy.policy.eviction.read_ahead import ReaderCaughtUp
from forebay_proxy.policy.plans.registry import NextUseChanged, PlanAdvanced, PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.scheduler import PrefetchRequest, PrefetchScheduler
from forebay_proxy.simulate.workload import Opening, Workload
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["Replay", "ReplayOutcome", "ReplayedEpoch", "ReplayedShard", "Slice", "lru", "replay"]

REFRESHED = 16  # shards put in their place again with each opening; the sidecar does so with a thousand each second
MOST_DECISIONS = 100_000  # before a segment: a fault of the scheduler must not hang a replay


@dataclass(slots=True)
class ReplayedEpoch:
    """What was read in an epoch, and what the origin sent meanwhile."""

    read_bytes: int = 0
    origin_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        return max(0.0, 1 - self.origin_bytes / self.read_bytes) if self.read_bytes else 0.0


@dataclass(slots=True)
class ReplayOutcome:
    """One policy's figures; ``epochs`` by their numbers."""

    policy: str
    capacity_bytes: int
    dataset_bytes: int
    readers: int
    peak_bytes: int = 0
    evicted_unread_bytes: int = 0
    bypassed_segments: int = 0
    epochs: dict[int, ReplayedEpoch] = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        return sum(epoch.read_bytes for epoch in self.epochs.values())

    @property
    def origin_bytes(self) -> int:
        return sum(epoch.origin_bytes for epoch in self.epochs.values())

    @property
    def hit_bytes(self) -> int:
        """Bytes read that no origin had to send, as ``bytes.saved`` of ``/v1/status``."""
        return max(0, self.read_bytes - self.origin_bytes)

    @property
    def hit_ratio(self) -> float:
        return self.hit_bytes / self.read_bytes if self.read_bytes else 0.0

    def as_json(self) -> dict[str, Any]:
        """All figures, epoch by epoch; bytes and ratios."""
        sums = {name: getattr(self, name) for name in ("read_bytes", "origin_bytes", "hit_bytes", "hit_ratio")}
        return {**asdict(self), **sums, "epochs": [asdict(epoch) for _, epoch in sorted(self.epochs.items())]}

    def epoch(self, opening: Opening) -> ReplayedEpoch:
        return self.epochs.setdefault(opening.epoch.number, ReplayedEpoch())


class ReplayedUse:
    """What ``AdmissionPolicy`` must know of the readers inside a shard."""

    stale = False
    stuck_until = 0.0
    readers = 0

    @property
    def idle(self) -> bool:
        return not self.readers


class ReplayedShard:
    """A shard without bytes: what ``AdmissionPolicy`` must know of it."""

    ranged = True

    def __init__(self, shard: Shard, length: int) -> None:
        self.key = self.name = shard.name
        self.group = shard.group
        self.known = False  # the origin has told its length
        self.segments = Segments(DEFAULT_LAYOUT, length)
        self.in_use = ReplayedUse()

    def __repr__(self) -> str:
        return f"<ReplayedShard {self.name} {self.segments}>"


Slice = tuple[ReplayedShard, tuple[int, ...]]


class Replay:
    """The sidecar's decisions, one opening after the other. It is the cache that the scheduler looks at, too."""

    layout = DEFAULT_LAYOUT

    def __init__(self, workload: Workload, capacity_bytes: int, *, overhead_bytes: int = 0) -> None:
        """``overhead_bytes``: of the capacity, what the sidecar's own index and log take."""
        events = Events()
        self.workload = workload
        self.outcome = ReplayOutcome("ours", capacity_bytes, workload.dataset_bytes, len(workload.orders))
        self.now = 0.0  # seconds, as if each reader opened a shard a second
        self.plans = PlanRegistry(lambda: self.now, events)
        self.ledger: Ledger[Slice] = Ledger(capacity_bytes)
        self.ledger.overhead_bytes = overhead_bytes
        self.admission: AdmissionPolicy[ReplayedShard] = AdmissionPolicy(self.ledger, self.plans, lambda: self.now, lambda: True, events)
        self.shards = self.admission.candidates.entries
        self.scheduler = PrefetchScheduler(self.plans, self)
        self._inside: dict[ReaderName, ReplayedShard] = {}
        self._epoch = ReplayedEpoch()  # the one that an opening belongs to
        events.on(NextUseChanged, lambda fact: self.admission.candidates.next_use_changed(self.shards, fact))
        events.on(PlanAdvanced, lambda fact: self._advanced(fact.plan))
        events.on(ReaderCaughtUp, lambda fact: self._caught_up(fact.reader))

    def __repr__(self) -> str:
        return f"<Replay at {self.now:.1f} s, {self.ledger!r}>"

    def run(self) -> ReplayOutcome:
        """All of it."""
        for opening in self.workload.openings():
            self.open(opening)
        self.outcome.peak_bytes = self.ledger.peak_bytes
        return self.outcome

    def open(self, opening: Opening) -> None:
        """A reader leaves the shard it is in, announces what follows, opens a shard and reads it."""
        reader, shard = opening.reader, opening.shard
        self.now += 1 / len(self.workload.orders)
        self._epoch = self.outcome.epoch(opening)
        if reader in self._inside:
            self._leave(reader)
        else:
            self.plans.jobs.came(reader.job)
        entry = self._inside[reader] = self._entry(shard)
        entry.in_use.readers += 1
        steps, ahead = opening.epoch.shards, self.workload.ahead
        if not opening.position:
            self.plans.replace(reader, steps[: ahead or None], opening.epoch.number)
        self.plans.opened(shard, reader)
        if ahead and opening.position + ahead < len(steps):
            self.plans.append(reader, [steps[opening.position + ahead]], opening.epoch.number)
        self.admission.candidates.refresh(REFRESHED)
        self.admission.candidates.touch(entry)
        for index in range(entry.segments.count):
            self._prefetch()
            self.read(entry, index, reader)
        if opening.is_last:
            self._leave(reader)
            self.plans.withdraw(reader)
            self.plans.jobs.left(reader.job)

    def _leave(self, reader: ReaderName) -> None:
        entry = self._inside.pop(reader)
        entry.in_use.readers -= 1
        if entry.segments.count:
            self._release(entry, entry.segments.count - 1)
        self.admission.candidates.touch(entry)
        self._forget(entry)

    # Segments

    def read(self, entry: ReplayedShard, index: int, reader: ReaderName) -> None:
        """``reader`` goes on to segment ``index`` of the shard it is in, and reads it."""
        entry.segments.lease(index)
        if index:
            self._release(entry, index - 1)
        self._epoch.read_bytes += entry.segments.span(index)[1]
        if not entry.segments.has(index):
            try:
                self.store(entry, index, self.admission.reserve(entry.segments.bytes_of(index)))
            except CacheFull:
                self.outcome.bypassed_segments += 1
                self._epoch.origin_bytes += entry.segments.span(index)[1]
        entry.segments.unread.discard(index)
        entry.known = True
        self.admission.candidates.touch(entry)
        self.scheduler.room()

    def store(self, entry: ReplayedShard, index: int, grant: Grant[Slice]) -> None:
        """A segment comes into the room that it was granted; what stood there leaves."""
        for victim in grant.victims:
            left, indices = victim.subject
            for gone in indices:
                self.outcome.evicted_unread_bytes += left.segments.bytes_of(gone) if gone in left.segments.unread else 0
                left.segments.leave(gone)
                self.admission.read_ahead.end(left.key, gone)
                self.scheduler.missing(left.name)
            self.admission.candidates.touch(left)
            self._forget(left)
        self.ledger.vacated(grant)
        self.ledger.commit(grant)
        entry.segments.land(index, 1)
        entry.known = True
        self.admission.candidates.touch(entry)
        self._epoch.origin_bytes += entry.segments.span(index)[1]

    def _release(self, entry: ReplayedShard, index: int) -> None:
        entry.segments.release(index)
        if not entry.segments.is_leased(index):
            self.admission.read_ahead.end(entry.key, index)
        self.admission.candidates.touch(entry)

    def _entry(self, shard: Shard) -> ReplayedShard:
        entry = self.shards.get(shard.name)
        if entry is None:
            entry = self.shards[shard.name] = ReplayedShard(shard, self.workload.lengths[shard.name])
        return entry

    def _forget(self, entry: ReplayedShard) -> None:
        """Where nothing of it is left, its length is not known any more either."""
        if entry.in_use.idle and not entry.segments.stored_count and self.shards.get(entry.key) is entry:
            del self.shards[entry.key]
            self.admission.candidates.touch(entry)

    # What is fetched ahead

    def _prefetch(self) -> None:
        for _ in range(MOST_DECISIONS):
            request = self.scheduler.next()
            if request is not None:
                self._act(request)
            elif not self.scheduler.has_more:
                return

    def _act(self, request: PrefetchRequest) -> None:
        entry, index, reader = self._entry(request.shard), request.index or 0, request.plan.reader
        try:
            if not entry.segments.has(index):
                place = entry.key, index
                self.store(entry, index, self.admission.reserve_ahead(entry.segments.bytes_of(index), request.need_at, reader, place))
        except CacheFull:
            self._forget(entry)
            if request.index is None:
                self.scheduler.unopened(entry.name)
            else:
                self.scheduler.refused(reader)
            return
        self.scheduler.granted(request)
        if request.index is None:
            self.scheduler.opened(entry.name)

    def _advanced(self, plan: ReaderPlan) -> None:
        self.scheduler.advanced(plan)
        if self.plans.get(plan.reader) is None:
            self.admission.read_ahead.forget(plan.reader)
        else:
            self.admission.read_ahead.passed(plan.reader, lambda key: self._lies_ahead(key, plan.reader))

    def _lies_ahead(self, key: str, reader: ReaderName) -> bool:
        """Whether what was prefetched of a shard may still be read by ``reader`` on its way."""
        entry = self.shards.get(key)
        return entry is not None and (entry.in_use.readers > 0 or any(plan.reader == reader for plan, _ in self.plans.mentions(key)))

    def _caught_up(self, reader: object) -> None:
        if isinstance(reader, ReaderName):
            self.scheduler.caught_up(reader)

    # The cache as the scheduler sees it

    def capacity(self) -> int:
        """Bytes that the cache may hold."""
        return self.ledger.capacity_bytes

    def length(self, name: str) -> int | None:
        """Of a shard that was opened; None: it is not known."""
        entry = self.shards.get(name)
        return entry.segments.length if entry is not None and entry.known else None

    def has(self, name: str, index: int) -> bool:
        """Whether a segment is stored."""
        entry = self.shards.get(name)
        return entry is not None and entry.segments.has(index)

    def fresh(self, name: str, job: str) -> bool:
        """What was fetched in this replay need not be compared."""
        return True

    def may_ask(self, origin: str) -> bool:
        """An origin takes any number of requests."""
        return True


def lru(workload: Workload, capacity_bytes: int, *, overhead_bytes: int = 0) -> ReplayOutcome:
    """The same readings in a cache from which the segment leaves that was used longest ago; segment by segment, which is kinder to it than
    whole shards.
    """
    outcome = ReplayOutcome("lru", capacity_bytes, workload.dataset_bytes, len(workload.orders))
    stored: OrderedDict[tuple[str, int], int] = OrderedDict()
    used = overhead_bytes
    for opening in workload.openings():
        name, epoch = opening.shard.name, outcome.epoch(opening)
        length = workload.lengths[name]
        for index in range(DEFAULT_LAYOUT.count(length)):
            size = DEFAULT_LAYOUT.span(index, length)[1]
            room = allocated(size)
            epoch.read_bytes += size
            if (name, index) in stored:
                stored.move_to_end((name, index))
                continue
            epoch.origin_bytes += size
            while stored and used + room > capacity_bytes:
                used -= stored.popitem(last=False)[1]
            if used + room <= capacity_bytes:
                stored[name, index] = room
                used += room
            else:
                outcome.bypassed_segments += 1
            outcome.peak_bytes = max(outcome.peak_bytes, used)
    return outcome


def replay(workload: Workload, capacity_bytes: int, *, overhead_bytes: int = 0) -> list[ReplayOutcome]:
    """What our policy, and LRU, make of the same readings."""
    return [
        Replay(workload, capacity_bytes, overhead_bytes=overhead_bytes).run(),
        lru(workload, capacity_bytes, overhead_bytes=overhead_bytes),
    ]
