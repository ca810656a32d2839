"""The rooms of one cache: each builds its few parts out of the rooms before it. ``composition.build_cache`` puts them together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from forebay_proxy.background.disk_monitor import DiskMonitor
from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.background.set_prefetch import SetPrefetch
from forebay_proxy.cache.fd_lease import FdLeases
from forebay_proxy.cache.fill.fetcher import Fetcher
from forebay_proxy.cache.fill.fill import Fill
from forebay_proxy.cache.fill.segment_flights import SegmentFlights
from forebay_proxy.cache.fill.segment_grants import SegmentGrants
from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.integrity.digest_gate import DigestGate
from forebay_proxy.cache.integrity.segment_check import SegmentCheck
from forebay_proxy.cache.readers.active_readers import ActiveReaders
from forebay_proxy.cache.readers.reader_parts import ReaderParts
from forebay_proxy.cache.resident.open_files import OpenFiles, Retirement
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.segment_reader import SegmentReader
from forebay_proxy.cache.resident.space import SegmentLeases, Slice, SpaceManager
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.refusals import SuspectVersions
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Events
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.node.cache_location import Capacity
from forebay_proxy.origins.registry import Origins
from forebay_proxy.policy.eviction.headroom import Headroom
from forebay_proxy.policy.eviction.ledger import Ledger
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.flights import Flights
from forebay_proxy.transfer.limiter import Limiters

__all__ = ["BackgroundParts", "FillParts", "IntegrityParts", "ReadingParts", "ResidentParts", "Surroundings", "TransferParts"]


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
class ResidentParts:
    """What is here of shards: the room it has, how it is leased, read, checked and removed."""

    store: Store
    plans: PlanRegistry
    tasks: BackgroundTasks
    disk: DiskHealth
    ledger: Ledger[Slice]
    room: SpaceManager
    files: OpenFiles
    retirement: Retirement
    reclaimer: Reclaimer
    leases: SegmentLeases
    segment_check: SegmentCheck
    segment_reader: SegmentReader

    @classmethod
    def build(cls, store: Store, capacity: Capacity, around: Surroundings) -> ResidentParts:
        events, clock = around.events, around.clock
        tasks, plans, disk = BackgroundTasks(around.group), PlanRegistry(clock, events), DiskHealth(clock, events)
        ledger: Ledger[Slice] = Ledger(capacity.capacity_bytes)
        ledger.capacity_bytes = capacity.effective_bytes
        room = SpaceManager(ledger, store, plans, events, clock)
        files = OpenFiles(room, store, disk)
        retirement = Retirement(room, files, tasks, events)
        reclaimer = Reclaimer(room=room, files=files, retirement=retirement, store=store, disk=disk, tasks=tasks, events=events)
        leases = SegmentLeases(room)
        segment_check = SegmentCheck(room=room, reclaimer=reclaimer, files=files, leases=leases, disk=disk, events=events)
        segment_reader = SegmentReader(files=files, segment_check=segment_check, reclaimer=reclaimer, disk=disk, tasks=tasks)
        return cls(store, plans, tasks, disk, ledger, room, files, retirement, reclaimer, leases, segment_check, segment_reader)


@dataclass(frozen=True, slots=True)
class TransferParts:
    """What asks origins, and what is in the air."""

    limiters: Limiters
    buffers: BufferBudget
    fetcher: Fetcher
    flights: Flights

    @classmethod
    def build(cls, settings: Settings, around: Surroundings) -> TransferParts:
        limiters, buffers = Limiters(settings.origin_connections, around.clock), BufferBudget()
        fetcher = Fetcher(
            around.origins, limiters, buffers, around.events,
            retry_budget_s=settings.retry_budget_s, clock=around.clock, sleep=around.sleep, chance=around.chance,
        )  # fmt: skip
        return cls(limiters, buffers, fetcher, Flights(around.group))


@dataclass(frozen=True, slots=True)
class IntegrityParts:
    """How far versions are believed."""

    suspects: SuspectVersions
    gate: DigestGate
    digest_check: DigestCheck

    @classmethod
    def build(cls, here: ResidentParts, transfer: TransferParts, settings: Settings, around: Surroundings) -> IntegrityParts:
        suspects = SuspectVersions(around.clock)
        gate = DigestGate(room=here.room, flights=transfer.flights, events=around.events)
        digest_check = DigestCheck(
            room=here.room, gate=gate, segment_check=here.segment_check, asking=transfer.fetcher, suspects=suspects,
            events=around.events, tasks=here.tasks, enabled=settings.origin_digests,
        )  # fmt: skip
        return cls(suspects, gate, digest_check)


@dataclass(frozen=True, slots=True)
class FillParts:
    """What finds the version of a shard, and brings what is missing of it."""

    fill: Fill
    resolver: VersionResolver
    segment_flights: SegmentFlights

    @classmethod
    def build(
        cls, here: ResidentParts, transfer: TransferParts, integrity: IntegrityParts, settings: Settings, around: Surroundings
    ) -> FillParts:
        clock, events, room, disk = around.clock, around.events, here.room, here.disk
        grants = SegmentGrants(room=room, reclaimer=here.reclaimer, disk=disk, events=events, tasks=here.tasks, clock=clock)
        fill = Fill(
            room=room, grants=grants, reclaimer=here.reclaimer, files=here.files, retirement=here.retirement,
            digest_check=integrity.digest_check, disk=disk, events=events, tasks=here.tasks, clock=clock,
        )  # fmt: skip
        resolver = VersionResolver(
            room=room, retirement=here.retirement, fill=fill, suspects=integrity.suspects, flights=transfer.flights,
            fetcher=transfer.fetcher, buffers=transfer.buffers, events=events, group=around.group, clock=clock,
            hmac_key=here.store.directory.hmac_key, revalidate=settings.revalidate,
        )  # fmt: skip
        segment_flights = SegmentFlights(
            room=room, disk=disk, plans=here.plans, flights=transfer.flights, fill=fill, segment_reader=here.segment_reader,
            fetcher=transfer.fetcher, buffers=transfer.buffers, events=events, clock=clock,
        )  # fmt: skip
        return cls(fill, resolver, segment_flights)


@dataclass(frozen=True, slots=True)
class ReadingParts:
    """Who reads, by HTTP and by descriptor, and what each works with."""

    parts: ReaderParts
    tar_check: TarCheck
    readers: ActiveReaders
    fd_leases: FdLeases

    @classmethod
    def build(
        cls, here: ResidentParts, transfer: TransferParts, integrity: IntegrityParts, filling: FillParts, around: Surroundings
    ) -> ReadingParts:
        flights, buffers = filling.segment_flights, transfer.buffers
        parts = ReaderParts(here.segment_reader, flights, integrity.gate, here.leases, buffers, transfer.limiters)
        tar_check = TarCheck(here.segment_reader, around.events)
        readers = ActiveReaders(room=here.room, fill=filling.fill, tar_check=tar_check, events=around.events, clock=around.clock)
        return cls(parts, tar_check, readers, FdLeases(here.room, here.segment_reader, here.store))


@dataclass(frozen=True, slots=True)
class BackgroundParts:
    """The tasks around a cache, which the caller of ``build_cache`` starts."""

    indexer: SampleIndexer
    disk_monitor: DiskMonitor
    prefetcher: Prefetcher
    sets: SetPrefetch

    @classmethod
    def build(
        cls, here: ResidentParts, cache: ShardCache, filling: FillParts, reading: ReadingParts, ahead: Callable[[str], int],
        capacity: Capacity, settings: Settings, around: Surroundings,
    ) -> BackgroundParts:  # fmt: skip
        """``ahead``: how many requests ahead of need an origin is sent at a time now."""
        clock, resolver = around.clock, filling.resolver
        headroom = Headroom(capacity.capacity_bytes, capacity.floor_bytes, capacity.effective_bytes, clock)
        disk_monitor = DiskMonitor(
            store=here.store, room=here.room, reclaimer=here.reclaimer, files=here.files, health=here.disk,
            headroom=headroom, tasks=here.tasks,
        )  # fmt: skip
        return cls(
            SampleIndexer(cache, here.store.samples, here.tasks, around.events),
            disk_monitor,
            Prefetcher(cache, resolver, here.plans, ahead, here.tasks, clock),
            SetPrefetch(cache, resolver, here.plans, settings.set, clock, reading.tar_check),
        )
