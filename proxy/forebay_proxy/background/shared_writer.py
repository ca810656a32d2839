"""Writes what is complete here to the shared tier: each version once, the oldest first, one at a time.

Only bytes that are verified, claimed on the disk and not contradicted by a digest of the origin are written. Whoever reads them compares
each segment with its checksum again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress

from forebay_proxy.cache.fd_lender import UseHttp
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import ShardCompleted
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.core.errors import CacheError, ShardError
from forebay_proxy.shared.shared_tier import SharedTier

__all__ = ["SharedWriter"]

log = logging.getLogger("forebay")

MOST_WAITING = 4096  # a node that writes more slowly than it fetches leaves the oldest to others


class SharedWriter:
    """``run`` writes; ``completed`` hears of what there is. Not thread-safe: the event loop's only."""

    def __init__(self, tier: SharedTier, cache: ShardCache) -> None:
        self._tier = tier
        self._cache = cache
        self._waiting: OrderedDict[str, str] = OrderedDict()  # names of shards, by key
        self._come = asyncio.Event()

    def __repr__(self) -> str:
        return f"<SharedWriter {len(self._waiting)} shards to be written>"

    def completed(self, fact: ShardCompleted) -> None:
        entry = fact.entry
        if self._tier.to_write(entry.name, entry.version):
            self._waiting[entry.key] = entry.name
            self._tier.queued(entry.name)
            if len(self._waiting) > MOST_WAITING:
                self._tier.let_go(self._waiting.popitem(last=False)[1])
            self._come.set()
        else:
            self._tier.let_go(entry.name)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._come.wait()
            self._come.clear()
            while self._waiting:
                key, name = self._waiting.popitem(last=False)
                entry = self._cache.room.entries.get(key)
                if entry is not None and self._tier.to_write(name, entry.version):
                    await self._write(entry)
                else:  # it has left the cache already, or the tier is in trouble
                    self._tier.let_go(name)

    async def _write(self, entry: Entry) -> None:
        try:
            with suppress(ShardError, CacheError):  # it differs, or has left: ``held`` says so
                await self._cache.parts.digest_check.verdict(entry)
            async with self._cache.fd_lender.held(entry) as descriptor:
                sums = tuple(entry.segments.sums[index] for index in range(entry.segments.count))
                await self._tier.wrote(entry.name, entry.version, descriptor, sums)
        except UseHttp as error:
            self._tier.let_go(entry.name)
            log.info("shard %s is not written to the shared tier: %s", entry.name, error)
