"""How one cache is put together: every part is built once, after the parts that it needs.

The service, the tests' harness and the benchmarks build the same cache by ``build_cache``; they differ in what they pass: origins, a clock,
a directory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forebay_proxy.background.disk_monitor import DiskMonitor
from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.background.set_prefetch import SetPrefetch
from forebay_proxy.cache.fill.fetcher import Fetcher
from forebay_proxy.cache.fill.fill import Fill
from forebay_proxy.cache.fill.segment_flights import SegmentFlights
from forebay_proxy.cache.fill.segment_grants import SegmentGrants
from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.integrity.digest_gate import DigestGate
from forebay_proxy.cache.integrity.segment_check import SegmentCheck
from forebay_proxy.cache.resident.facts import (
    CacheChanged,
    EntryLeft,
    EntryRetired,
    FileHeld,
    NameForgotten,
    ReaderResumed,
    SegmentGone,
    SegmentMissed,
    SegmentRefetched,
    SegmentSpoilt,
    ShardCompleted,
    VersionOutdated,
    VersionRefuted,
)
from forebay_proxy.cache.resident.open_files import OpenFiles, PatientFiles, Retirement
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.cache.resident.space import SegmentLeases, Slice, SpaceManager
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.freshness import SuspectVersions
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.background_tasks import BackgroundTasks
from forebay_proxy.core.events import Events
from forebay_proxy.node.cache_location import Capacity
from forebay_proxy.origins.registry import Origins
from forebay_proxy.policy.eviction.facts import DebtSettled, LeadGivenBack
from forebay_proxy.policy.eviction.headroom import Headroom
from forebay_proxy.policy.eviction.ledger import Ledger
from forebay_proxy.policy.plans.facts import NextUseChanged, PlanAdvanced, SetShardOpened
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.facts import (
    CommitFailed,
    FileTidied,
    GarbageRemoved,
    IndexCommitted,
    IndexLost,
    SpaceRefused,
)
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store
from forebay_proxy.transfer.buffer_budget import BufferBudget
from forebay_proxy.transfer.flights import Flights
from forebay_proxy.transfer.limiter import Limiters

__all__ = ["CacheParts", "Surroundings", "build_cache"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a cache does not have of its own. ``clock`` tells seconds that never go back, ``chance`` spreads retries and guards nothing."""

    origins: Origins
    events: Events
    group: asyncio.TaskGroup
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]
    chance: random.Random


@dataclass(frozen=True, slots=True)
class CacheParts:
    """One cache, and the tasks around it, which the caller of ``build_cache`` starts."""

    store: Store
    ledger: Ledger[Slice]
    plans: PlanRegistry
    room: SpaceManager
    files: OpenFiles
    reclaimer: Reclaimer
    retirement: Retirement
    tasks: BackgroundTasks
    limiters: Limiters
    buffers: BufferBudget
    fetcher: Fetcher
    flights: Flights
    resolver: VersionResolver
    cache: ShardCache
    indexer: SampleIndexer
    disk_monitor: DiskMonitor
    prefetcher: Prefetcher
    sets: SetPrefetch


def build_cache(store: Store, capacity: Capacity, settings: Settings, around: Surroundings) -> CacheParts:
    """A cache over ``store``, empty: what an earlier process stored is found by ``startup.adopt``. No task runs yet."""
    events, clock = around.events, around.clock
    tasks, flights, buffers = BackgroundTasks(around.group), Flights(around.group), BufferBudget()
    ledger: Ledger[Slice] = Ledger(capacity.capacity_bytes)
    ledger.capacity_bytes = capacity.effective_bytes
    plans = PlanRegistry(clock, events)
    disk = DiskHealth(clock, events)
    room = SpaceManager(ledger, store, plans, events, clock)
    here = _resident(store, room, disk, tasks, events)
    limiters = Limiters(settings.origin_connections, clock)
    fetcher = Fetcher(
        around.origins, limiters, buffers, events,
        retry_budget_s=settings.retry_budget_s, clock=clock, sleep=around.sleep, chance=around.chance,
    )  # fmt: skip
    suspects, gate = SuspectVersions(clock), DigestGate(room=room, flights=flights, events=events)
    digest_check = DigestCheck(
        room=room, gate=gate, segment_check=here.segment_check, asking=fetcher, suspects=suspects, events=events, tasks=tasks,
        enabled=settings.origin_digests,
    )  # fmt: skip
    fill = Fill(
        room=room, grants=SegmentGrants(room=room, reclaimer=here.reclaimer, disk=disk, events=events, tasks=tasks, clock=clock),
        reclaimer=here.reclaimer, retirement=here.retirement, digest_check=digest_check, disk=disk, events=events, tasks=tasks, clock=clock,
    )  # fmt: skip
    resolver = VersionResolver(
        room=room, retirement=here.retirement, fill=fill, suspects=suspects, flights=flights, fetcher=fetcher, buffers=buffers,
        events=events, group=around.group, clock=clock, hmac_key=store.directory.hmac_key, revalidate=settings.revalidate,
    )  # fmt: skip
    segment_flights = SegmentFlights(
        room=room, disk=disk, plans=plans, flights=flights, fill=fill, segment_reader=here.segment_reader, fetcher=fetcher,
        buffers=buffers, events=events, clock=clock,
    )  # fmt: skip
    cache = ShardCache(
        store=store, room=room, reclaimer=here.reclaimer, leases=here.leases, segment_reader=here.segment_reader,
        segment_check=here.segment_check, disk=disk, plans=plans, flights=flights, resolver=resolver,
        limiters=limiters, buffers=buffers, events=events,
        clock=clock, gate=gate, digest_check=digest_check, fill=fill, segment_flights=segment_flights,
    )  # fmt: skip
    indexer = SampleIndexer(cache, store.samples, tasks, events)
    disk_monitor = DiskMonitor(
        store=store, room=room, reclaimer=here.reclaimer, files=here.files, fill=fill, health=disk,
        headroom=Headroom(capacity.capacity_bytes, capacity.floor_bytes, capacity.effective_bytes, clock),
        free_floor=settings.free_floor, tasks=tasks,
    )  # fmt: skip
    prefetcher = Prefetcher(cache, resolver, plans, fetcher.ahead, tasks, clock)
    sets = SetPrefetch(cache, resolver, plans, settings.set, clock, cache.tar_check)
    parts = CacheParts(
        store, ledger, plans, room, here.files, here.reclaimer, here.retirement, tasks, limiters, buffers, fetcher, flights, resolver,
        cache, indexer, disk_monitor, prefetcher, sets,
    )  # fmt: skip
    _introduce(parts, events)
    return parts


