"""The plans of simulated readers, and the prefetch ahead of them: the shape of ``Prefetcher``, without a task. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from forebay_proxy.cache.resident.facts import CacheChanged, SegmentGone
from forebay_proxy.core.errors import CacheFull
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.policy.eviction.facts import DebtSettled
from forebay_proxy.policy.plans.facts import NextUseChanged, PlanAdvanced
from forebay_proxy.policy.plans.live_jobs import ANONYMOUS
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.scheduler import PrefetchRequest, PrefetchScheduler
from forebay_proxy.simulate.origin import DEMAND
from forebay_proxy.simulate.policies import Light, Ours
from forebay_proxy.simulate.workload import ALL, Script, Workload
from forebay_proxy.simulate.world import SimulatedWorld
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["SimulatedAnnouncer", "Unheard"]

ROUND_S = 0.02  # as in prefetcher.py (a test compares them)
LOOK_S = 1.0  # and how often the prefetcher looks again, which here is done when something happens
DECISIONS = 100_000  # in one round; the prefetcher goes on until there are no more, and a fault of the scheduler must not hang a simulation
REFRESHED = 16  # shards put in their place again with each opening: as in choosing.py, but a run of days is not looked at each second


class Unheard:
    """Caches of other kinds are told nothing: they have no ears."""

    def begins(self, script: Script, epoch: int) -> None: ...

    def opens(self, script: Script, epoch: int, position: int) -> None: ...

    def waited(self, script: Script) -> None: ...

    def ends(self, script: Script) -> None: ...


class _SimulatedView:
    """The simulated cache as the cursors see it."""

    layout = DEFAULT_LAYOUT

    def __init__(self, world: SimulatedWorld, keeping: Ours) -> None:
        self._world = world
        self._keeping = keeping

    def capacity(self) -> int:
        return self._keeping.ledger.capacity_bytes

    def length(self, name: str) -> int | None:
        entry = self._world.find(name)
        return entry.length if entry is not None and entry.known else None

    def has(self, name: str, index: int) -> bool:
        entry = self._world.find(name)
        return entry is not None and (entry.segments.has(index) or self._world.flying(entry, index) is not None)

    def fresh(self, name: str, job: str) -> bool:
        """What was fetched in this run need not be compared."""
        return True

    def may_ask(self, origin: str) -> bool:
        return self._world.ahead_in_air < self._world.origin.ahead


class SimulatedAnnouncer:
    """Announces and opens as ``ahead()`` of the loader and ``ShardCache.open`` do, and acts on the scheduler's requests."""

    def __init__(self, world: SimulatedWorld, plans: PlanRegistry, keeping: Ours, workload: Workload, events: Events) -> None:
        self._world = world
        self._plans = plans
        self._keeping = keeping
        self._ahead = workload.ahead
        self._scheduler = PrefetchScheduler(plans, _SimulatedView(world, keeping))
        self._is_due = False
        self._looked_at = 0.0
        events.on(NextUseChanged, lambda fact: self._moved(fact.names))
        events.on(PlanAdvanced, lambda fact: self._advanced(fact.plan))
        events.on(CacheChanged, lambda _: self._roomier())
        events.on(SegmentGone, lambda fact: self._evicted(fact.name, fact.index))
        events.on(DebtSettled, lambda fact: self._settled(fact.reader))

    # What readers say

    def begins(self, script: Script, epoch: int) -> None:
        steps = script.epochs[epoch]
        if not epoch:
            self._plans.jobs.came(_job(script))
        if self._announces(script):
            announced = steps if self._ahead == ALL else steps[: self._ahead]
            self._plans.replace(script.reader, list(announced), script.number(epoch), script.set_name)

    def opens(self, script: Script, epoch: int, position: int) -> None:
        steps = script.epochs[epoch]
        self._plans.opened(steps[position], script.reader if script.is_named else None)
        self._keeping.admission.candidates.refresh(REFRESHED)
        if self._ahead and self._announces(script) and position + self._ahead < len(steps):
            self._plans.append(script.reader, [steps[position + self._ahead]], script.number(epoch), script.set_name)

    def waited(self, script: Script) -> None:
        self._scheduler.waited(script.reader)
        self._wake()

    def ends(self, script: Script) -> None:
        self._plans.withdraw(script.reader)
        if script.epochs:
            self._plans.jobs.left(_job(script))

    def _announces(self, script: Script) -> bool:
        return self._ahead is not None and script.is_named

    # What it is told

    def _moved(self, names: Iterable[str]) -> None:
        for name in names:
            entry = self._world.find(name)
            if entry is not None:
                self._world.keeping.touch(entry)

    def _advanced(self, plan: ReaderPlan) -> None:
        self._scheduler.advanced(plan)
        prefetch_debts = self._keeping.admission.prefetch_debts
        if self._plans.get(plan.reader) is None:
            prefetch_debts.forget(plan.reader)
        else:
            prefetch_debts.passed(plan.reader, lambda key: self._lies_ahead(key, plan.reader))
        self._wake()

    def _lies_ahead(self, key: str, reader: ReaderName) -> bool:
        """Whether what was prefetched of a shard may still be read by ``reader`` on its way."""
        entry = self._world.find(key)
        return entry is not None and (
            entry.in_use.readers > 0 or any(plan.reader == reader for plan, _ in self._plans.mentions(entry.name))
        )

    def _evicted(self, name: str, index: int) -> None:
        self._scheduler.missing(name)
        self._wake()

    def _settled(self, reader: Hashable) -> None:
        if isinstance(reader, ReaderName):
            self._scheduler.debt_settled(reader)
            self._wake()

    def _roomier(self) -> None:
        self._scheduler.room()
        self._wake()

    # What it wants

    def _wake(self) -> None:
        """A round soon: several reasons to look make one look."""
        if not self._is_due:
            self._is_due = True
            self._world.clock.at(self._world.clock.now + ROUND_S, self._round)

    def _round(self) -> None:
        self._is_due = False
        if self._world.clock.now - self._looked_at >= LOOK_S:
            self._looked_at = self._world.clock.now
            self._scheduler.look_again()
        for ask in self._world.inside_asks if self._ahead is not None else ():
            ask()
        for _ in range(DECISIONS):
            request = self._scheduler.next()
            if request is not None:
                self._act(request)
            elif not self._scheduler.has_more:
                return
        self._wake()

    def _act(self, request: PrefetchRequest) -> None:
        try:
            self._fetch(request)
        except CacheFull:
            if request.index is None:
                self._scheduler.unopened(request.shard.name)
            else:
                self._scheduler.refused(request.plan.reader)
        else:
            self._scheduler.granted(request)

    def _fetch(self, request: PrefetchRequest) -> None:
        """Take off for a wish. Raises ``CacheFull``."""
        entry = self._world.entry(request.shard)
        index = request.index or 0
        if request.index is None and self._is_opening(entry):
            return
        admission, reader, size = self._keeping.admission, request.plan.reader, self._world.size_of(entry, index)
        try:
            grant = admission.reserve_ahead(size, request.need_at, reader)
        except CacheFull:
            self._world.forget(entry)
            raise
        admission.prefetch_debts.note(entry.key, index, reader, size, admission.owed_for(grant))
        need = DEMAND + max(0.0, request.due_at - self._world.clock.now)
        flying = self._world.take_off(entry, index, self._world.cleared(grant), need, demanded=False)
        if request.index is None:
            flying.answered.append(lambda: self._opened(entry))

    def _is_opening(self, entry: Light) -> bool:
        """Whether a reader has opened it, or is about to: then its answer is this wish's too."""
        flying = self._world.flying(entry, 0)
        if flying is not None:
            flying.answered.append(lambda: self._opened(entry))
        elif entry.known:
            self._opened(entry)
        return flying is not None or entry.known

    def _opened(self, entry: Light) -> None:
        self._scheduler.opened(entry.name)
        self._wake()


def _job(script: Script) -> str:
    return script.reader.job if script.is_named else ANONYMOUS
