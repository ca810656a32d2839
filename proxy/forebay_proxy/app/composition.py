"""How one cache is put together: every part is built once, after the parts that it needs; then it is said who hears of what.

The service, the tests' harness and the benchmarks build the same cache by ``build_cache``; only the arguments differ: origins, a clock,
a directory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from forebay_proxy.background.disk_monitor import DiskMonitor
from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.background.set_prefetch import SetPrefetch
from forebay_proxy.background.shared_writer import SharedWriter
from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.fetching.segment_fetches import SegmentFetches
from forebay_proxy.cache.fetching.segment_storage import SegmentStorage
from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.readers.active_readers import ActiveReaders
from forebay_proxy.cache.readers.chunk_reader import ReaderParts
from forebay_proxy.cache.resident import facts as resident
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.cache.versions.shard_faults import ShardFaults
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Events
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.node.cache_location import Capacity
from forebay_proxy.origins.registry import Origins
from forebay_proxy.policy.eviction.headroom import Headroom
from forebay_proxy.policy.eviction.ledger import Ledger
from forebay_proxy.policy.eviction.read_ahead import ReaderCaughtUp
from forebay_proxy.policy.plans.registry import NextUseChanged, PlanAdvanced, PlanRegistry, SetShardOpened
from forebay_proxy.shared.shared_store import SharedStore
from forebay_proxy.shared.shared_tier import SharedTier
from forebay_proxy.store import facts as stored
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.fetches import FetchTable
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
    """One cache, and the tasks around it (the last five), which the caller of ``build_cache`` starts."""

    store: Store
    plans: PlanRegistry
    tasks: BackgroundTasks
    disk: DiskHealth
    ledger: Ledger[Slice]
    room: SpaceManager
    files: OpenFiles
    reclaimer: Reclaimer
    segment_reader: SegmentReader
    limiters: Limiters
    buffers: BufferBudget
    fetcher: Fetcher
    fetches: FetchTable
    faults: ShardFaults
    digest_check: DigestCheck
    storage: SegmentStorage
    resolver: VersionResolver
    segment_fetches: SegmentFetches
    tar_check: TarCheck
    cache: ShardCache
    indexer: SampleIndexer
    disk_monitor: DiskMonitor
    prefetcher: Prefetcher
    sets: SetPrefetch
    shared_writer: SharedWriter | None


def build_cache(store: Store, capacity: Capacity, settings: Settings, around: Surroundings) -> CacheParts:
    """A cache over ``store``, empty: what an earlier process stored is found by ``startup.adopt``. No task runs yet."""
    events, clock = around.events, around.clock

    # What is here of shards: the room it has, how it is leased, read, checked and removed.
    tasks, plans, disk = BackgroundTasks(around.group), PlanRegistry(clock, events), DiskHealth(clock, events)
    ledger: Ledger[Slice] = Ledger(capacity.capacity_bytes)
    ledger.capacity_bytes = capacity.effective_bytes
    room = SpaceManager(ledger, store, plans, events, clock)
    files = OpenFiles(room, store, disk)
    reclaimer = Reclaimer(room=room, files=files, store=store, disk=disk, tasks=tasks, events=events)
    segment_reader = SegmentReader(
        room=room, reclaimer=reclaimer, files=files, disk=disk, events=events, tasks=tasks
    )  # fmt: skip

    # What asks origins, what is in the air, and how far versions are believed.
    limiters, buffers = Limiters(settings.origin_connections, clock), BufferBudget(store.layout.segment_bytes)
    fetches = FetchTable(around.group)
    fetcher = Fetcher(
        around.origins, limiters, buffers.bodies, events,
        origin_digests=settings.origin_digests, retry_budget_s=settings.retry_budget_s, clock=clock, sleep=around.sleep,
        chance=around.chance,
    )  # fmt: skip
    if settings.shared is not None and around.origins.shared is not None:
        fetcher.shared = SharedTier(
            SharedStore(settings.shared, around.origins.shared), store.layout, fetcher.head, events, clock=clock,
            sleep=around.sleep, chance=around.chance,
        )  # fmt: skip
    faults = ShardFaults(clock)
    digest_check = DigestCheck(
        room=room, table=fetches, segment_reader=segment_reader, fetcher=fetcher, faults=faults, events=events, tasks=tasks,
        enabled=settings.origin_digests,
    )  # fmt: skip

    # What finds the version of a shard, and brings what is missing of it.
    storage = SegmentStorage(
        room=room, reclaimer=reclaimer, files=files, digest_check=digest_check, disk=disk, events=events,
        tasks=tasks, clock=clock,
    )  # fmt: skip
    segment_fetches = SegmentFetches(
        room=room, disk=disk, plans=plans, table=fetches, storage=storage, segment_reader=segment_reader, fetcher=fetcher, buffers=buffers,
        events=events, clock=clock,
    )  # fmt: skip
    resolver = VersionResolver(
        room=room, reclaimer=reclaimer, fetches=segment_fetches, faults=faults, fetcher=fetcher,
        events=events, group=around.group, clock=clock, hmac_key=store.directory.hmac_key, revalidate=settings.revalidate,
    )  # fmt: skip

    # Who reads, by HTTP and by descriptor.
    tar_check = TarCheck(segment_reader, events)
    cache = ShardCache(
        room=room, reclaimer=reclaimer, disk=disk, plans=plans, fetches=fetches, resolver=resolver,
        parts=ReaderParts(segment_reader, segment_fetches, digest_check, room, buffers, limiters),
        readers=ActiveReaders(room=room, tar_check=tar_check, events=events, clock=clock),
        store=store, events=events,
    )  # fmt: skip

    headroom = Headroom(capacity.capacity_bytes, capacity.floor_bytes, capacity.effective_bytes, clock)
    parts = CacheParts(
        store, plans, tasks, disk, ledger, room, files, reclaimer, segment_reader, limiters, buffers,
        fetcher, fetches, faults, digest_check, storage, resolver, segment_fetches, tar_check, cache,
        indexer=SampleIndexer(cache, store.samples, tasks, events),
        disk_monitor=DiskMonitor(
            store=store, room=room, reclaimer=reclaimer, files=files, health=disk, headroom=headroom, tasks=tasks
        ),
        prefetcher=Prefetcher(cache, resolver, plans, fetcher.ahead, tasks, clock),
        sets=SetPrefetch(cache, resolver, plans, settings.set, clock, tar_check),
        shared_writer=None if fetcher.shared is None else SharedWriter(fetcher.shared, cache),
    )  # fmt: skip
    _introduce(parts, events)
    return parts


def _introduce(parts: CacheParts, events: Events) -> None:
    """Which part listens to which fact. Listeners of one fact are called in the order in which they stand here."""
    on, room, indexer, prefetcher, versions = events.on, parts.room, parts.indexer, parts.prefetcher, parts.resolver.versions
    on(stored.IndexCommitted, room.measure_overhead)
    on(stored.GarbageRemoved, room.measure_overhead)
    on(stored.FileTidied, lambda fact: room.tidied(fact.key, fact.allocated_bytes))
    on(stored.CommitFailed, lambda fact: parts.disk.failed(fact.error))
    on(stored.SpaceRefused, lambda fact: parts.disk_monitor.space_refused(fact.error))

    on(resident.FileHeld, lambda fact: parts.cache.fd_lender.outlived(fact.entry))
    on(resident.SegmentSpoilt, lambda fact: indexer.drop(fact.entry))
    on(resident.SegmentSpoilt, parts.cache.spoilt)
    on(resident.ShardCompleted, indexer.completed)
    if parts.shared_writer is not None:
        on(resident.ShardCompleted, parts.shared_writer.completed)
    on(resident.ReadersLeft, indexer.left)
    on(resident.VersionOutdated, lambda fact: indexer.drop(fact.entry))
    on(resident.VersionOutdated, lambda fact: versions.forget(fact.entry))
    on(resident.DigestsOffered, lambda fact: parts.digest_check.digests_offered(fact.entry, fact.digests))
    on(resident.EntryLeft, parts.storage.left)
    on(resident.EntryRetired, parts.cache.forget)

    on(NextUseChanged, partial(room.candidates.next_use_changed, versions.current))
    on(SetShardOpened, parts.sets.read)
    on(PlanAdvanced, prefetcher.advanced)
    on(resident.CacheChanged, prefetcher.cache_changed)
    on(resident.SegmentGone, lambda fact: prefetcher.scheduler.missing(fact.name))
    on(resident.SegmentMissed, prefetcher.missed)
    on(resident.EntryRetired, lambda fact: prefetcher.scheduler.missing(fact.entry.name))
    on(resident.ReaderResumed, prefetcher.waited)
    on(ReaderCaughtUp, prefetcher.caught_up)
