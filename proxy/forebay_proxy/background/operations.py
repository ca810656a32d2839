"""What a person asks of the cache: list shards, evict shards, fetch shards ahead."""

from __future__ import annotations

import asyncio
import fnmatch
import re
from collections.abc import AsyncIterator, Callable, Iterable

from forebay_proxy.background.verifier import Verifier
from forebay_proxy.background.warmer import Warmer
from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.cache.versions.resolver import VersionResolver
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.core import secret_parameters
from forebay_proxy.core.shard import Shard

__all__ = ["Operations"]

_AT_ONCE = 64  # shards that leave together: their claims are committed by one write of the index


class Operations:
    """The cache as ``/v1/shards``, ``/v1/evict`` and ``/v1/warm`` show it."""

    def __init__(
        self,
        cache: ShardCache,
        resolver: VersionResolver,
        segment_reader: SegmentReader,
        clock: Callable[[], float],
        tar_check: TarCheck | None = None,
    ) -> None:
        """``tar_check`` tells what of a person's shards is no tar, though its name says so."""
        self._tar_check = tar_check
        self._cache = cache
        self._resolver = resolver
        self._segment_reader = segment_reader
        self._clock = clock

    def shards(self, name: str = "") -> list[dict[str, object]]:
        """One object a version of which something is here, by name; of one shard alone, if it is named."""
        entries = sorted((entry for entry in self._cache.room.entries.values() if name in ("", entry.name)), key=lambda entry: entry.name)
        return [self._describe(entry) for entry in entries]

    def _describe(self, entry: Entry) -> dict[str, object]:
        length, segments = entry.version.length, entry.segments
        opened_at = self._cache.plans.epochs.last_opened(entry.name)
        return {
            "shard": entry.name,
            "key": entry.key,
            "length_bytes": length,
            "stored_bytes": sum(segments.span(index)[1] for index in segments.stored()),
            "segments": segments.stored_count,
            "segments_total": None if length is None else segments.layout.count(length),
            "complete": segments.complete,
            "in_pieces": entry.ranged,
            "identity": entry.version.identity,
            "readers": entry.in_use.readers,
            "last_opened_s_ago": None if opened_at is None else max(0.0, self._clock() - opened_at),
        }

    async def evict(self, patterns: list[str] | None) -> dict[str, int]:
        """Let go of what matches (``*`` and ``?``); None: everything. What a reader holds stays."""
        shards = freed = leased = 0
        async for entries in _in_parts(self.selected(patterns)):
            leased += sum(entry.segments.is_held for entry in entries)
            sizes = await asyncio.gather(*(self._cache.reclaimer.evict(entry, "admin") for entry in entries))
            shards += sum(size > 0 for size in sizes)
            freed += sum(sizes)
        return {"shards": shards, "bytes": freed, "leased": leased}

    def verify(self, patterns: list[str] | None) -> AsyncIterator[dict[str, object]]:
        """Compare what matches with its checksums; yields the events of ``POST /v1/verify``."""
        return Verifier(self._segment_reader, self.selected(patterns)).run()

    def selected(self, patterns: list[str] | None) -> AsyncIterator[Entry]:
        """What is here and matches, by name."""
        return _matching(sorted(self._cache.room.entries.values(), key=lambda entry: entry.name), patterns)

    def warm(self, shards: list[Shard]) -> AsyncIterator[dict[str, object]]:
        """Fetch ``shards`` ahead; yields the events of ``POST /v1/warm``, the last one named "end". Closing it stops asking for more."""
        return Warmer(self._cache, self._resolver, shards, tar_check=self._tar_check).run()


async def _in_parts(entries: AsyncIterator[Entry]) -> AsyncIterator[list[Entry]]:
    part: list[Entry] = []
    async for entry in entries:
        part.append(entry)
        if len(part) == _AT_ONCE:
            yield part
            part = []
    if part:
        yield part


async def _matching(entries: Iterable[Entry], patterns: list[str] | None) -> AsyncIterator[Entry]:
    """The ``entries`` whose names match one of ``patterns`` (None: all entries), in their order; others have their turn in between."""
    asked = [_less_proof(pattern) for pattern in patterns or ()]
    names = frozenset(asked)  # plain names, which long lists are made of, cost nothing each
    wild: list[tuple[str, re.Pattern[str]]] = []  # what a name must begin with, and all of it
    for pattern in asked:
        begin = re.split(r"[*?]", pattern, maxsplit=1)[0]
        if begin != pattern:
            await asyncio.sleep(0)
            # ``[`` stands for itself: URLs hold it more often than people mean a character class. Not kept by fnmatch, which keeps few.
            wild.append((begin, re.compile(fnmatch.translate(pattern.replace("[", "[[]")))))
    for number, entry in enumerate(entries):
        name = entry.name
        if wild or number % 64 == 0:
            await asyncio.sleep(0)
        if patterns is None or name in names or any(name.startswith(begin) and whole.match(name) for begin, whole in wild):
            yield entry


def _less_proof(pattern: str) -> str:
    """As names are: people paste the URL they read, signature and all."""
    if not pattern.startswith(("http:", "https:")) or "?" not in pattern:
        return pattern
    place, _, query = pattern.rpartition("?")  # an earlier one stands for any character
    kept, proof, _ = secret_parameters.cut(query)
    return f"{place}?{kept}" if kept else place if proof else pattern
