"""Room for segments that are to come: granted by the ledger, or refused, which is counted.

A refusal is no failure: a segment that is needed now passes through memory, one ahead of need is not asked for. Room is refused while the
disk fails too: nothing could be written there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.core.errors import CacheFull, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import ReservationRefused
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.transfer.flights import Flight
from forebay_proxy.transfer.limiter import DEMAND
from forebay_proxy.transfer.single_flight import Urgency

__all__ = ["SegmentGrants", "in_time"]

T = TypeVar("T")

HUNG_S = 12.0  # longer than any single call may take: the call that hangs says more than we could


async def in_time(tasks: BackgroundTasks, work: Coroutine[Any, Any, T], late: Callable[[T], object]) -> T:
    """Disk work that a flight waits for, ``HUNG_S`` seconds at most.

    Raises what ``work`` raises, and ``DiskFailed`` where the disk hangs: the work goes on without its flight, and ``late`` is given what
    it returns.
    """
    try:
        return await tasks.within(HUNG_S, work, "prepare", late)
    except TimeoutError:
        raise DiskFailed("allocate", "ETIMEDOUT", f"no room was made within {HUNG_S:g} s") from None


class SegmentGrants:
    """Sizes are in bytes. Nothing here but ``opening`` waits. Not thread-safe: the event loop's only."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        reclaimer: Reclaimer,
        disk: DiskHealth,
        events: Events,
        tasks: BackgroundTasks,
        clock: Callable[[], float],
    ) -> None:
        self._room = room
        self._reclaimer = reclaimer
        self._disk = disk
        self._events = events
        self._tasks = tasks
        self._clock = clock

    def __repr__(self) -> str:
        return f"<SegmentGrants of {self._room.ledger!r}, disk {'usable' if self._disk.usable else 'failing'}>"

    def demand(self, entry: Entry, index: int) -> Grant[Slice] | None:
        """Room for a segment that is needed now, its victims still to be removed; None: bypass."""
        if not self._disk.usable:
            self.refused("disk")
            return None
        try:
            return self._room.reserve(entry.segments.bytes_of(index))
        except CacheFull:
            self.refused("no-room")
            return None

    def inside(self, entry: Entry, index: int, reader: Hashable) -> Grant[Slice] | None:
        """Room for a segment that ``reader``, whose future is known, needs after the one it is in; None: no room that it may have.

        What is still needed leaves for two segments of it, and for no more.
        """
        if not self._disk.usable:
            return None
        try:
            return self._room.reserve_ahead(entry.segments.bytes_of(index), self._clock(), reader, (entry.key, index), inside=True)
        except CacheFull:
            return None

    def along(self, entry: Entry, index: int, flight: Flight) -> Grant[Slice] | None:
        """Room for a further segment of a body that cannot be asked in pieces, or for one that came without room; None: none for it.

        Ahead of need it takes what any prefetch may, and from its second segment on the whole rest of it must fit into that: a body that is
        begun and cannot be kept would be fetched in vain, again and again.
        """
        if flight.need < DEMAND or flight.passengers:
            return self.demand(entry, index)
        if not self._disk.usable:
            self.refused("disk")
            return None
        rest = 0 if flight.end is None else flight.end - entry.segments.span(index)[0]
        size, reader = entry.segments.bytes_of(index), flight.takeoff.ahead_for
        try:
            if reader is not None:
                self._room.admission.check_half(max(size, rest))
            return self._room.reserve_ahead(size, None, reader, (entry.key, index))
        except CacheFull:
            self.refused("no-room")
            return None

    async def opening(self, needed: Urgency, size: int) -> Grant[Slice] | None:
        """Room for a first segment that is guessed to have ``size`` bytes; None: bypass. Waits until its victims are removed."""
        if not self._disk.usable:
            self.refused("disk")
            return None
        try:
            grant = self._first(needed, size)
            if grant.victims:
                await in_time(self._tasks, self._reclaimer.clear(grant), lambda _: self._room.ledger.release(grant))
        except CacheFull:
            if needed.need < DEMAND:
                self.refused("no-room")
            return None
        except DiskFailed as error:
            self._disk.failed(error)
            self.refused("disk")
            return None
        return grant

    def larger(self, needed: Urgency, grant: Grant[Slice], size: int) -> Grant[Slice] | None:
        """``grant``, too small, with the missing bytes, whose victims are still to be removed; or None, and ``grant`` is released."""
        try:
            more = self._first(needed, size - grant.bytes)
        except CacheFull:
            self._room.ledger.release(grant)
            self.refused("no-room")
            return None
        more.join(grant)
        return more

    def _first(self, needed: Urgency, size: int) -> Grant[Slice]:
        if needed.need < DEMAND:
            return self._room.reserve(size)
        return self._room.reserve_ahead(size, needed.need_at, needed.reader, needed.place)

    def refused(self, why: str) -> None:
        """No room, and the counters know: "disk" (it fails) or "no-room"."""
        self._events.emit(ReservationRefused(why))
