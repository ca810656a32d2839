"""Where flights end: the segment that a flight brought is stored, or its room is given back; and what follows for the shard version.

A version that is outdated, and a reader or a flight that leaves, are handled here too, so that no room or entry is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from forebay_proxy.cache.fill.relays import Relays
from forebay_proxy.cache.fill.segment_grants import SegmentGrants, in_time
from forebay_proxy.cache.fill.segment_writer import SegmentWriter
from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import EntryLeft, SegmentMissed, ShardCompleted, VersionOutdated
from forebay_proxy.cache.resident.open_files import OpenFiles, Retirement
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.errors import CacheError, DiskFailed, ShardChanged, bare
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import SegmentFetched
from forebay_proxy.core.shard import Shard
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files.file_io import InTheWay, Leased
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.transfer.flights import Flight, error_for_readers
from forebay_proxy.transfer.limiter import DEMAND

__all__ = ["Fill"]


class Fill:
    """The disk under segment writers and openings. Not thread-safe: the event loop's only."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        grants: SegmentGrants,
        reclaimer: Reclaimer,
        files: OpenFiles,
        retirement: Retirement,
        digest_check: DigestCheck,
        disk: DiskHealth,
        events: Events,
        tasks: BackgroundTasks,
        clock: Callable[[], float],
    ) -> None:
        self.grants = grants
        self.relays = Relays()
        self._room = room
        self._reclaimer = reclaimer
        self._files = files
        self._retirement = retirement
        self._digest_check = digest_check
        self._disk = disk
        self._events = events
        self._tasks = tasks
        self._clock = clock

    # Where it is written

    async def prepare(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile | None:
        """The entry's file with the segment allocated in it; None when the disk refuses, and then the grant is given back."""

        def late(_: ShardFile) -> None:
            self.give_back(entry, index, grant)

        entry.stored.misplaced = False
        try:
            return await in_time(self._tasks, self._prepared(entry, index, grant), late)
        except DiskFailed as error:
            self._failed(entry, error)
            self.grants.refused("disk")
        except CacheError as error:  # full, or a file of an earlier life is still held by a passed descriptor
            entry.stored.misplaced = isinstance(error, (InTheWay, Leased))
            self.grants.refused("no-room")
        return None

    async def _prepared(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        """Empty what the grant needs, then allocate. The call may outlast its flight: the entry counts as in use meanwhile, because a
        second entry would make the same file.

        Raises ``CacheError``; the grant is closed then, or closed soon by a chore.
        """
        entry.in_use.flying += 1
        try:
            if grant.victims:
                await self._reclaimer.clear(grant)
            return await self._allocated(entry, index, grant)
        finally:
            entry.in_use.flying -= 1
            if entry.in_use.idle:
                self._room.left(entry)

    async def _allocated(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        taken = False  # blocks may have been, or may be yet
        try:
            await _until_gone(entry, index)
            taken = True
            return await self._files.allocate(entry, index, grant)
        except BaseException as error:
            if isinstance(error, DiskFailed):
                taken = error.errno_name == "ETIMEDOUT" and entry.stored.filed
            if taken and isinstance(error, DiskFailed | asyncio.CancelledError):
                self.give_back(entry, index, grant)
            else:
                self._room.ledger.release(grant)
            raise

    def _failed(self, entry: Entry, error: DiskFailed) -> None:
        self._disk.failed(error)
        if error.errno_name == "ENODATA":  # another program cut the file: no mending while readers are in it, so the version leaves
            self.outdated(entry)

    def segment_stored(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice], flight: Flight) -> None:
        """A segment's bytes, with this xxh3 ``checksum``, are whole on the disk: it is readable from now on, and its claim follows."""
        self._room.segment_stored(entry, index, checksum, grant)
        if entry.trust.digest_state is not None:
            self._digest_check.segment_stored(entry, index, checksum)
        if flight.passengers or (flight.passengers.followed and entry.ranged):  # of a whole body, what came before its readers is unread
            entry.segments.unread.discard(index)
        prefetched = flight.need >= DEMAND
        size = entry.segments.span(index)[1]
        self._events.emit(SegmentFetched(entry.origin, size, self._clock() - flight.takeoff.at, stored=True, prefetched=prefetched))
        self._sync_complete(entry)
        self._room.changed()

    def _sync_complete(self, entry: Entry) -> None:
        if entry.segments.complete and entry.stored.file is not None:
            self._tasks.spawn(self._sync(entry, entry.stored.file), "sync")
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
        """The file of ``grant``'s segment is about to be cut: until ``fit`` the disk may hold its blocks or not."""
        self._room.ledger.freeing(grant)

    def fit(self, entry: Entry, grant: Grant[Slice], size: int) -> None:
        """The segment has only ``size`` bytes: give the rest of its grant back."""
        self._room.fit(entry, grant, size)

    def length_known(self, entry: Entry) -> None:
        """The length became known with the end of the body: what is here may be claimed now."""
        self._room.claim(entry)
        self._sync_complete(entry)

    def give_back(self, entry: Entry | None, index: int | None, grant: Grant[Slice]) -> None:
        """Free what was allocated for a grant that did not become a segment, then the grant; ``index`` None: nothing was allocated."""
        if entry is not None and index is not None:
            entry.in_use.withdraw(index)
        self._tasks.spawn(self._abandoned(entry, index, grant), "abandon")

    async def _abandoned(self, entry: Entry | None, index: int | None, grant: Grant[Slice]) -> None:
        await self._reclaimer.abandon(entry, index, grant)
        if entry is not None:  # it was not idle until now
            self._drop_outdated(entry)

    # What the origin says of the whole

    def digests_offered(self, entry: Entry, offered: tuple[Digest, ...]) -> None:
        """An answer named these digests of the whole shard."""
        if offered:
            self._digest_check.digests_offered(entry, offered)

    def begun(self, entry: Entry, shard: Shard) -> None:
        """A flight of ``entry`` takes off."""
        if shard.url.scheme in self._digest_check.questions.schemes:
            self._digest_check.questions.begun(entry, shard)

    def passes_by(self, entry: Entry) -> None:
        """A segment of ``entry`` passes through memory: its digest may have become impossible to compare."""
        self._digest_check.hash_ready(entry)

    # What follows

    def left(self, fact: EntryLeft) -> None:
        """Look whether its digest can be compared now, evict what is outdated, forget a version of which nothing is here."""
        entry = fact.entry
        if entry.trust.digest_state is not None:
            self._digest_check.hash_ready(entry)
        self._drop_outdated(entry)
        if entry.is_empty:
            self._retirement.retire(entry)

    def _drop_outdated(self, entry: Entry) -> None:
        """Evict a version that the origin has no more, once no reader, flight or removal is in it."""
        if entry.in_use.stale and entry.in_use.idle and entry.segments.stored_count:
            self._tasks.spawn(self._drop(entry), "drop")

    async def _drop(self, entry: Entry) -> None:
        await self._reclaimer.evict(entry)

    def outdated(self, entry: Entry) -> None:
        """The origin has another version now: this one serves the readers inside, and leaves."""
        if not entry.in_use.stale:
            entry.in_use.stale = True
            self._events.emit(VersionOutdated(entry))
            self._room.claim(entry)
            self._room.left(entry)

    async def run_flight(self, entry: Entry, flight: Flight, writer: SegmentWriter, filling: Awaitable[None]) -> None:
        """Run ``filling``; whatever happens, nothing of the segment writer stays behind."""
        try:
            try:
                await filling
            finally:
                await writer.finish_writing()
        except BaseException as error:
            flight.error = bare(error_for_readers(error))  # before its bytes are given back: no reader may read them from now on
            if isinstance(error, ShardChanged):
                self.outdated(entry)
            if isinstance(error, DiskFailed):
                self._failed(entry, error)
            raise
        finally:
            writer.close()
            entry.in_use.flying -= 1
            layout = entry.segments.layout
            first = layout.index_of(flight.first)
            if flight.takeoff.relay:
                self.relays.ended(entry.key, flight)
            elif not entry.segments.has(first):
                self._room.read_ahead.end(entry.key, first)
                self._events.emit(SegmentMissed(entry, first, flight))
            if not entry.ranged and flight is entry.in_use.stream and not entry.segments.complete:
                for index in {layout.index_of(flight.on_disk.end), layout.index_of(flight.position)}:
                    if not entry.segments.has(index):  # it was on its way
                        self._room.read_ahead.end(entry.key, index)
                # Bodies without a length that together exceed the room fill it together, and none stays. Admitting them one by one would
                # need the length, which is not known; so the room is refused segment by segment, and no reader waits for it.
                self._events.emit(SegmentMissed(entry, 0, flight))
                self.outdated(entry)  # part of a body that cannot be asked in pieces is of no use to later readers
            self._room.left(entry)


async def _until_gone(entry: Entry, index: int) -> None:
    """Wait until no removal of the segment is running: one can fail and keep the segment, and the next one begin, hence the loop.

    Call it only with no victims left to clear: two grants that wait for each other's victims would wait for ever.
    """
    while index in entry.in_use.leaving:
        await asyncio.shield(entry.in_use.leaving[index])
