"""What a person asks of the cache: what is here, let go of it, fetch it ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from forebay_proxy.cache import ShardCache
from forebay_proxy.entry import Entry
from forebay_proxy.openings import Openings
from forebay_proxy.segments import segment_count, segment_span
from forebay_proxy.selection import selected
from forebay_proxy.shard import Shard
from forebay_proxy.verifying import Verifying
from forebay_proxy.warm import Warming

__all__ = ["House"]


class House:
    """The cache as ``/v1/shards``, ``/v1/evict`` and ``/v1/warm`` show it."""

    def __init__(
        self, cache: ShardCache, openings: Openings, clock: Callable[[], float], declare: Callable[[str], None] = lambda text: None
    ) -> None:
        """``declare`` hears of the set that a person warms."""
        self._declare = declare
        self._cache = cache
        self._openings = openings
        self._clock = clock

    def shards(self) -> list[dict[str, object]]:
        """One object a version of which something is here, by name."""
        entries = sorted(self._cache.room.entries.values(), key=lambda entry: entry.name)
        return [self._describe(entry) for entry in entries]

    def _describe(self, entry: Entry) -> dict[str, object]:
        length, segments = entry.version.length, entry.segments
        opened_at = self._cache.plans.last_opened(entry.name)
        return {
            "shard": entry.name,
            "key": entry.key,
            "length_bytes": length,
            "stored_bytes": sum(segment_span(index, length)[1] for index in segments.stored()),
            "segments": segments.stored_count,
            "segments_total": None if length is None else segment_count(length),
            "complete": segments.complete,
            "identity": entry.version.identity,
            "readers": entry.readers,
            "last_opened_s_ago": None if opened_at is None else max(0.0, self._clock() - opened_at),
        }

    async def evict(self, patterns: list[str] | None) -> dict[str, int]:
        """Let go of what matches (``*`` and ``?``); None: everything. What a reader holds stays."""
        shards = freed = leased = 0
        async for entry in self.selected(patterns):
            leased += entry.segments.is_held
            size = await self._cache.clearing.evict(entry)
            shards += size > 0
            freed += size
        return {"shards": shards, "bytes": freed, "leased": leased}

    def verify(self, patterns: list[str] | None, rate_bytes_s: float) -> AsyncIterator[dict[str, object]]:
        """Compare what matches with its checksums; yields the events of ``POST /v1/verify``."""
        return Verifying(self._cache.inspection, self.selected(patterns), rate_bytes_s).run()

    def selected(self, patterns: list[str] | None) -> AsyncIterator[Entry]:
        """What is here and matches, by name."""
        return selected(sorted(self._cache.room.entries.values(), key=lambda entry: entry.name), patterns)

    def warm(self, shards: list[Shard], set_name: str | None = None) -> AsyncIterator[dict[str, object]]:
        """Fetch ``shards`` ahead, which are of the set ``set_name``; yields the events of ``POST /v1/warm``."""
        if set_name is not None:
            self._declare(set_name)
        return Warming(self._cache, self._openings, shards).run()
