"""Fetches the segments that ``PrefetchScheduler`` asks for: through the same door as a request, a slice at a time; and tells the scheduler
how each fetch ended.

Demand goes first because the limiter gives it the next slot; prefetch only ever takes room that is free, has been read, or is needed later
(two segments a reader).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import CacheChanged, ReaderResumed, SegmentMissed
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.core.errors import CacheError, CacheFull, DigestDiffers, ForebayError
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.policy.eviction.read_ahead import ReaderCaughtUp
from forebay_proxy.policy.plans.registry import PlanAdvanced, PlanRegistry
from forebay_proxy.policy.schedule.scheduler import PrefetchRequest, PrefetchScheduler
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.transfer.limiter import AHEAD
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["NegativeCache", "Prefetcher"]

log = logging.getLogger("forebay")

ROUND_S = 0.02  # rounds are not counted in events: at 1 GB/s a segment lands every 8 ms, and one round of decisions serves several
SLICE_S = 0.002  # of decisions and take-offs, some 20 of them, before the loop's other work has its turn
FAILED_S = 30.0  # a shard that cannot be opened, or has no place on the disk, is left to its reader for this long
WASTE_BYTES_S = 2**20  # and longer by what came in vain: a body that cannot be asked in pieces may be gigabytes that find no room each time
WRONG_S = 600.0  # a shard whose bytes differ from its origin's digest costs a whole fetch each time; its reader asks again, twice a minute
CROWDED_S = 1.0  # and one whose room was lost to something else, or that the disk refused: each try waits for a commit of the index
# An origin that has lost a whole set is not asked for all of it in a minute: with so many of its shards left alone, it is left alone.
MOST_FAILED = 1024


class NegativeCache:
    """Shards that are left to their readers, each until a time: what could not be fetched would most likely fail again at once. Pure."""

    def __init__(self) -> None:
        self.of_origin: Counter[str] = Counter()  # names without an origin are not counted
        self._until: dict[str, tuple[float, str]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def __contains__(self, name: str) -> bool:
        return name in self._until

    def add(self, name: str, origin: str, until: float) -> None:
        """Leave ``name`` alone until then, or longer if that was said before."""
        if name not in self._until:
            self.of_origin[origin] += 1
            self._until[name] = until, origin
        elif self._until[name][0] < until:
            self._until[name] = until, origin

    def over(self, now: float) -> Iterator[str]:
        """Those whose time is over; each is told once."""
        for name in [name for name, (until, _) in self._until.items() if until <= now]:
            self.of_origin -= Counter((self._until.pop(name)[1],))
            yield name


class _View:
    """The cache as the cursors see it."""

    def __init__(self, cache: ShardCache, resolver: VersionResolver, ahead: Callable[[str], int], negative_cache: NegativeCache) -> None:
        self.layout = cache.room.layout
        self._cache = cache
        self._versions = resolver.versions
        self._ahead = ahead
        self._negative_cache = negative_cache
        self.air: Counter[str] = Counter()  # requests ahead of need per origin

    def capacity(self) -> int:
        return self._cache.room.ledger.capacity_bytes

    def length(self, name: str) -> int | None:
        entry = self._versions.current.get(name)
        if entry is None or entry.in_use.stale:
            return None
        return self.layout.segment_bytes if entry.version.length is None else entry.version.length

    def has(self, name: str, index: int) -> bool:
        entry = self._versions.current[name]
        if entry.segments.has(index):
            self._cache.parts.segment_reader.foresee(entry, index)
            return True
        # A body that cannot be asked in pieces comes with its opening, or not at all.
        return not entry.ranged or self._cache.parts.segment_fetches.find(entry, index) is not None

    def fresh(self, name: str, job: str) -> bool:
        return self._versions.is_fresh(self._versions.current[name], job)

    def may_ask(self, origin: str) -> bool:
        return self.air[origin] < self._ahead(origin) and self._negative_cache.of_origin[origin] < MOST_FAILED


class Prefetcher:
    """Keeps the windows of all readers full."""

    def __init__(
        self,
        cache: ShardCache,
        resolver: VersionResolver,
        plans: PlanRegistry,
        ahead: Callable[[str], int],
        tasks: BackgroundTasks,
        clock: Callable[[], float],
    ) -> None:
        """``ahead``: how many requests ahead of need an origin is sent at a time now."""
        self._cache = cache
        self._resolver = resolver
        self._plans = plans
        self._tasks = tasks
        self._clock = clock
        self._woken = asyncio.Event()
        self.negative_cache = NegativeCache()
        self._view = _View(cache, resolver, ahead, self.negative_cache)
        self.scheduler = PrefetchScheduler(plans, self._view)
        self._fetches: dict[Fetch, str] = {}  # those taken off ahead of need -> their origin
        self._opening: dict[str, str] = {}  # shard -> origin

    def __repr__(self) -> str:
        return f"<Prefetcher {len(self.scheduler.readers)} readers, {len(self._fetches)} fetches, {len(self._opening)} openings>"

    # What the service says

    def wake(self) -> None:
        """Plans changed."""
        self._woken.set()

    def waited(self, fact: ReaderResumed) -> None:
        """A reader waited for bytes: it needs a longer window, unless the disk is what holds it back."""
        self.scheduler.waited(fact.reader)

    def look_again(self) -> None:
        """Once a second: what failed is tried again when its time is over, and the disk may have recovered; no other event tells."""
        for name in self.negative_cache.over(self._clock()):
            self.scheduler.forgiven(name)
        self.scheduler.look_again()
        self.cache_changed()

    def cache_changed(self, _: CacheChanged | None = None) -> None:
        """What found no room may find it now."""
        self.scheduler.room()
        self._woken.set()

    def advanced(self, fact: PlanAdvanced) -> None:
        """A reader moved, or says something else than before."""
        plan = fact.plan
        self.scheduler.advanced(plan)
        if self._plans.get(plan.reader) is None:
            self._cache.room.read_ahead.forget(plan.reader)
        else:
            self._cache.room.read_ahead.passed(plan.reader, lambda key: self._lies_ahead(key, plan.reader))
        self._woken.set()

    def _lies_ahead(self, key: str, reader: ReaderName) -> bool:
        """Whether what was prefetched of a shard may still be read by ``reader`` on its way."""
        entry = self._cache.room.entries.get(key)
        if entry is None:
            return key.startswith("opening")  # its segment has no key yet
        return entry.in_use.readers > 0 or any(plan.reader == reader for plan, _ in self._plans.mentions(entry.name))

    def missed(self, fact: SegmentMissed) -> None:
        """A fetch ended without its segment. What would most likely end so again is not asked for at once: it would be, for ever."""
        entry, fetch = fact.entry, fact.fetch
        is_lasting = self._is_lasting(entry, fetch.error)
        if fetch.prefetch and (is_lasting or fetch.error is not None):
            in_vain_s = (fetch.position - fetch.first) / WASTE_BYTES_S
            self._leave_alone(entry.name, entry.origin, in_vain_s + (FAILED_S if is_lasting else CROWDED_S))
        else:
            self.scheduler.missing(entry.name)

    @staticmethod
    def _is_lasting(entry: Entry, error: BaseException | None) -> bool:
        """Whether the next fetch would end in the same way. A body that cannot be asked in pieces would come again from its start."""
        return not entry.ranged or entry.stored.misplaced or (error is not None and not isinstance(error, CacheError))

    def caught_up(self, fact: ReaderCaughtUp) -> None:
        """The reader may have one more segment."""
        if isinstance(fact.reader, ReaderName):
            self.scheduler.caught_up(fact.reader)

    # What follows

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            self._cache.ask_inside()
            for _ in iter(self._slice, True):
                await asyncio.sleep(0)
            await asyncio.sleep(ROUND_S)

    def _slice(self) -> bool:
        """Act on asks for a short while; whether there are no more."""
        self._count_air()
        until = time.monotonic() + SLICE_S
        while time.monotonic() < until:
            request = self.scheduler.next()
            if request is not None:
                self._act(request)
            elif not self.scheduler.has_more:
                return True
        return False

    def _count_air(self) -> None:
        """What a reader has boarded is demand, and leaves its place to the next."""
        for fetch in [fetch for fetch in self._fetches if fetch.done or fetch.need < AHEAD]:
            del self._fetches[fetch]
        self._view.air.clear()
        self._view.air.update(self._fetches.values())
        self._view.air.update(self._opening.values())

    def _act(self, request: PrefetchRequest) -> None:
        shard, reader = request.shard, request.plan.reader
        need = AHEAD + max(0.0, request.due_at - self._clock())
        entry = None if request.index is None else self._resolver.versions.readable(shard)
        if request.index is None or entry is None:  # also where the origin was not asked with this credential yet: its cursor comes back
            self._opening[shard.name] = shard.origin
            self._view.air[shard.origin] += 1
            self._tasks.spawn(self._open(request, need), "prefetch opening")
            return
        try:
            fetch = self._cache.parts.segment_fetches.ensure(entry, request.index, shard, need=need, need_at=request.need_at, reader=reader)
        except CacheFull:
            self.scheduler.refused(reader)
            return
        if fetch is not None:
            self._fetches[fetch] = shard.origin
            self._view.air[shard.origin] += 1
        self.scheduler.granted(request)

    async def _open(self, request: PrefetchRequest, need: float) -> None:
        shard, reader = request.shard, request.plan.reader
        try:
            entry, _ = await self._resolver.entry(shard, reader.job, need=need, need_at=request.need_at, reader=reader)
        except CacheFull:
            self.scheduler.unopened(shard.name)
        except DigestDiffers as error:
            log.info("shard %s is not fetched ahead of need for %g s (%s)", shard.name, WRONG_S, error)
            self._leave_alone(shard.name, shard.origin, WRONG_S)
        except ForebayError as error:
            first = not self.negative_cache.of_origin[shard.origin]  # in an outage it fails for thousands
            log.log(
                logging.INFO if first else logging.DEBUG,
                "shard %s could not be opened ahead of need (%s); its reader will ask again",
                shard.name,
                error,
            )
            self._leave_alone(shard.name, shard.origin)
        except Exception:  # a fault of ours, or of an origin's library: it must not be looked past for ever
            self._leave_alone(shard.name, shard.origin)
            raise
        else:
            self.scheduler.granted(request)
            self.scheduler.opened(shard.name)
            if entry.version.length == 0:
                self._leave_alone(shard.name, shard.origin)  # nothing of it stays here: forgotten at once, it would be opened again at once
            elif entry.passes:
                self._leave_alone(shard.name, shard.origin, WRONG_S)  # nor of this, whoever reads it
        finally:
            if self._plans.get(reader) is None:  # it went meanwhile
                self._cache.room.read_ahead.forget(reader)
            self._opening.pop(shard.name, None)
            self._woken.set()

    # What cannot be fetched for now

    def _leave_alone(self, name: str, origin: str, for_s: float | None = None) -> None:
        """``for_s`` None: as long as what failed."""
        self.negative_cache.add(name, origin, self._clock() + (FAILED_S if for_s is None else for_s))
        self.scheduler.failed(name)
