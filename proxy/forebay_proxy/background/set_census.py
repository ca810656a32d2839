"""How much of each declared set is here, counted a slice at a time: thousands of shards must not cost a turn of the loop. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.policy.plans.sets.shard_sets import ShardSet

__all__ = ["Here", "SetCensus"]

SLICE = 1000  # entries a call: two milliseconds


@dataclass(slots=True)
class Here:
    """Of one set: ``complete`` shards that may be tars, and bytes stored (a part of a shard counts in whole segments)."""

    complete: int = 0
    stored_bytes: int = 0


class SetCensus:
    """Goes round and round; what it tells is the last whole round. Not thread-safe: the event loop's only."""

    def __init__(self, entries: Callable[[], Iterable[Entry]]) -> None:
        self._entries = entries
        self._left: list[Entry] = []
        self._counts: dict[str, Here] = {}
        self._told: dict[str, Here] = {}

    def of(self, key: str) -> Here | None:
        """None: not counted yet."""
        return self._told.get(key)

    def counts(self, key: str) -> dict[str, int | None]:
        """For ``/v1/status``; None: not counted yet."""
        here = self.of(key)
        return {"complete": here.complete if here else None, "stored_bytes": here.stored_bytes if here else None}

    def step(self, sets: Mapping[str, ShardSet]) -> None:
        """Count some more; ``sets`` by key. One that is declared meanwhile is counted from the next round on."""
        if not self._left:
            self._left = list(self._entries())
            self._counts = {key: Here() for key in sets}
        slice_, self._left = self._left[-SLICE:], self._left[:-SLICE]
        for entry in slice_:
            self._count(entry, sets)
        if not self._left:
            self._told = {key: here for key, here in self._counts.items() if key in sets}

    def _count(self, entry: Entry, sets: Mapping[str, ShardSet]) -> None:
        segments = entry.segments
        if not segments.stored_count:
            return
        for key, here in self._counts.items():
            shards = sets.get(key)
            if shards is not None and shards.index(entry.name) is not None:
                here.complete += segments.complete and not entry.trust.no_tar
                size = segments.stored_count * segments.layout.segment_bytes
                here.stored_bytes += size if segments.length is None else min(size, segments.length)
