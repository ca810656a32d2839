"""Which readers are idle: they hold what was fetched ahead of them, and take nothing of it. Pure; the clock is an argument."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

__all__ = ["MOST_STILL_S", "STILL_S", "IdleReaders", "patience_s"]

# A training step takes less, also with a large batch; a checkpoint, an evaluation or a debugger takes longer. It costs a reader nothing
# while nobody else wants the room, and one fetch a segment that somebody took.
STILL_S = 10.0
# Of a shard that a reader has all of (a passed descriptor) it is not told how far it was read: it may take as long as for so many shards.
SLOW_SHARDS = 4
# And no longer than this, however slow it was: who takes longer for one shard has the time to get a lead back that somebody took.
MOST_STILL_S = 300.0


def patience_s(rate: float, *, has_all: bool) -> float:
    """Seconds that a reader of ``rate`` shards a second may stay where it is; ``has_all``: it has all of a shard, and may be reading it."""
    return min(MOST_STILL_S, max(STILL_S, SLOW_SHARDS / rate)) if has_all else STILL_S


class IdleReaders:
    """Looked at once a second. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}  # reader -> (where it was last seen, since when)
        self.readers: dict[Hashable, None] = {}  # the idle ones

    def __repr__(self) -> str:
        return f"<IdleReaders {len(self.readers)} of {len(self._seen)} readers>"

    def look(self, places: Mapping[Hashable, tuple[object, float]], now: float) -> None:
        """``places``: reader -> (its place, in any terms; seconds it may stay there)."""
        seen, self._seen = self._seen, {}
        self.readers.clear()
        for reader, (place, patience_s) in places.items():
            before = seen.get(reader)
            since = now if before is None or before[0] != place else before[1]
            self._seen[reader] = place, since
            if now - since >= patience_s:
                self.readers[reader] = None
