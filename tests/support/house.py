"""The whole cache over a real store and a fake origin, and what must be true of it once everybody has left."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from support.fake_origin import FakeOrigin, FakeOrigins
from support.scripted_answers import ramp

from forebay_proxy.app.composition import CacheParts, Surroundings, build_cache
from forebay_proxy.app.startup import adopt
from forebay_proxy.background.disk_monitor import DiskMonitor
from forebay_proxy.background.operations import Operations
from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.background.set_prefetch import SetPrefetch
from forebay_proxy.cache.fetching.fetcher import Fetcher
from forebay_proxy.cache.fetching.segment_fetches import SegmentFetches
from forebay_proxy.cache.fetching.segment_storage import SegmentStorage
from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.events import Event, Events, Fact
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.core.shard import ByteRange, Shard
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.node.cache_location import Capacity
from forebay_proxy.policy.eviction.ledger import Ledger
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.store.facts import GarbageRemoved, IndexCommitted
from forebay_proxy.store.store import Store
from forebay_proxy.transfer import bandwidth, fetches
from forebay_proxy.transfer.buffers import BufferBudget
from forebay_proxy.transfer.fetches import FetchTable
from forebay_proxy.transfer.limiter import Limiters
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["LAYOUT", "SEGMENT", "FakeClock", "World", "building", "data_of", "failing", "reader", "shard_of", "stored", "until"]


SEGMENT = 1 << 16  # of what is built here, where a test does not name another: hundreds of them cost nothing
LAYOUT = SegmentLayout(SEGMENT)
T = TypeVar("T")


class FakeClock:
    """Time that stands still until somebody sleeps or a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def shard_of(name: str, *, credential: str = "") -> Shard:
    headers = (("Authorization", credential),) if credential else ()
    return Shard.of(parse_origin_url(name), headers)


def reader(worker: int = 0, job: str = "job") -> ReaderName:
    return ReaderName(job, "0", str(worker), f"{worker}.0")


def need_at(plans: PlanRegistry, name: str) -> float | None:
    """When some reader opens the shard by its plan, on the plans' clock; None where no plan names the shard."""
    return min((plan.need_at(index) for plan, index in plans.mentions(name)), default=None)


def data_of(length: int, seed: int = 0) -> bytes:
    """``length`` bytes without a run of zeros, other for each seed."""
    return ramp(length, start=(seed + 1) * 7919)


async def until(condition: Callable[[], object], *, timeout_s: float = 60) -> None:
    """Turn the loop until ``condition`` holds; only for what has no event of its own."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


@dataclass
class World:
    """Every part of one cache."""

    path: Path
    origin: FakeOrigin
    clock: FakeClock
    store: Store
    ledger: Ledger[Slice]
    plans: PlanRegistry
    room: SpaceManager
    files: OpenFiles
    reclaimer: Reclaimer
    fetches: FetchTable
    resolver: VersionResolver
    tasks: BackgroundTasks
    limiters: Limiters
    fetcher: Fetcher
    buffers: BufferBudget
    segment_reader: SegmentReader
    digest_check: DigestCheck
    storage: SegmentStorage
    segment_fetches: SegmentFetches
    tar_check: TarCheck
    cache: ShardCache
    prefetcher: Prefetcher
    sets: SetPrefetch
    indexer: SampleIndexer
    disk_monitor: DiskMonitor
    operations: Operations
    parts: CacheParts
    group: asyncio.TaskGroup
    events: Events
    facts: list[Any] = field(default_factory=list)
    most_used: int = 0

    def entry(self, name: str) -> Entry:
        return self.resolver.versions.current[name]

    def of(self, kind: type[T]) -> list[T]:
        """The events of one kind so far."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @asynccontextmanager
    async def opened(
        self, shard: Shard | str, who: ReaderName | None = None, first: int = 0, last: int | None = None
    ) -> AsyncIterator[ShardReader]:
        """A reading that has begun."""
        shard = shard_of(shard) if isinstance(shard, str) else shard
        want = ByteRange(first, last) if first or last is not None else None
        async with self.cache.open(shard, who, want) as reading:
            await reading.begin(first, last)
            yield reading

    async def get(self, shard: Shard | str, who: ReaderName | None = None, first: int = 0, last: int | None = None) -> bytes:
        """A GET, read to its end."""
        async with self.opened(shard, who, first, last) as reading:
            return b"".join([bytes(chunk) async for chunk in reading.chunks()])

    async def taken(self, reading: ShardReader, count: int) -> bytes:
        """At least ``count`` bytes from a reading's start, and the reading stays where it is."""
        got = b""
        chunks = reading.chunks()
        async for chunk in chunks:
            got += bytes(chunk)
            if len(got) >= count:
                break
        await chunks.aclose()  # type: ignore[attr-defined]
        return got

    async def quiet(self) -> None:
        """Wait until nothing is in the air and nothing is left to do."""
        calm = 0
        async with asyncio.timeout(60):
            while calm < 3:
                busy = len(self.fetches) + self.resolver.running + len(self.tasks)
                calm = 0 if busy else calm + 1
                await asyncio.sleep(0 if calm else 0.001)

    def allocated(self) -> int:
        """Bytes the disk holds for shard files."""
        total = 0
        with os.scandir(self.path / "shards") as files:
            for file in files:
                with suppress(FileNotFoundError):  # it left meanwhile
                    total += file.stat(follow_symlinks=False).st_blocks * 512 if file.is_file(follow_symlinks=False) else 0
        return total

    def shard_file(self, name: str) -> Path:
        return self.path / "shards" / self.entry(name).key

    def check(self) -> None:
        """Nobody is here: nothing may be held."""
        assert not self.cache.readers
        self.cache.fd_lender.look_again()  # as once a second
        assert self.cache.leased_segments == 0
        assert len(self.fetches) == 0
        assert not self.fetches.all()
        assert len(self.resolver) == 0
        assert (self.ledger.reserved_bytes, self.ledger.doomed_bytes) == (0, 0), self.ledger
        for entry in self.room.entries.values():
            assert not entry.in_use.leaving, entry
            assert not entry.segments.leases, entry
            assert (entry.in_use.readers, entry.in_use.fetching) == (0, 0), entry
        stored = sum(entry.segments.bytes_of(index) for entry in self.room.entries.values() for index in entry.segments.stored())
        assert self.ledger.stored_bytes == stored, (self.ledger, stored)
        self.room.read_ahead.check()
        assert all(limiter.in_flight == 0 for limiter in self.limiters._limiters.values())
        assert self.buffers.memory.taken == 0
        assert self.origin.open == 0
        assert self.ledger.pop_peak() <= self.ledger.configured_bytes
        if (self.path / "shards").exists():  # a test may remove it
            self._check_files(stored)

    def _check_files(self, stored: int) -> None:
        tree_blocks = 4 * 4096 * len(self.room.entries)  # the file system's own, where a file is in many pieces
        assert self.allocated() <= stored + tree_blocks, (self.allocated(), stored)
        files = {file.name for file in os.scandir(self.path / "shards") if file.is_file(follow_symlinks=False)}
        assert files == {entry.key for entry in self.room.entries.values() if entry.stored.filed}
        assert files >= self.store.files.open.keys()


