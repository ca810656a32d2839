"""Where flights end: room is granted for what they bring, it becomes stored, or is given back; and what follows for the shard version.

An origin that has another version now, a reader or a flight that leaves: all of it comes by here, so that nothing is left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from typing import Any, TypeVar

from forebay_proxy.cache.resident.digest_check import DigestCheck
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import CacheChanged, SegmentMissed, ShardCompleted, VersionOutdated
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.retirement import Retirement
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.cache.segment_writer import SegmentWriter
from forebay_proxy.core import events
from forebay_proxy.core.background_tasks import BackgroundTasks
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import CacheError, CacheFull, DiskFailed, ShardChanged, bare
from forebay_proxy.core.events import Events
from forebay_proxy.core.segments import index_of, segment_span
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files.file_io import InTheWay, Leased
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.transfer.flights import Flight, told
from forebay_proxy.transfer.limiter import DEMAND
from forebay_proxy.transfer.urgency import Urgency

__all__ = ["Fill"]

T = TypeVar("T")

HUNG_S = 12.0  # longer than any single call may take: the call that hangs says more than we could


class Fill:
    """The disk under landings and openings. Not thread-safe: the event loop's only.

    ``files_wanted`` counts the shards that were refused a file because the file system has no inodes left for more.
    """

    def __init__(
        self,
        *,
        room: SpaceManager,
        clearing: Reclaimer,
        retiring: Retirement,
        digest_check: DigestCheck,
        disk: DiskHealth,
        events: Events,
        chores: BackgroundTasks,
        forget: Callable[[Entry], None],
        clock: Callable[[], float],
    ) -> None:
        """``forget``: an entry is not what its name means any more."""
        self.files_wanted = 0
        self._room = room
        self._clearing = clearing
        self._retiring = retiring
        self._digest_check = digest_check
        self._disk = disk
        self._events = events
        self._chores = chores
        self._forget = forget
        self._clock = clock

    # Room for what is to come

    def grant(self, entry: Entry, index: int, reader: Hashable) -> Grant[Slice] | None:
        """Room for a segment that is needed now; ``reader`` None: of nobody whose future is known."""
        if not self._disk.usable:
            self._events.emit(events.ReservationRefused("disk"))
            return None
        try:
            grant = self._room.reserve(entry.segments.bytes_of(index), reader)
        except CacheFull:
            self._events.emit(events.ReservationRefused("no-room"))
            return None
        self._room.displacers.note(entry.key, index, reader, owed=self._room.owed_for(grant), is_lead=False)
        return grant

    def grant_inside(self, entry: Entry, index: int, reader: Hashable) -> Grant[Slice] | None:
        """Room for a segment that ``reader``, whose future is known, needs after the one it is in; None: no room that it may have.

        It is the reader's lead like any other: what is still needed leaves for two segments of it, and for no more.
        """
        if not self._disk.usable:
            return None
        try:
            grant = self._room.reserve_ahead(entry.segments.bytes_of(index), self._clock(), reader, inside=True)
        except CacheFull:
            return None
        self._room.displacers.note(entry.key, index, reader, owed=self._room.owed_for(grant), is_lead=False)
        return grant

    def grant_along(self, entry: Entry, index: int, flight: Flight) -> Grant[Slice] | None:
        """Room for a further segment of a body that cannot be asked in pieces, or for one that came without room; None: none for it.

        Ahead of need it takes what any prefetch may, and from its second segment on the whole rest of it must fit into that: what is
        begun and cannot be kept would be fetched for nobody, again and again.
        """
        if flight.need < DEMAND or flight.aboard_count:
            return self.grant(entry, index, flight)
        if not self._disk.usable:
            self._events.emit(events.ReservationRefused("disk"))
            return None
        rest = 0 if flight.end is None else flight.end - segment_span(index, flight.end)[0]
        size = entry.segments.bytes_of(index)
        try:
            self._room.may_come_ahead(max(size, rest), flight.ahead_for)
            grant = self._room.reserve_ahead(size, None, flight.ahead_for)
        except CacheFull:
            self._events.emit(events.ReservationRefused("no-room"))
            return None
        if flight.ahead_for is not None:
            self._room.displacers.note(entry.key, index, flight.ahead_for, size, self._room.owed_for(grant))
        return grant

    async def first_grant(self, needed: Urgency, size: int) -> Grant[Slice] | None:
        """Room for a first segment that is guessed to have ``size`` bytes, its victims removed; None: bypass."""
        if self._disk.no_files and needed.need >= DEMAND:  # it would pass through memory, for nobody
            self._events.emit(events.ReservationRefused("inodes"))
            return None
        if not self._disk.usable:
            self._events.emit(events.ReservationRefused("disk"))
            return None
        try:
            grant = self._first(needed, size)
            if grant.victims:
                await self._in_time(self._clearing.clear(grant), lambda _: self._room.ledger.release(grant))
        except CacheFull:
            if needed.need < DEMAND:
                self._events.emit(events.ReservationRefused("no-room"))
            return None
        except DiskFailed as error:
            self._disk.failed(error)
            self._events.emit(events.ReservationRefused("disk"))
            return None
        return grant

    def larger(self, needed: Urgency, grant: Grant[Slice], size: int) -> Grant[Slice] | None:
        """``grant``, which is too small, with what it lacks, whose victims are still to be removed; None, and ``grant`` is given back."""
        before = Counter(self._room.displacers.owed_on(*needed.place))
        try:
            more = self._first(needed, size - grant.bytes, noted=size, owed=before)
        except CacheFull:
            self._room.ledger.release(grant)
            self._events.emit(events.ReservationRefused("no-room"))
            return None
        self._room.ledger.join(more, grant)
        return more

    def _first(self, needed: Urgency, size: int, *, noted: int | None = None, owed: Mapping[Hashable, int] | None = None) -> Grant[Slice]:
        """``noted``: with what was granted before, for which there is ``owed``."""
        if needed.need < DEMAND:
            grant = self._room.reserve(size, needed.reader)
        else:
            grant = self._room.reserve_ahead(size, needed.need_at, needed.reader)
        owed = Counter(owed) + Counter(self._room.owed_for(grant))
        if needed.need < DEMAND:
            self._room.displacers.note(*needed.place, needed.reader, owed=owed, is_lead=False)
        elif needed.reader is not None:
            self._room.displacers.note(*needed.place, needed.reader, size if noted is None else noted, owed)
        return grant

    async def _in_time(self, work: Coroutine[Any, Any, T], late: Callable[[T], object]) -> T:
        """Disk work that a flight waits for; DiskFailed where the disk hangs, and the work goes on without it."""
        try:
            return await self._chores.within(HUNG_S, work, "prepare", late)
        except TimeoutError:
            raise DiskFailed("allocate", "ETIMEDOUT", f"no room was made within {HUNG_S:g} s") from None

    async def prepare(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile | None:
        """The entry's file with the segment allocated in it; None when the disk refuses, and then the grant is given back."""
        if self._disk.no_files and not entry.stored.filed:
            self._events.emit(events.ReservationRefused("inodes"))
            self.files_wanted += 1
            self.give_back(None, None, grant)
            return None

        def late(_: ShardFile) -> None:
            self.give_back(entry, index, grant)

        entry.stored.misplaced = False
        try:
            return await self._in_time(self._prepared(entry, index, grant), late)
        except DiskFailed as error:
            self._failed(entry, error)
            self._events.emit(events.ReservationRefused("disk"))
        except CacheError as error:  # full, or a file of an earlier life is still held by a passed descriptor
            entry.stored.misplaced = isinstance(error, (InTheWay, Leased))
            self._events.emit(events.ReservationRefused("no-room"))
        return None

    async def _prepared(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        """As ``Reclaimer.prepare``. It may outlast its flight: the entry is not forgotten meanwhile, or two would make the same file."""
        entry.in_use.flying += 1
        try:
            return await self._clearing.prepare(entry, index, grant)
        finally:
            entry.in_use.flying -= 1
            if entry.in_use.idle:
                self.left(entry)

    def _failed(self, entry: Entry, error: DiskFailed) -> None:
        self._disk.failed(error)
        if error.errno_name == "ENODATA":  # somebody cut the file: it cannot be mended while it is read, so it leaves
            self.outdated(entry)

    def landed(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice], flight: Flight) -> None:
        """A segment is whole on the disk."""
        self._room.landed(entry, index, checksum, grant)
        self._digest_check.landed(entry, index, checksum)
        self._disk.worked()
        if flight.aboard_count or (flight.followed and entry.ranged):  # of a whole body, what came before its readers is unread
            entry.segments.unread.discard(index)
        prefetched = flight.need >= DEMAND
        size = segment_span(index, entry.version.length)[1]
        self._events.emit(events.SegmentLanded(entry.origin, size, self._clock() - flight.began_at, stored=True, prefetched=prefetched))
        self._sync_complete(entry)
        self._events.emit(CacheChanged())

    def _sync_complete(self, entry: Entry) -> None:
        if entry.segments.complete and entry.stored.file is not None:
            self._chores.spawn(self._sync(entry, entry.stored.file), "sync")
            self._events.emit(ShardCompleted(entry))

    async def _sync(self, entry: Entry, file: ShardFile) -> None:
        """One fdatasync a shard, after its last segment and off the readers' path."""
        if entry.stored.file is not file:  # it left or was closed before its turn came
            return
        try:
            await file.sync()
        except DiskFailed as error:
            self._disk.failed(error)

    def cutting(self, grant: Grant[Slice]) -> None:
        self._room.ledger.doubt(grant)

    def fit(self, entry: Entry, grant: Grant[Slice], size: int) -> None:
        self._room.fit(entry, grant, size)

    def settled(self, entry: Entry) -> None:
        """The length became known with the end of the body: what is here may be claimed now."""
        self._room.claim(entry)
        self._sync_complete(entry)

    def give_back(self, entry: Entry | None, index: int | None, grant: Grant[Slice]) -> None:
        if entry is not None and index is not None:
            self._room.withdraw(entry, index)
        self._chores.spawn(self._clearing.abandon(entry, index, grant), "abandon")

    # What the origin says of the whole

    def told(self, entry: Entry, offered: tuple[Digest, ...]) -> None:
        self._digest_check.told(entry, offered)

    def begun(self, entry: Entry, shard: Shard) -> None:
        """A flight of ``entry`` takes off."""
        self._digest_check.begun(entry, shard)

    def passes_by(self, entry: Entry) -> None:
        self._digest_check.look(entry)

    # What follows

    def left(self, entry: Entry) -> None:
        """A reader or a flight is gone from ``entry``."""
        self._digest_check.look(entry)
        if entry.in_use.stale and entry.in_use.idle and entry.segments.stored_count:
            self._chores.spawn(self._drop(entry), "drop")
        self._room.touch(entry)
        self._retiring.retire(entry)
        self._events.emit(CacheChanged())

    async def _drop(self, entry: Entry) -> None:
        await self._clearing.evict(entry)

    def outdated(self, entry: Entry) -> None:
        """The origin has another version now: this one serves who is inside, and leaves."""
        if not entry.in_use.stale:
            entry.in_use.stale = True
            self._events.emit(VersionOutdated(entry))
            self._forget(entry)
            self._room.claim(entry)
            self._room.touch(entry)
            self.left(entry)

    async def flown(self, entry: Entry, flight: Flight, writer: SegmentWriter, filling: Awaitable[None]) -> None:
        """Run ``filling``; whatever happens, nothing of the landing stays behind."""
        try:
            try:
                await filling
            finally:
                await writer.settled()
        except BaseException as error:
            flight.error = bare(told(error))  # before its bytes are given back: nobody may read them from now on
            if isinstance(error, ShardChanged):
                self.outdated(entry)
            if isinstance(error, DiskFailed):
                self._failed(entry, error)
            raise
        finally:
            writer.close()
            entry.in_use.flying -= 1
            if not entry.segments.has(index_of(flight.first)):
                self._room.displacers.settle(entry.key, index_of(flight.first))
                self._events.emit(SegmentMissed(entry, index_of(flight.first), flight))
            if not entry.ranged and flight is entry.in_use.stream and not entry.segments.complete:
                for index in {index_of(flight.stored_end), index_of(flight.position)}:
                    if not entry.segments.has(index):  # it was on its way
                        self._room.displacers.settle(entry.key, index)
                # Bodies without a length that together exceed the room fill it together, and none stays. Admitting them one by one would
                # need the length nobody tells; so the room is refused segment by segment, and no reader waits for it.
                self._events.emit(SegmentMissed(entry, 0, flight))
                self.outdated(entry)  # part of a body that cannot be asked in pieces is of use to nobody who comes later
            self.left(entry)
