"""Who holds which segments here: what is leased does not leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import CacheChanged, EntryLeft
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.events import Events

__all__ = ["SegmentLeases"]


class SegmentLeases:
    """The leases of all readers, by segment; those of passed descriptors are ``FdLeases``. The event loop's only.

    ``count`` says how many segments somebody holds.
    """

    def __init__(self, room: SpaceManager, events: Events) -> None:
        self.count = 0
        self._room = room
        self._events = events

    def __repr__(self) -> str:
        return f"<SegmentLeases of {self.count} segments>"

    def lease(self, entry: Entry, index: int) -> None:
        """One more holds it."""
        if index not in entry.segments.leases:
            self.count += 1
        entry.segments.lease(index)

    def release(self, entry: Entry, index: int) -> None:
        """One of those who leased it has it no more."""
        entry.segments.release(index)
        if index not in entry.segments.leases:
            self.count -= 1
            if index not in entry.segments.unread:  # read to its end, or left: only now is its room anybody's
                self._room.prefetch_debts.read(entry.key, index)
        self._room.touch(entry)  # what its readers have behind them may leave
        self._events.emit(CacheChanged())

    @contextmanager
    def holding(self, entry: Entry, index: int) -> Iterator[None]:
        """Keep a segment from leaving for the length of the ``with``, without being its reader."""
        self.lease(entry, index)
        try:
            yield
        finally:
            self.release(entry, index)
            self._events.emit(EntryLeft(entry))
