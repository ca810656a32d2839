"""The disk under sinks: a segment is allocated for its grant, and is stored, or its room is given back; and what follows for the version.

A version that is outdated, and a reader or a fetch that leaves, are handled here too, so that no room or entry is left behind.
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

HUNG_S = 12.0  # longer than any single call may take: the call that hangs says more than we could


class SegmentStorage:
    """The disk under sinks. Not thread-safe: the event loop's only."""

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

    # Where it is written

    async def prepare(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile | None:
        """The entry's file with the segment allocated in it; None when the disk refuses, and then the grant is given back."""

        def late(_: ShardFile) -> None:
            self.give_back(entry, index, grant)

        entry.stored.misplaced = False
        try:
            return await self._in_time(self._prepared(entry, index, grant), late)
        except DiskFailed as error:
            self.failed(entry, error)
            self.refused("disk")
        except CacheError as error:  # full, or a file of an earlier life is still held by a passed descriptor
            entry.stored.misplaced = isinstance(error, (InTheWay, Leased))
            self.refused("no-room")
        return None

    async def parted(self, entry: Entry, grant: Grant[Slice]) -> list[Grant[Slice]]:
        """Remove the grant's victims, and part it: a grant for each segment of ``entry``. Raises ``CacheFull``, ``DiskFailed``.

        All of them at once, before the first byte: what is to leave is nobody's until it is gone, and a body may take long.
        """
        await self._in_time(self._reclaimer.clear(grant), lambda _: self._room.ledger.release(grant))
        return self._room.ledger.part(grant, [entry.segments.bytes_of(index) for index in range(entry.segments.count)])

    async def _in_time(self, work: Coroutine[Any, Any, T], late: Callable[[T], object]) -> T:
        """Disk work that a fetch waits for, ``HUNG_S`` seconds at most.

        Raises what ``work`` raises, and ``DiskFailed`` where the disk hangs: the work goes on without its fetch, and ``late`` is given what
        it returns.
        """
        try:
            return await self._tasks.within(HUNG_S, work, "prepare", late)
        except TimeoutError:
            raise DiskFailed("allocate", "ETIMEDOUT", f"no room was made within {HUNG_S:g} s") from None

    def refused(self, why: str) -> None:
        """No room, and the counters know: "disk" (it fails) or "no-room"."""
        self._events.emit(ReservationRefused(why))

    async def _prepared(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        """Empty what the grant needs, then allocate. The call may outlast its fetch: the entry counts as in use meanwhile, because a
        second entry would make the same file.

        Raises ``CacheError``; the grant is closed then, or closed soon by a chore.
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
        taken = False  # blocks may have been, or may be yet
        try:
            # With no victims left to clear: two grants that wait for each other's would wait for ever. A removal can fail and keep the
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
        if error.errno_name == "ENODATA":  # another program cut the file: no mending while readers are in it, so the version leaves
            self._room.outdated(entry)

    def segment_stored(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice], fetch: Fetch) -> None:
        """A segment's bytes, with this xxh3 ``checksum``, are whole on the disk: it is readable from now on, and its claim follows."""
        self._room.segment_stored(entry, index, checksum, grant)
        if entry.trust.digest_state is not None:
            self.digest_check.segment_stored(entry, index, checksum)
        if fetch.subscribers or (fetch.followed and entry.ranged):  # of a whole body, what came before its readers is unread
            entry.segments.unread.discard(index)
        prefetched = fetch.need >= AHEAD
        self._events.emit(SegmentFetched(self._clock() - fetch.began_at, stored=True, prefetched=prefetched))
        if entry.segments.complete and entry.stored.file is not None:
            self._tasks.spawn(self._sync(entry, entry.stored.file), "sync")
            self._events.emit(ShardCompleted(entry))
        self._room.changed()

    def segment_passed(self, entry: Entry, index: int, checksum: int, fetch: Fetch) -> None:
        """All of a segment has come into memory, and is not stored; where it was hashed before, it must be the same."""
        self._events.emit(SegmentFetched(self._clock() - fetch.began_at, stored=False, prefetched=False))
        if entry.trust.was_hashed(index):
            self.digest_check.segment_stored(entry, index, checksum)

    async def _sync(self, entry: Entry, file: ShardFile) -> None:
        """One fdatasync a shard, after its last segment and off the readers' path."""
        if entry.stored.file is not file:  # it left or was closed before its turn came
            return
        try:
            await file.sync()
        except DiskFailed as error:
            self._disk.failed(error)

    def give_back(self, entry: Entry, index: int | None, grant: Grant[Slice]) -> None:
        """Free what was allocated for a grant that did not become a segment, then the grant; ``index`` None: nothing was allocated."""
        if index is not None:
            entry.in_use.withdraw(index)
        self._tasks.spawn(self._abandoned(entry, index, grant), "abandon")

    async def _abandoned(self, entry: Entry, index: int | None, grant: Grant[Slice]) -> None:
        await self._reclaimer.abandon(entry, index, grant)
        self._drop_outdated(entry)  # it was not idle until now

    # What follows

    def left(self, fact: EntryLeft) -> None:
        """Look whether its digest can be compared now, evict what is outdated, forget a version of which nothing is here."""
        entry = fact.entry
        if entry.trust.digest_state is not None:
            self.digest_check.hash_ready(entry)
        self._drop_outdated(entry)
        if entry.is_empty:
            self._reclaimer.retire(entry)

    def _drop_outdated(self, entry: Entry) -> None:
        """Evict a version that the origin has no more, once no reader, fetch or removal is in it."""
        if entry.in_use.stale and entry.in_use.idle and entry.segments.stored_count:
            self._tasks.spawn(self._reclaimer.evict(entry), "drop")
