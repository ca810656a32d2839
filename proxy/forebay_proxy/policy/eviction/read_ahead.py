"""Which segments were fetched ahead and are not read yet, and for which reader each came. Pure; the event loop's only.

Two bounds follow. All of these segments together take half of the cache at most. And a reader with two of them or more has nothing needed
leave for a further one, nor takes more than that half. So a reader that stands still for hours cannot keep others from reading ahead, and
a segment that is needed again leaves only for one that is read soon.

The price of so simple a bound: about 3 % more bytes in an epoch of eight readers than where each displacement is written down until the
epoch ends (1063 against 1032 MiB, ``python benchmarks/plans.py bytes --quick --case "8 readers, windows"``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from forebay_proxy.core.events import Events, Fact

__all__ = ["FEW", "ReadAhead", "ReaderCaughtUp"]

FEW = 2  # segments: one is in the air while the other is read


@dataclass(frozen=True, slots=True)
class ReaderCaughtUp(Fact):
    """A segment that came ahead for ``reader`` was read or is gone: it may have one more."""

    reader: Hashable


class ReadAhead:
    """Counted from the moment room is granted until the segment is read, leaves, or fails to come, or its reader passes it."""

    def __init__(self, events: Events | None = None) -> None:
        """Without ``events`` nobody hears who has caught up."""
        self._events = events or Events()
        self._reader: dict[tuple[str, int], Hashable] = {}  # (store key, segment) -> for whom it came
        self._sizes: dict[Hashable, dict[tuple[str, int], int]] = {}  # reader -> its segments, with their bytes
        self.unread_bytes = 0

    def __repr__(self) -> str:
        return f"<ReadAhead {len(self)} segments, {self.unread_bytes} bytes, of {len(self._sizes)} readers>"

    def __len__(self) -> int:
        return len(self._reader)

    def has_few(self, reader: Hashable) -> bool:
        """Whether less than two segments came ahead for ``reader``: something needed may leave for another one."""
        return len(self._sizes.get(reader, ())) < FEW

    def note(self, key: str, index: int, reader: Hashable, size: int) -> None:
        """Segment ``index`` of ``key`` comes ahead for ``reader``; ``size``: its bytes, 0 for one of the shard that the reader is in."""
        self.end(key, index)
        self._reader[key, index] = reader
        self._sizes.setdefault(reader, {})[key, index] = size
        self.unread_bytes += size

    def end(self, key: str, index: int) -> None:
        """It was read, or is gone; nothing where it was not noted."""
        if (key, index) not in self._reader:
            return
        reader = self._reader.pop((key, index))
        mine = self._sizes[reader]
        self.unread_bytes -= mine.pop((key, index))
        if not mine:
            del self._sizes[reader]
        self._events.emit(ReaderCaughtUp(reader))

    def passed(self, reader: Hashable, keeps: Callable[[str], bool]) -> None:
        """``reader`` moved on: only the store keys that ``keeps`` names still lie ahead of it."""
        if reader in self._sizes:
            kept: dict[str, bool] = {}
            for key, index in list(self._sizes[reader]):
                if key not in kept:
                    kept[key] = keeps(key)
                if not kept[key]:
                    self.end(key, index)

    def forget(self, reader: Hashable) -> None:
        """``reader`` is gone: what came for it counts no more."""
        self.passed(reader, lambda _: False)

    def check(self) -> None:
        """The sums are those of what is noted. Raises ``AssertionError``."""
        places = {place: reader for reader, mine in self._sizes.items() for place in mine}
        assert places == self._reader, self
        assert self.unread_bytes == sum(sum(mine.values()) for mine in self._sizes.values()), self
