"""The readers inside a shard: from when a reader has its version until it has left.

A reader keeps its version cached. When it leaves, segments that it alone leased may be evicted. Waits of readers are counted here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.resident.facts import ReaderResumed, ReadersLeft
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.tar_check import TarCheck
from forebay_proxy.core.errors import ShardChanged, VersionLost
from forebay_proxy.core.events import Events
from forebay_proxy.telemetry.waits import READING, Waits
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ActiveReaders"]


class ActiveReaders:
    """The readings in progress, by HTTP and by descriptor. Nothing here waits. Not thread-safe: used on the event loop alone."""

    def __init__(self, *, room: SpaceManager, tar_check: TarCheck, events: Events, clock: Callable[[], float]) -> None:
        """``clock`` returns monotonic seconds."""
        self.waits = Waits(events, clock)
        self.resting = 0  # readers whose client is stuck
        self._inside: set[ShardReader] = set()
        self._room = room
        self._tar_check = tar_check
        self._events = events

    def __repr__(self) -> str:
        return f"<ActiveReaders {len(self._inside)} inside, {self.resting} resting>"

    def __len__(self) -> int:
        return len(self._inside)

    def __iter__(self) -> Iterator[ShardReader]:
        return iter(self._inside)

    @contextmanager
    def inside(self, reading: ShardReader) -> Iterator[ShardReader]:
        """``reading`` is inside its shard within the ``with``. Raises what the body raises."""
        self.enter(reading)
        try:
            yield reading
        except (ShardChanged, VersionLost):  # the next reader opens it again
            self._room.outdated(reading.entry)
            raise
        finally:
            self.leave(reading)
            self._room.left(reading.entry)

    def enter(self, reading: ShardReader) -> None:
        """``reading`` keeps its version from now on."""
        reading.entry.in_use.readers += 1
        self._inside.add(reading)

    def leave(self, reading: ShardReader) -> None:
        """``reading`` holds nothing any more; ``SpaceManager.left`` follows a little later."""
        if reading.entry.trust.no_tar != "":  # "": checked, and it may be a tar
            self._tar_check.ended(reading)
        self._inside.discard(reading)
        reading.entry.in_use.readers -= 1
        reading.give_up()
        if not reading.entry.in_use.readers:
            self._events.emit(ReadersLeft(reading.entry))

    def let_rest(self, now: float) -> int:
        """Call once a second: readers whose client is stuck give back what they hold. Returns their number. ``now`` is monotonic."""
        self.resting = sum(reading.rests(now) for reading in self._inside)
        return self.resting

    def is_reading(self, reader: ReaderName) -> bool:
        """Whether ``reader`` is inside a shard now, or waits for its opening."""
        return any(wait.reader == reader for wait in self.waits) or any(reading.reader == reader for reading in self._inside)

    @contextmanager
    def waiting(self, reading: ShardReader) -> Iterator[None]:
        """``reading`` waits for bytes within the ``with``; the seconds are added to its own."""
        try:
            with self.waits.waiting(reading.reader, reading.entry.name, reading.entry.origin, READING) as reading.wait:
                yield
        finally:
            if reading.wait is not None:
                reading.waited_s, reading.wait = reading.waited_s + reading.wait.seconds, None
            if reading.reader is not None:
                self._events.emit(ReaderResumed(reading.reader))
