"""Room for segments that are to come: granted by the ledger, or refused, which is counted; and what a reader owes for it is noted.

A refusal is no failure: a segment that is needed now passes through memory, one ahead of need is not asked for. Room is refused while the
disk fails too: nothing could be written there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Mapping
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

    def demand(self, entry: Entry, index: int, reader: Hashable) -> Grant[Slice] | None:
        """Room for a segment that is needed now, its victims still to be removed; None: bypass.

        ``reader`` None: of a reader without a plan.
        """
        if not self._disk.usable:
            self.refused("disk")
            return None
        try:
            grant = self._room.reserve(entry.segments.bytes_of(index), reader)
        except CacheFull:
            self.refused("no-room")
            return None
        self._note(entry.key, index, reader, self._room.admission.owed_for(grant))
        return grant

    def inside(self, entry: Entry, index: int, reader: Hashable) -> Grant[Slice] | None:
        """Room for a segment that ``reader``, whose future is known, needs after the one it is in; None: no room that it may have.

        It is the reader's lead like any other: what is still needed leaves for two segments of it, and for no more.
        """
        if not self._disk.usable:
            return None
        try:
            grant = self._room.reserve_ahead(entry.segments.bytes_of(index), self._clock(), reader, inside=True)
        except CacheFull:
            return None
        self._note(entry.key, index, reader, self._room.admission.owed_for(grant))
        return grant

    def along(self, entry: Entry, index: int, flight: Flight) -> Grant[Slice] | None:
        """Room for a further segment of a body that cannot be asked in pieces, or for one that came without room; None: none for it.

        Ahead of need it takes what any prefetch may, and from its second segment on the whole rest of it must fit into that: a body that is
        begun and cannot be kept would be fetched in vain, again and again.
        """
        if flight.need < DEMAND or flight.passengers:
            return self.demand(entry, index, flight)
        if not self._disk.usable:
            self.refused("disk")
            return None
        rest = 0 if flight.end is None else flight.end - entry.segments.span(index)[0]
        size, reader = entry.segments.bytes_of(index), flight.takeoff.ahead_for
        try:
            self._room.admission.may_come_ahead(max(size, rest), reader)
            grant = self._room.reserve_ahead(size, None, reader)
        except CacheFull:
            self.refused("no-room")
            return None
        if reader is not None:
            self._room.prefetch_debts.note(entry.key, index, reader, size, self._room.admission.owed_for(grant))
        return grant

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
        before = Counter(self._room.prefetch_debts.owed_on(*needed.place))
        try:
            more = self._first(needed, size - grant.bytes, noted=size, owed=before)
        except CacheFull:
            self._room.ledger.release(grant)
            self.refused("no-room")
            return None
        more.join(grant)
        return more

    def _first(self, needed: Urgency, size: int, *, noted: int | None = None, owed: Mapping[Hashable, int] | None = None) -> Grant[Slice]:
        """``noted``: with what was granted before, for which there is ``owed``."""
        if needed.need < DEMAND:
            grant = self._room.reserve(size, needed.reader)
        else:
            grant = self._room.reserve_ahead(size, needed.need_at, needed.reader)
        owed = Counter(owed) + Counter(self._room.admission.owed_for(grant))
        if needed.need < DEMAND:
            self._note(*needed.place, needed.reader, owed)
        elif needed.reader is not None:
            self._room.prefetch_debts.note(*needed.place, needed.reader, size if noted is None else noted, owed)
        return grant

    def _note(self, key: str, index: int, reader: Hashable, owed: Mapping[Hashable, int]) -> None:
        """A segment comes on demand; ``owed``: the bytes that left for it though they were needed."""
        if owed or self._room.admission.has_debts:
            self._room.prefetch_debts.note(key, index, reader, owed=owed, is_lead=False)

    def refused(self, why: str) -> None:
        """No room, and the counters know: "disk" (it fails) or "no-room"."""
        self._events.emit(ReservationRefused(why))