@dataclass(frozen=True, slots=True)
class _Resident:
    """What is here of shards, and how it is read and removed."""

    files: OpenFiles
    retirement: Retirement
    reclaimer: Reclaimer
    leases: SegmentLeases
    segment_check: SegmentCheck
    segment_reader: SegmentReader


def _resident(store: Store, room: SpaceManager, disk: DiskHealth, tasks: BackgroundTasks, events: Events) -> _Resident:
    files = OpenFiles(room, store)
    retirement = Retirement(room, files, tasks, events)
    reclaimer = Reclaimer(room=room, files=files, retirement=retirement, store=store, disk=disk, tasks=tasks, events=events)
    leases, patient = SegmentLeases(room, events), PatientFiles(files, disk)
    segment_check = SegmentCheck(room=room, reclaimer=reclaimer, files=patient, leases=leases, disk=disk, events=events)
    segment_reader = SegmentReader(files=patient, segment_check=segment_check, reclaimer=reclaimer, disk=disk, tasks=tasks)
    return _Resident(files, retirement, reclaimer, leases, segment_check, segment_reader)


def _introduce(parts: CacheParts, events: Events) -> None:
    """Which part listens to which fact, in the order in which listeners are called."""
    room, cache, prefetcher, on = parts.room, parts.cache, parts.prefetcher, events.on
    on(IndexCommitted, room.overhead.measure)
    on(GarbageRemoved, room.overhead.measure)
    on(FileTidied, lambda fact: room.tidied(fact.key, fact.allocated_bytes))
    on(IndexLost, lambda _: room.claim_all())
    on(CommitFailed, lambda fact: cache.disk.failed(fact.error))
    on(SpaceRefused, lambda fact: parts.disk_monitor.space_refused(fact.error))
    on(FileHeld, lambda fact: cache.fd_leases.held(fact.entry))
    on(SegmentRefetched, lambda fact: cache.digest_check.segment_stored(fact.entry, fact.index, fact.checksum))
    on(SegmentSpoilt, lambda fact: parts.indexer.drop(fact.entry))
    on(SegmentSpoilt, cache.spoilt)
    on(ShardCompleted, parts.indexer.completed)
    on(VersionOutdated, lambda fact: parts.indexer.drop(fact.entry))
    on(VersionOutdated, lambda fact: parts.resolver.versions.forget(fact.entry))
    on(EntryLeft, lambda fact: cache.fill.left(fact.entry))
    on(VersionRefuted, lambda fact: cache.fill.outdated(fact.entry))
    on(EntryRetired, cache.forget)
    on(NextUseChanged, cache.reorder)
    on(SetShardOpened, parts.sets.read)
    on(PlanAdvanced, prefetcher.advanced)
    on(CacheChanged, prefetcher.stirred)
    on(SegmentGone, lambda fact: prefetcher.scheduler.missing(fact.name))
    on(SegmentMissed, prefetcher.missed)
    on(NameForgotten, lambda fact: prefetcher.scheduler.missing(fact.name))
    on(ReaderResumed, prefetcher.waited)
    on(DebtSettled, prefetcher.freed)
    on(LeadGivenBack, prefetcher.gave_back)
