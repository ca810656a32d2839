"""Counts the segments that were fetched ahead and not read yet, and the reader for which each came. Pure; used on the event loop alone.

There are two bounds. All these segments together fill at most half of the cache; only a reader that has fewer than two of them may exceed
that. And if a reader has two or more, no needed segment leaves for a further one. So a reader that stands still for hours cannot keep
others from reading ahead, and a needed segment leaves only for one that is read soon.

A record of each displacement, kept until the epoch ends, would save about 3 % of the bytes in an epoch of eight readers (1063 against 1032
MiB, ``python benchmarks/plans.py bytes --quick --case "8 readers, windows"``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from forebay_proxy.core.events import Events, Fact

__all__ = ["FEW", "ReadAhead", "ReaderCaughtUp"]

FEW = 2  # segments: one is being fetched while the other is read


@dataclass(frozen=True, slots=True)
class ReaderCaughtUp(Fact):
    """A segment fetched ahead for ``reader`` was read or has left: it may have one more."""

    reader: Hashable


class ReadAhead:
    """A segment counts from the moment it gets room until it is read, leaves, fails to arrive, or its reader passes it."""

    def __init__(self, events: Events | None = None) -> None:
        """Without ``events``, ``ReaderCaughtUp`` is not reported."""
        self._events = events or Events()
        self._reader: dict[tuple[str, int], Hashable] = {}  # (store key, segment) -> the reader for which it came
        self._sizes: dict[Hashable, dict[tuple[str, int], int]] = {}  # reader -> its segments, with their bytes
        self.unread_bytes = 0

    def __repr__(self) -> str:
        return f"<ReadAhead {len(self)} segments, {self.unread_bytes} bytes, of {len(self._sizes)} readers>"

    def __len__(self) -> int:
        return len(self._reader)

    def has_few(self, reader: Hashable) -> bool:
        """Whether fewer than two segments are ahead for ``reader``. Then a needed segment may leave for another one."""
        return len(self._sizes.get(reader, ())) < FEW

    def note(self, key: str, index: int, reader: Hashable, size: int) -> None:
        """Count segment ``index`` of ``key`` for ``reader``. ``size``: its bytes, or 0 for a segment of the shard that the reader is in."""
        self.end(key, index)
        self._reader[key, index] = reader
        self._sizes.setdefault(reader, {})[key, index] = size
        self.unread_bytes += size

    def end(self, key: str, index: int) -> None:
        """The segment was read or has left; does nothing if it was not counted."""
        if (key, index) not in self._reader:
            return
        reader = self._reader.pop((key, index))
        mine = self._sizes[reader]
        self.unread_bytes -= mine.pop((key, index))
        if not mine:
            del self._sizes[reader]
        self._events.emit(ReaderCaughtUp(reader))

    def passed(self, reader: Hashable, keeps: Callable[[str], bool]) -> None:
        """``reader`` moved on: drop its segments, except those of store keys for which ``keeps`` is true."""
        if reader in self._sizes:
            kept: dict[str, bool] = {}
            for key, index in list(self._sizes[reader]):
                if key not in kept:
                    kept[key] = keeps(key)
                if not kept[key]:
                    self.end(key, index)

    def forget(self, reader: Hashable) -> None:
        """``reader`` is gone: drop its segments."""
        self.passed(reader, lambda _: False)

    def check(self) -> None:
        """Check that the sums match the counted segments. Raises ``AssertionError``."""
        places = {place: reader for reader, mine in self._sizes.items() for place in mine}
        assert places == self._reader, self
        assert self.unread_bytes == sum(sum(mine.values()) for mine in self._sizes.values()), self
