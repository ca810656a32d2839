"""How one cache is put together: every part is built once, after the parts that it needs.

The service, the tests' harness and the benchmarks build the same cache by ``build_cache``; only the arguments differ: origins, a clock,
a directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from forebay_proxy.app.cache_rooms import (
    BackgroundParts,
    FillParts,
    IntegrityParts,
    ReadingParts,
    ResidentParts,
    Surroundings,
    TransferParts,
)
from forebay_proxy.cache.resident.facts import (
    CacheChanged,
    EntryLeft,
    EntryRetired,
    FileHeld,
    NameForgotten,
    ReaderResumed,
    ReadersLeft,
    SegmentGone,
    SegmentMissed,
    SegmentRefetched,
    SegmentSpoilt,
    ShardCompleted,
    VersionOutdated,
    VersionRefuted,
)
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Events
from forebay_proxy.node.cache_location import Capacity
from forebay_proxy.policy.eviction.read_ahead import ReaderCaughtUp
from forebay_proxy.policy.plans.registry import NextUseChanged, PlanAdvanced, SetShardOpened
from forebay_proxy.store.facts import CommitFailed, FileTidied, GarbageRemoved, IndexCommitted, SpaceRefused
from forebay_proxy.store.store import Store

__all__ = ["CacheParts", "build_cache"]


@dataclass(frozen=True, slots=True)
class CacheParts:
    """One cache, and the tasks around it, which the caller of ``build_cache`` starts."""

    resident: ResidentParts
    transfer: TransferParts
    integrity: IntegrityParts
    filling: FillParts
    reading: ReadingParts
    cache: ShardCache
    background: BackgroundParts


def build_cache(store: Store, capacity: Capacity, settings: Settings, around: Surroundings) -> CacheParts:
    """A cache over ``store``, empty: what an earlier process stored is found by ``startup.adopt``. No task runs yet."""
    here, transfer = ResidentParts.build(store, capacity, around), TransferParts.build(settings, around)
    integrity = IntegrityParts.build(here, transfer, settings, around)
    filling = FillParts.build(here, transfer, integrity, settings, around)
    reading = ReadingParts.build(here, transfer, integrity, filling, around)
    cache = _cache(here, transfer, filling, reading, around)
    background = BackgroundParts.build(here, cache, filling, reading, transfer.fetcher.ahead, capacity, settings, around)
    parts = CacheParts(here, transfer, integrity, filling, reading, cache, background)
    _introduce_disk(parts, around.events)
    _introduce_versions(parts, around.events)
    _introduce_prefetch(parts, around.events)
    return parts


def _cache(here: ResidentParts, transfer: TransferParts, filling: FillParts, reading: ReadingParts, around: Surroundings) -> ShardCache:
    return ShardCache(
        room=here.room, reclaimer=here.reclaimer, disk=here.disk, plans=here.plans, flights=transfer.flights, resolver=filling.resolver,
        parts=reading.parts, readers=reading.readers, fd_leases=reading.fd_leases, events=around.events,
    )  # fmt: skip


# Which part listens to which fact. Listeners of one fact are called in the order in which they stand here.


def _introduce_disk(parts: CacheParts, events: Events) -> None:
    room, disk, on = parts.resident.room, parts.resident.disk, events.on
    on(IndexCommitted, room.overhead.measure)
    on(GarbageRemoved, room.overhead.measure)
    on(FileTidied, lambda fact: room.tidied(fact.key, fact.allocated_bytes))
    on(CommitFailed, lambda fact: disk.failed(fact.error))
    on(SpaceRefused, lambda fact: parts.background.disk_monitor.space_refused(fact.error))


def _introduce_versions(parts: CacheParts, events: Events) -> None:
    cache, fill, indexer, on = parts.cache, parts.filling.fill, parts.background.indexer, events.on
    digest_check, versions = parts.integrity.digest_check, parts.filling.resolver.versions
    on(FileHeld, lambda fact: parts.reading.fd_leases.held(fact.entry))
    on(SegmentRefetched, lambda fact: digest_check.segment_stored(fact.entry, fact.index, fact.checksum))
    on(SegmentSpoilt, lambda fact: indexer.drop(fact.entry))
    on(SegmentSpoilt, cache.spoilt)
    on(ShardCompleted, indexer.completed)
    on(ReadersLeft, indexer.left)
    on(VersionOutdated, lambda fact: indexer.drop(fact.entry))
    on(VersionOutdated, lambda fact: versions.forget(fact.entry))
    on(EntryLeft, fill.left)
    on(VersionRefuted, lambda fact: fill.outdated(fact.entry))
    on(EntryRetired, cache.forget)


def _introduce_prefetch(parts: CacheParts, events: Events) -> None:
    prefetcher, on = parts.background.prefetcher, events.on
    on(NextUseChanged, partial(parts.resident.room.candidates.next_use_changed, parts.filling.resolver.versions.current))
    on(SetShardOpened, parts.background.sets.read)
    on(PlanAdvanced, prefetcher.advanced)
    on(CacheChanged, prefetcher.cache_changed)
    on(SegmentGone, lambda fact: prefetcher.scheduler.missing(fact.name))
    on(SegmentMissed, prefetcher.missed)
    on(NameForgotten, lambda fact: prefetcher.scheduler.missing(fact.name))
    on(ReaderResumed, prefetcher.waited)
    on(ReaderCaughtUp, prefetcher.caught_up)
