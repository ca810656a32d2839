"""Which readers are idle: they hold what was fetched ahead of them, and take nothing of it. Pure; the clock is an argument."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

__all__ = ["STILL_S", "IdleReaders"]

# A training step takes less, also with a large batch; a checkpoint, an evaluation or a debugger takes longer. It costs a reader nothing
# while nobody else wants the room, and one fetch a segment that somebody took.
STILL_S = 10.0


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
