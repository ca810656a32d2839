"""Fetches a list of shards into the cache because a person asked, and says how it goes."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.core.errors import CacheError, CacheFull, ForebayError, NotTarArchive, ShardError
from forebay_proxy.core.quantities import format_size
from forebay_proxy.core.shard import Shard
from forebay_proxy.core.tasks import Event, told_while
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.transfer.limiter import AHEAD
from forebay_proxy.wire.tar.first_bytes import next_step

__all__ = ["Warmer"]

AT_ONCE = 6  # shards in the air: small ones need several for a fast origin, with the segments below as much as prefetch has
SEGMENTS_AT_ONCE = 8  # of each shard
# Only these still ask for room, the others wait for what is on its way: where room ends, no more than these stay in parts.
ASKING_AT_ONCE = 2
NEED = AHEAD + 3600.0  # behind every plan: a person's head start must not slow a running job
_SERIAL = itertools.count(1)


class NotKept(CacheError):
    """Asking again would bring all of it again, and again nothing of it would be stored."""


class Warmer:
    """One request to warm; iterate ``run`` for its events."""

    def __init__(
        self,
        cache: ShardCache,
        resolver: VersionResolver,
        shards: list[Shard],
        asks: Callable[[str, int], None] = lambda name, size: None,
        tar_check: TarCheck | None = None,
    ) -> None:
        """``asks`` hears of so many bytes of a shard before they are asked for; it raises ``CacheFull`` where they must not be.

        With ``tar_check`` what is called a tar and is none fails, and does not stay.
        """
        self._cache = cache
        self._resolver = resolver
        self._shards = shards
        self._asks = asks
        self._tar_check = tar_check
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._results: Counter[str] = Counter()
        self._bytes = 0
        self._asking = asyncio.Semaphore(ASKING_AT_ONCE)
        self._full = False
        self._lengths: dict[str, int] = {}  # of those that are asked for now, in bytes, where their origins tell
        self._job = f"warm-{next(_SERIAL)}"  # each request is a job of its own: what it finds here is compared with its origin once more

    def run(self) -> AsyncIterator[Event]:
        """The events of ``POST /v1/warm``, the last one named "end". Closing the iterator stops asking for more."""
        return told_while(self._all, self._events, self._progress)

    def _progress(self) -> Event:
        done = sum(self._results.values())
        return {"event": "progress", "done_shards": done, "shards": len(self._shards), "done_bytes": self._bytes}

    async def _all(self) -> None:
        waiting = iter(self._shards)
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(self._some(waiting), name=f"warm {number}")
        counts = {result.replace("-", "_"): self._results[result] for result in ("stored", "present", "no-room", "failed")}
        self._events.put_nowait({"event": "end", **counts, "bytes": self._bytes})

    async def _some(self, waiting: Iterator[Shard]) -> None:
        for shard in waiting:
            before, error = self._bytes, ""
            why: dict[str, str] = {}
            try:
                result = await self.one(shard)
            except (CacheFull, NotKept) as full:
                result, why = "no-room", self._too_large(shard)
                error = why.get("cause", str(full))
                room = self._cache.room
                self._full |= room.ledger.free_bytes < room.layout.segment_bytes  # else something of this shard alone
            except ForebayError as failed:
                result, error = "failed", str(failed)
                why = {"cause": failed.cause if isinstance(failed, ShardError) else error, "next_step": failed.step}
            self._lengths.pop(shard.name, None)
            self._results[result] += 1
            self._events.put_nowait({
                "event": "shard", "shard": shard.name, "result": result, "bytes": self._bytes - before, "error": error, **why,
            })  # fmt: skip

    def _too_large(self, shard: Shard) -> dict[str, str]:
        """Why it can never be stored whole, and what to do; empty where it might."""
        ledger, length = self._cache.room.ledger, self._lengths.get(shard.name, 0)
        room = ledger.capacity_bytes - ledger.overhead_bytes
        if length <= room:
            return {}
        return {
            "cause": f"it has {format_size(length)}, and the whole cache has room for {format_size(max(0, room))}",
            "next_step": "give the sidecar a --cache-size that holds it; it can be read all the same, without being stored whole",
        }

    async def one(self, shard: Shard) -> str:
        """Fetch all of ``shard`` that is not here: "present" or "stored".

        Raises ``CacheFull``, ``NotKept``, and whatever its origin says.
        """
        async with self._asking:
            known = self._resolver.versions.current.get(shard.name)
            had = known is not None and known.segments.complete
            if self._full and not had:
                raise CacheFull("not begun: the cache has no room for more")
            if known is None:
                self._asks(shard.name, self._cache.room.layout.segment_bytes)  # its opening brings one
            self._cache.plans.epochs.declare(shard, self._cache.plans.clock())
            entry, _ = await self._resolver.entry(shard, self._job, need=NEED)
            self._lengths[shard.name] = entry.version.length or 0
            if entry.passes:
                raise NotKept(f"{entry.why_passed}, so nothing of it is stored")
            if had and entry is known:
                await self.judge(entry)
                return "present"
            air = await self._ask(entry, shard)
        for fetch in air:
            await self._landed(fetch)
        await self._cache.parts.digest_check.verdict(entry)
        await self.judge(entry)
        if not entry.segments.complete and not entry.ranged:
            raise NotKept("it comes whole or not at all, and there was no room for all of it")
        if not entry.segments.complete:
            raise CacheFull("not all of it could be stored: the cache has no room for more")
        return "stored"

    def doubts(self, entry: Entry) -> bool:
        """Whether ``judge`` may have something to say against it. Waits for nothing."""
        return self._tar_check is not None and self._tar_check.doubts(entry)

    async def judge(self, entry: Entry) -> None:
        """Raises ``NotTarArchive``, and lets go of what is here of it: the next request is to ask its origin anew."""
        why = await self._tar_check.of(entry) if self._tar_check is not None else ""
        if why:
            await self._cache.reclaimer.evict(entry, "admin")
            raise NotTarArchive(entry.name, why, next_step=next_step(why))

    async def _ask(self, entry: Entry, shard: Shard) -> deque[Fetch]:
        """Ask for every segment that is not here; returns those still in the air. Raises ``CacheFull``."""
        if entry.in_use.whole is not None:
            try:
                await self._landed(entry.in_use.whole)
            except CacheFull as full:
                raise NotKept(str(full)) from full
            return deque()
        air: deque[Fetch] = deque()
        if not entry.ranged:  # it is here, or its body has ended without room for it
            return air
        try:
            for index in range(entry.segments.layout.count(entry.version.length or 0)):
                fetch = self._cache.parts.segment_fetches.find(entry, index)
                if fetch is None and not entry.segments.has(index):
                    self._asks(shard.name, entry.segments.bytes_of(index))
                fetch = fetch or self._cache.parts.segment_fetches.ensure(entry, index, shard, need=NEED, need_at=None, reader=None)
                if fetch is not None:
                    air.append(fetch)
                if len(air) >= SEGMENTS_AT_ONCE:
                    await self._landed(air.popleft())
                if self._tar_check is not None and entry.trust.no_tar:
                    break  # its beginning has come, and is no tar's: the rest would come for nothing
        except CacheFull:
            for fetch in air:  # what there was room for is here before anything else is asked for
                await self._landed(fetch)
            raise
        return air

    async def _landed(self, fetch: Fetch) -> None:
        position = fetch.first
        while await fetch.grown_beyond(position):  # to the fetch's end: what is readable may still be on its way to the disk
            self._bytes += fetch.position - position
            position = fetch.position
