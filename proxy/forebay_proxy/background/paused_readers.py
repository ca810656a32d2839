"""Idle readers: the room of what was fetched ahead of them may be given to others, and then they are paused until they move again."""

from __future__ import annotations

from collections.abc import Hashable

from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.policy.eviction.facts import LeadGivenBack
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.idle_readers import IdleReaders, patience_s
from forebay_proxy.policy.schedule.scheduler import PrefetchScheduler
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["PausedReaders"]


class PausedReaders:
    """Which readers with a plan take nothing now, and which of them have given back. Not thread-safe: the event loop's only."""

    def __init__(self, cache: ShardCache, plans: PlanRegistry, scheduler: PrefetchScheduler) -> None:
        self._cache = cache
        self._plans = plans
        self._scheduler = scheduler
        self._idle_readers = IdleReaders()
        self._paused_at: dict[ReaderName, float | None] = {}  # paused readers, and when each opened its last shard
        cache.room.admission.idle = self._idle_readers.readers

    def __repr__(self) -> str:
        return f"<PausedReaders {len(self._paused_at)}, {self._idle_readers!r}>"

    def look(self, now: float) -> None:
        """Once a second, at ``now`` (monotonic seconds): whose lead others may have. A reader is idle that opens nothing, and takes no
        byte of what it is inside.
        """
        inside: dict[ReaderName, tuple[int, bool]] = {}
        for reading in self._cache.readers:
            if reading.reader is not None:
                position, has_all = inside.get(reading.reader, (0, False))
                inside[reading.reader] = position + reading.position, has_all or reading.position == reading.entry.shown_version.length
        places: dict[Hashable, tuple[object, float]] = {}
        for plan in self._plans.all():
            position, has_all = inside.get(plan.reader, (0, False))
            places[plan.reader] = (plan.pace.opened_at, position), patience_s(plan.pace.rate, has_all=has_all)
        self._idle_readers.look(places, now)
        for reader in self._scheduler.readers.shares.paused - self._idle_readers.readers.keys():
            self._go_on(reader)

    def gave_back(self, fact: LeadGivenBack) -> None:
        """The reader is idle, and others wanted the room of its lead: it is paused."""
        reader = fact.reader
        if isinstance(reader, ReaderName):
            plan = self._plans.get(reader)
            if plan is not None:
                self._paused_at[reader] = plan.pace.opened_at
                plan.pause()
                self._scheduler.pause(reader)

    def advanced(self, plan: ReaderPlan) -> None:
        """Something happened to the plan of a paused reader: an opening moves it, another announcement does not."""
        current = self._plans.get(plan.reader)
        if current is None or current.pace.opened_at != self._paused_at.get(plan.reader):
            self._go_on(plan.reader)
        else:
            current.pause()

    def _go_on(self, reader: ReaderName) -> None:
        plan = self._plans.get(reader)
        if plan is not None:
            plan.go_on()
            self._cache.room.admission.restore_lead(reader)
        self._paused_at.pop(reader, None)
        self._scheduler.go_on(reader)
