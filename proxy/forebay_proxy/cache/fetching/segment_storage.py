"""The disk side of sinks: allocates a segment for its grant, then counts it as stored, or gives its room back.

It also handles what follows for the version: an outdated version, or a reader or fetch that leaves, must keep no room or entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from forebay_proxy.cache.integrity.digest_check import DigestCheck
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import EntryLeft, ShardCompleted
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import ReservationRefused
from forebay_proxy.core.facts.origins import SegmentFetched
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.policy.eviction.ledger import Grant
from forebay_proxy.store.files.file_io import InTheWay, Leased
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.transfer.limiter import AHEAD

__all__ = ["SegmentStorage"]

T = TypeVar("T")

HUNG_S = 12.0  # longer than any single disk call may take, so the call that hangs reports first


class SegmentStorage:
    """The disk side of sinks. Not thread-safe: used on the event loop alone."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        reclaimer: Reclaimer,
        files: OpenFiles,
        digest_check: DigestCheck,
        disk: DiskHealth,
        events: Events,
        tasks: BackgroundTasks,
        clock: Callable[[], float],
    ) -> None:
        self._room = room
        self._reclaimer = reclaimer
        self._files = files
        self.digest_check = digest_check
        self._disk = disk
        self._events = events
        self._tasks = tasks
        self._clock = clock

    # Allocation

    async def prepare(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile | None:
        """The entry's file with the segment allocated in it. None if the disk refuses; the grant is given back then."""

        def late(_: ShardFile) -> None:
            self.give_back(entry, index, grant)

        entry.stored.misplaced = False
        try:
            return await self._in_time(self._prepared(entry, index, grant), late)
        except DiskFailed as error:
            self.failed(entry, error)
            self.refused("disk")
        except CacheError as error:  # full, or a passed descriptor holds a file from before a restart
            entry.stored.misplaced = isinstance(error, (InTheWay, Leased))
            self.refused("no-room")
        return None

    async def parted(self, entry: Entry, grant: Grant[Slice]) -> list[Grant[Slice]]:
        """Remove the grant's victims, and split it into one grant per segment of ``entry``. Raises ``CacheFull``, ``DiskFailed``.

        All victims leave before the first byte: until they are gone nobody can use their room, and a body may take long.
        """
        await self._in_time(self._reclaimer.clear(grant), lambda _: self._room.ledger.release(grant))
        return self._room.ledger.part(grant, [entry.segments.bytes_of(index) for index in range(entry.segments.count)])

    async def _in_time(self, work: Coroutine[Any, Any, T], late: Callable[[T], object]) -> T:
        """Wait for disk work, ``HUNG_S`` seconds at most.

        Raises the error of ``work``, and ``DiskFailed`` if the disk hangs. Then the work goes on without its fetch, and ``late`` gets its
        result.
        """
        try:
            return await self._tasks.within(HUNG_S, work, "prepare", late)
        except TimeoutError:
            raise DiskFailed("allocate", "ETIMEDOUT", f"no room was made within {HUNG_S:g} s") from None

    def refused(self, why: str) -> None:
        """Count a refusal: "disk" (it fails) or "no-room"."""
        self._events.emit(ReservationRefused(why))

    async def _prepared(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        """Remove the grant's victims, then allocate.

        The call may outlast its fetch. The entry counts as in use until then, because a second entry would make the same file. Raises
        ``CacheError``; the grant is closed then, or a background task closes it soon.
        """
        entry.in_use.fetching += 1
        try:
            if grant.victims:
                await self._reclaimer.clear(grant)
            return await self._allocated(entry, index, grant)
        finally:
            entry.in_use.fetching -= 1
            if entry.in_use.idle:
                self._room.left(entry)

    async def _allocated(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        taken = False  # blocks may be allocated, now or later
        try:
            # The victims are gone now: two grants that wait for each other's victims would wait for ever. A removal can fail and keep the
            # segment, and the next one begin, hence the loop.
            while index in entry.in_use.leaving:
                await asyncio.shield(entry.in_use.leaving[index])
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

    def failed(self, entry: Entry, error: DiskFailed) -> None:
        self._disk.failed(error)
        if error.errno_name == "ENODATA":  # another program cut the file, which cannot be repaired under readers: the version leaves
            self._room.outdated(entry)

    def segment_stored(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice], fetch: Fetch) -> None:
        """A segment is complete on the disk, with this xxh3 ``checksum``: it can be read from now on, and its claim follows."""
        self._room.segment_stored(entry, index, checksum, grant)
        if entry.trust.digest_state is not None:
            self.digest_check.segment_stored(entry, index, checksum)
        if fetch.subscribers or (fetch.followed and entry.ranged):  # of a whole body, segments before its readers are unread
            entry.segments.unread.discard(index)
        prefetched = fetch.need >= AHEAD
        self._events.emit(SegmentFetched(self._clock() - fetch.began_at, stored=True, prefetched=prefetched))
        if entry.segments.complete and entry.stored.file is not None:
            self._tasks.spawn(self._sync(entry, entry.stored.file), "sync")
            self._events.emit(ShardCompleted(entry))
        self._room.changed()

    def segment_passed(self, entry: Entry, index: int, checksum: int, fetch: Fetch) -> None:
        """A segment has come into memory and is not stored. If it was hashed before, it must be the same."""
        self._events.emit(SegmentFetched(self._clock() - fetch.began_at, stored=False, prefetched=False))
        if entry.trust.was_hashed(index):
            self.digest_check.segment_stored(entry, index, checksum)

    async def _sync(self, entry: Entry, file: ShardFile) -> None:
        """One fdatasync per shard, after its last segment; no reader waits for it."""
        if entry.stored.file is not file:  # it left or was closed before its turn
            return
        try:
            await file.sync()
        except DiskFailed as error:
            self._disk.failed(error)

    def give_back(self, entry: Entry, index: int | None, grant: Grant[Slice]) -> None:
        """Free the blocks of a grant that did not become a segment, then the grant. ``index`` None: nothing was allocated."""
        if index is not None:
            entry.in_use.withdraw(index)
        self._tasks.spawn(self._abandoned(entry, index, grant), "abandon")

    async def _abandoned(self, entry: Entry, index: int | None, grant: Grant[Slice]) -> None:
        await self._reclaimer.abandon(entry, index, grant)
        self._drop_outdated(entry)  # it was not idle until now

    # Consequences

    def left(self, fact: EntryLeft) -> None:
        """Compare its digest if that is possible now, evict it if it is outdated, and forget it if nothing of it is stored."""
        entry = fact.entry
        if entry.trust.digest_state is not None:
            self.digest_check.hash_ready(entry)
        self._drop_outdated(entry)
        if entry.is_empty:
            self._reclaimer.retire(entry)

    def _drop_outdated(self, entry: Entry) -> None:
        """Evict a version that the origin no longer has, once no reader, fetch or removal is in it."""
        if entry.in_use.stale and entry.in_use.idle and entry.segments.stored_count:
            self._tasks.spawn(self._reclaimer.evict(entry), "drop")