class _Unmeasured(Events):
    """Nobody hears that bytes of the index came or went: those are other tests' matter, here segments count."""

    def emit(self, event: Event | Fact) -> None:
        if not isinstance(event, IndexCommitted | GarbageRemoved):
            super().emit(event)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def _short_waits() -> Iterator[None]:
    """Nobody needs two seconds to subscribe in a test, and a fake origin is no line that could be full."""
    before = fetches.SUBSCRIBE_S, bandwidth.UNKNOWN
    fetches.SUBSCRIBE_S, bandwidth.UNKNOWN = 0.05, 64
    try:
        yield
    finally:
        fetches.SUBSCRIBE_S, bandwidth.UNKNOWN = before


@contextmanager
def _plain_errors() -> Iterator[None]:
    """A test's own failure, not a group of one."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


@asynccontextmanager
async def building(
    path: Path,
    *,
    segments: int = 1024,
    segment_bytes: int = SEGMENT,
    capacity_bytes: int | None = None,
    origin: FakeOrigin | None = None,
    clock: FakeClock | None = None,
    revalidate: str | float = "job",
    retry_budget_s: float = 300.0,
    prefetch: bool = False,
    boot: str = "",
    connections: int = 64,
    checked: bool = True,
    measured: bool = False,
) -> AsyncIterator[World]:
    """A cache with room for ``segments`` segments, or for ``capacity_bytes``.

    Leaving waits until all is quiet, and looks whether anything was left behind.

    ``measured``: the index and everything else in the directory take of that room too, as they really do.
    """
    origin, clock = origin or FakeOrigin(), clock or FakeClock()
    descriptors = _descriptors()
    events, facts = Events() if measured else _Unmeasured(), list[Any]()
    store = await Store.open(path, who="test", events=events, layout=SegmentLayout(segment_bytes))
    try:
        loaded = await store.load()
        if boot:
            store.boot_id = boot
        with _short_waits(), _plain_errors():
            async with asyncio.TaskGroup() as group:
                events.listen(facts.append)
                origins: Any = FakeOrigins(origin)
                around = Surroundings(origins, events, group, clock, clock.sleep, random.Random(7))
                settings = Settings(revalidate=revalidate, retry_budget_s=retry_budget_s, origin_connections=connections, free_floor=0.0)
                most_bytes = segments * segment_bytes if capacity_bytes is None else capacity_bytes
                capacity = Capacity(most_bytes, most_bytes, floor_bytes=0)
                parts = build_cache(store, capacity, settings, around)
                operations = Operations(parts.cache, parts.resolver, parts.segment_reader, clock)
                each: Any = {part.name: getattr(parts, part.name) for part in fields(CacheParts) if part.name in World.__dataclass_fields__}
                world = World(path, origin, clock, operations=operations, group=group, events=events, facts=facts, parts=parts, **each)
                adopt(loaded, store, parts.resolver, parts.cache)
                if measured:
                    world.room.measure_overhead()
                walking = group.create_task(world.prefetcher.run()) if prefetch else None
                try:
                    yield world
                    origin.release()
                    await world.quiet()
                    await until(lambda: not store.sweeping.running)  # a pass that is under way is not joined by another
                    await store.sweeping.run()
                    if checked:
                        world.check()
                finally:
                    origin.release()
                    if walking is not None:
                        walking.cancel()
                    world.resolver.cancel()
                    world.fetches.cancel()
    finally:
        await store.aclose()
    await until(lambda: _descriptors() <= descriptors)  # fewer where what an earlier test left was collected meanwhile


def failing(code: int, times: int = 10**9) -> Callable[..., Any]:
    """A leaf of the disk that fails the first ``times``, then does nothing."""
    left = [times]

    def leaf(*args: object) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(code, os.strerror(code))

    return leaf


async def stored(world: World, name: str, segments: int, seed: int = 0) -> bytes:
    """A shard that is here whole."""
    data = data_of(segments * SEGMENT, seed)
    world.origin.put(name, data)
    assert await world.get(name) == data
    await world.quiet()
    return data
