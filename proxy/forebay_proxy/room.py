"""Makes room: asks the ledger, and empties what it says must leave.

Deciding is synchronous (``reserve`` and ``doom`` take segments out of use at once), acting is not (``clear`` withdraws the claim, commits
that, and only then frees the bytes: a claim never stands for bytes that are gone). What was begun is ended even if who asked for it is
cancelled: half-removed segments would be nobody's. What cannot be removed is put back, to be verified before anybody reads it.

Owner of the ledger. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from forebay_proxy import events
from forebay_proxy.chores import to_its_end
from forebay_proxy.entry import Entry
from forebay_proxy.errors import CacheFull, DiskFailed
from forebay_proxy.events import Events
from forebay_proxy.fileio import Leased
from forebay_proxy.leaving import Leaving
from forebay_proxy.ledger import Grant, Ledger, Victim
from forebay_proxy.plan import Plans, Rank, Use
from forebay_proxy.segments import segment_span
from forebay_proxy.shardfile import ShardFile
from forebay_proxy.store import Store

__all__ = ["Room", "Slice"]

log = logging.getLogger("forebay")

Slice = tuple[Entry, tuple[int, ...]]  # segments of one entry that leave together
OPEN_FILES = 512  # descriptors kept for shards nobody is in; a start with 1,024 allowed must still have some for sockets
STUCK_S = 10.0  # how long what could not be removed is left alone
REFRESHED = 1024  # shards put in their place again each second: 10 ms, and a cache of a terabyte in a few seconds
DISPLACED_PER_READER = 2  # the contract: so many prefetched segments of a reader may stand where a needed one stood


class Room:
    """Who may have disk, and who gives it up."""

    def __init__(self, ledger: Ledger[Slice], store: Store, plans: Plans, events: Events, clock: Callable[[], float]) -> None:
        self.ledger = ledger
        self.entries: dict[str, Entry] = {}
        self.failed: Callable[[DiskFailed], None] = lambda error: None  # the cache hears of a failing disk
        self.retired: Callable[[Entry], None] = lambda entry: None  # the cache forgets an entry of which nothing is left
        self.spawn: Callable[[Coroutine[Any, Any, Any], str], None]  # work nobody waits for; the cache sets it
        self._store = store
        self._plans = plans
        self._events = events
        self._clock = clock
        self._leaving = Leaving(self._use_of)
        self._beyond_bytes = 0
        self._open: OrderedDict[str, Entry] = OrderedDict()
        self._displaced: Counter[object] = Counter()
        self._displacers: dict[tuple[str, int], object] = {}
        store.claims.on_commit = self.measure
        store.on_index_lost = self.index_lost

    def __repr__(self) -> str:
        return f"<Room {self.ledger!r}, {len(self.entries)} shards>"

    # Deciding

    def _use_of(self, key: str) -> Use | None:
        entry = self.entries.get(key)
        if entry is None or not entry.segments.stored_count:
            return None
        if entry.readers:
            return self._plans.inside(entry.name)
        if entry.stale:
            return Use(Rank.DEAD, 0.0)
        return self._plans.next_use(entry.name, entry.group)

    def touch(self, entry: Entry) -> None:
        """Something happened to ``entry`` that may change when it leaves."""
        self._leaving.touch(entry.key)

    def _candidates(self, before: Use | None) -> Iterator[Victim[Slice]]:
        """What may leave, first to leave first; with ``before`` only what is used later than that."""
        order, now = self._leaving.order(), self._clock()
        try:
            for use, key in order:
                if before is not None and use >= before:
                    return
                if self.entries[key].stuck_until <= now:
                    yield from self._victims_of(self.entries[key])
        finally:
            order.close()  # type: ignore[attr-defined]

    def _victims_of(self, entry: Entry) -> Iterator[Victim[Slice]]:
        segments = entry.segments
        if self._store.can_punch and entry.ranged:
            for index in segments.may_leave():
                yield Victim((entry, (index,)), segments.bytes_of(index))
        elif entry.idle and not segments.leases:
            whole = tuple(segments.stored())
            yield Victim((entry, whole), sum(segments.bytes_of(index) for index in whole))

    def reserve(self, size: int) -> Grant[Slice]:
        """Room for a demanded segment: whatever is not leased may leave for it. Raises ``CacheFull``."""
        return self._reserve(size, None)

    def reserve_ahead(self, size: int, need_at: float | None, reader: object) -> Grant[Slice]:
        """Room for a prefetched segment: free room, what has been read, and at most two segments a reader that are needed later still.

        Raises ``CacheFull``.
        """
        try:
            return self._reserve(size, Use(Rank.LATER, float("-inf")))
        except CacheFull:
            if need_at is None or self._displaced[reader] >= DISPLACED_PER_READER:
                raise
            return self._reserve(size, Use(Rank.AHEAD, -need_at))

    def displacing(self, grant: Grant[Slice]) -> bool:
        """Whether something still needed leaves for this grant."""
        entries = {victim.subject[0].key: victim.subject[0] for victim in grant.victims}.values()
        return any(self._plans.next_use(entry.name, entry.group).rank > Rank.READ for entry in entries if not entry.stale)

    def note_displacer(self, entry: Entry, index: int, reader: object) -> None:
        """Segment ``index`` stands where a needed one stood, for ``reader``, until it is read or leaves."""
        self._displacers[entry.key, index] = reader
        self._displaced[reader] += 1

    def settle_displacer(self, entry: Entry, index: int) -> None:
        reader = self._displacers.pop((entry.key, index), None)
        if reader is not None:
            self._displaced[reader] -= 1
            if not self._displaced[reader]:
                del self._displaced[reader]

    def _reserve(self, size: int, before: Use | None) -> Grant[Slice]:
        grant = self.ledger.reserve(size, lambda: self._candidates(before))
        self._doom(victim.subject for victim in grant.victims)
        return grant

    def _doom(self, slices: Iterable[Slice]) -> None:
        """Take segments out of use: nobody finds them any more, their claim is withdrawn, their bytes are still there."""
        now = self._clock()
        for entry, indices in slices:
            rank = Rank.DEAD if entry.stale else self._plans.next_use(entry.name, entry.group).rank
            reason = "stale" if entry.stale else "plan" if rank in (Rank.AHEAD, Rank.LATER) else "guess"
            for index in indices:
                entry.leaving[index] = asyncio.get_running_loop().create_future()
                entry.departing[index] = entry.segments.sums[index]
                age_s = now - entry.landed_at.pop(index, now)
                used = index not in entry.segments.unread
                self._events.emit(events.Evicted(entry.segments.bytes_of(index), reason, age_s, used))
                entry.segments.leave(index)
                self.settle_displacer(entry, index)
            self.claim(entry)
            self.touch(entry)

    def _parted(self, entry: Entry, indices: Sequence[int], *, removed: bool) -> None:
        """The end of ``_doom``: segments are gone, or here as before but not to be trusted unseen."""
        for index in indices:
            value = entry.departing.pop(index, None)
            if not removed and value is not None:
                self._put_back(entry, index, value)
            entry.leaving.pop(index).set_result(None)
        if not removed:
            entry.stuck_until = self._clock() + STUCK_S
            self.claim(entry)
        self.touch(entry)
        self.retire(entry)

    @staticmethod
    def _put_back(entry: Entry, index: int, value: int) -> None:
        entry.segments.land(index, value)
        entry.segments.unread.discard(index)
        entry.segments.unverified.add(index)

    def claim(self, entry: Entry) -> None:
        """Let the index say what is here of ``entry`` now."""
        if entry.durable and entry.segments.stored_count:
            self._store.claims.put(entry.row(self._store.boot_id))
            entry.claimed = True
        elif entry.claimed:
            self._store.claims.drop(entry.key)
            entry.claimed = False

    # Acting

    async def clear(self, grant: Grant[Slice]) -> None:
        """Remove the grant's victims from the disk. Raises ``CacheFull`` where one could not be removed; the grant is closed then.

        Cancelled, it ends all the same and closes the grant.
        """
        try:
            await to_its_end(self._clear(grant))
        except asyncio.CancelledError:
            if not grant.closed:
                self.ledger.release(grant)
            raise

    async def _clear(self, grant: Grant[Slice]) -> None:
        if not grant.victims:
            return
        victims = list(grant.victims)
        gone = await self._vacate([victim.subject for victim in victims])
        stayed = [victim for victim, left in zip(victims, gone, strict=True) if not left]
        for victim in stayed:
            self.ledger.stayed(grant, victim)
        promised = grant.bytes
        self.ledger.vacated(grant)
        if stayed:
            self.ledger.release(grant)
            raise CacheFull(f"{len(stayed)} segments could not be removed; {promised} bytes are free instead")

    async def _vacate(self, slices: Sequence[Slice]) -> list[bool]:
        """Commit that doomed segments are claimed no more, then free their bytes; which of them are gone."""
        try:
            await self._store.claims.committed()
        except DiskFailed as error:
            self._disk_failed(error)
            for entry, indices in slices:
                self._parted(entry, indices, removed=False)
            return [False] * len(slices)
        return [await self._remove(leaving) for leaving in slices]

    async def _let_go(self, victims: Sequence[Victim[Slice]]) -> int:
        """Remove victims for another reason than a grant; returns the bytes freed."""
        if not victims:
            return 0
        self.ledger.doom(sum(victim.bytes for victim in victims))
        self._doom(victim.subject for victim in victims)
        return await to_its_end(self._depart(victims))

    async def _depart(self, victims: Sequence[Victim[Slice]]) -> int:
        gone = await self._vacate([victim.subject for victim in victims])
        freed = sum(victim.bytes for victim, left in zip(victims, gone, strict=True) if left)
        self.ledger.gone(freed)
        self.ledger.spared(sum(victim.bytes for victim in victims) - freed)
        return freed

    async def prepare(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        """Empty what the grant needs, and allocate the segment in the entry's file.

        Raises ``CacheFull`` or ``DiskFailed``; the grant is closed then, or closed soon by a chore.
        """
        try:
            if index in entry.leaving:
                await asyncio.shield(entry.leaving[index])
        except asyncio.CancelledError:
            self.spawn(self.abandon(None, None, grant), "abandon")
            raise
        await self.clear(grant)
        try:
            return await self._allocate(entry, index, grant)
        except asyncio.CancelledError:
            self.withdraw(entry, index)
            self.spawn(self.abandon(entry, index, grant), "abandon")
            raise
        except BaseException:
            self.ledger.release(grant)
            raise

    async def _allocate(self, entry: Entry, index: int, grant: Grant[Slice]) -> ShardFile:
        if entry.segments.has(index):
            raise CacheFull(f"segment {index} could not be removed, and stays")
        first, size = segment_span(index, entry.version.length)
        async with entry.file_lock:
            file = await self.open_file(entry)
        entry.charged_bytes += grant.bytes
        try:
            if entry.version.length is None:
                await file.grow(first + size)
            await file.allocate(first, size)
        except DiskFailed:
            entry.charged_bytes -= grant.bytes
            raise
        return file

    def landed(self, entry: Entry, index: int, checksum: int, grant: Grant[Slice]) -> None:
        """A segment is whole on the disk: the grant's bytes are stored ones."""
        size = entry.segments.bytes_of(index)
        entry.charged_bytes -= grant.bytes - size
        self.ledger.commit(grant, size)
        self._count_beyond(entry)
        entry.segments.land(index, checksum)
        entry.landed_at[index] = self._clock()
        self.claim(entry)
        self.touch(entry)

    def found(self, entry: Entry, allocated_bytes: int) -> None:
        """At the start: a shard an earlier process stored, whose file holds ``allocated_bytes``."""
        self.entries[entry.key] = entry
        entry.charged_bytes = sum(entry.segments.bytes_of(index) for index in entry.segments.stored())
        entry.beyond_bytes = max(0, allocated_bytes - entry.charged_bytes)
        self._beyond_bytes += entry.beyond_bytes
        self.ledger.found(entry.charged_bytes)
        self.touch(entry)

    def fit(self, entry: Entry, grant: Grant[Slice], size: int) -> None:
        """A segment turned out smaller than what was allocated for it, and its file has been cut to that."""
        entry.charged_bytes -= max(0, grant.bytes - size)
        self.ledger.shrink(grant, size)

    def withdraw(self, entry: Entry, index: int) -> None:
        """A segment that was being written will not become one: until ``abandon`` has freed it nobody begins it anew."""
        entry.leaving[index] = asyncio.get_running_loop().create_future()

    async def abandon(self, entry: Entry | None, index: int | None, grant: Grant[Slice]) -> None:
        """Free what was allocated for a grant that did not become a segment, and give the grant back."""
        if entry is None or index is None:
            with suppress(CacheFull):
                await self.clear(grant)
                self.ledger.release(grant)
            return
        await to_its_end(self._abandon(entry, index, grant))

    async def _abandon(self, entry: Entry, index: int, grant: Grant[Slice]) -> None:
        entry.departing[index] = 1  # no checksum of anything: what cannot be removed is found wrong when it is next wanted
        if await self._remove((entry, (index,))):
            self.ledger.release(grant)
        else:
            self.ledger.commit(grant)

    async def discard(self, entry: Entry, index: int) -> None:
        """Remove one stored segment whose bytes are wrong, if it has not left already."""
        if not entry.segments.has(index):
            return
        await self._let_go([Victim((entry, (index,)), entry.segments.bytes_of(index))])

    async def _remove(self, victims: Slice) -> bool:
        """Free the bytes of some segments; False where the disk or a descriptor's lease keeps them."""
        entry, indices = victims
        removed = True
        try:
            async with entry.file_lock:
                await self._free(entry, indices)
        except (DiskFailed, Leased) as error:
            removed = isinstance(error, DiskFailed) and error.errno_name == "ENOENT"  # no file, no bytes
            if isinstance(error, DiskFailed):
                self._disk_failed(error)
        self._parted(entry, indices, removed=removed)
        return removed

    def _disk_failed(self, error: DiskFailed) -> None:
        log.warning("segments cannot be removed: %s", error)
        self.failed(error)

    async def _free(self, entry: Entry, indices: tuple[int, ...]) -> None:
        file = await self.open_file(entry)
        if entry.segments.stored_count == 0 and not entry.flying and not entry.readers and len(entry.leaving) == len(indices):
            await self._unlink(entry, file)
            return
        for index in sorted(indices, reverse=True):  # from the tail: cheaper for the file system
            await file.punch(segment_span(index, entry.version.length)[0], entry.segments.bytes_of(index))
            entry.charged_bytes -= entry.segments.bytes_of(index)

    async def _unlink(self, entry: Entry, file: ShardFile) -> None:
        await file.remove()
        self._without_file(entry)

    def _without_file(self, entry: Entry) -> None:
        self._beyond_bytes -= entry.beyond_bytes
        entry.file, entry.filed, entry.charged_bytes, entry.beyond_bytes = None, False, 0, 0
        self._open.pop(entry.key, None)

    async def open_file(self, entry: Entry) -> ShardFile:
        """The entry's file, opened or made. The caller holds ``entry.file_lock``."""
        if entry.file is None:
            if entry.filed:
                entry.file = await self._reopened(entry)
            else:
                entry.file = await self._store.create(entry.key, entry.version.length)
                entry.filed = True
        self._open[entry.key] = entry
        self._open.move_to_end(entry.key)
        return entry.file

    async def _reopened(self, entry: Entry) -> ShardFile:
        try:
            return await self._store.reopen(entry.key)
        except DiskFailed as error:
            if error.errno_name == "ENOENT":
                self._lost(entry)
            raise

    def _lost(self, entry: Entry) -> None:
        """Somebody deleted the file: nothing of it is here."""
        for index in list(entry.segments.stored()):
            size = entry.segments.bytes_of(index)
            self.ledger.doom(size)
            self.ledger.gone(size)
            entry.segments.leave(index)
            entry.landed_at.pop(index, None)
            self.settle_displacer(entry, index)
        self._without_file(entry)
        self.claim(entry)
        self.touch(entry)

    async def close_idle(self) -> None:
        """Close the files of shards nobody is in, the longest unused first, beyond ``OPEN_FILES``."""
        surplus = len(self._open) - OPEN_FILES
        idle = [entry for entry in self._open.values() if entry.idle] if surplus > 0 else []
        for entry in idle[:surplus]:
            async with entry.file_lock:
                if entry.idle and entry.file is not None:
                    file, entry.file = entry.file, None
                    self._open.pop(entry.key, None)
                    await file.aclose()

    def retire(self, entry: Entry) -> None:
        """Forget an entry of which nothing is left and in which nobody is, once its file is gone too."""
        if not self._is_over(entry):
            return
        if entry.filed:
            self.spawn(self._clean_up(entry), "clean up")
            return
        del self.entries[entry.key]
        self._open.pop(entry.key, None)
        self._leaving.touch(entry.key)
        self.retired(entry)

    def _is_over(self, entry: Entry) -> bool:
        return entry.idle and not entry.segments.stored_count and self.entries.get(entry.key) is entry

    async def _clean_up(self, entry: Entry) -> None:
        """Remove the file in which nothing is left, unless somebody came meanwhile."""
        async with entry.file_lock:
            if not (self._is_over(entry) and entry.filed):
                return
            try:
                await to_its_end(self._remove_file(entry))
            except (DiskFailed, Leased) as error:
                log.warning("the file of shard %s could not be removed: %s", entry.name, error)
        self.retire(entry)

    async def _remove_file(self, entry: Entry) -> None:
        file = await self.open_file(entry)
        try:
            await self._unlink(entry, file)
        except (DiskFailed, Leased):  # an empty file stays, and is replaced or found at a start
            self._without_file(entry)
            await file.aclose()
            raise

    async def evict(self, entry: Entry) -> int:
        """Remove everything of ``entry`` that is not leased; returns the bytes freed."""
        return await self._let_go(list(self._victims_of(entry)))

    async def work_off(self) -> None:
        """The capacity shrank (others fill the disk): let go of what stands above it, in the usual order."""
        self._leaving.refresh(REFRESHED)
        while (excess := self.ledger.excess_bytes()) > 0:
            if not await self._let_go(self.ledger.choose(excess, lambda: self._candidates(None))):
                return

    def _count_beyond(self, entry: Entry) -> None:
        """What the file holds beyond its segments: blocks of the file system's own tree, and what could not be punched."""
        if entry.file is not None:
            beyond = max(0, entry.file.allocated_bytes() - entry.charged_bytes)
            self._beyond_bytes += beyond - entry.beyond_bytes
            entry.beyond_bytes = beyond

    def measure(self) -> None:
        """Look at what index, lock and directories hold now, and add what files hold beyond their segments."""
        try:
            self.ledger.measured_overhead(self._store.measure() + self._beyond_bytes)
        except OSError as error:
            log.warning("the cache directory cannot be measured: %s", error.strerror)

    def index_lost(self) -> None:
        """The index was begun anew: claim everything again."""
        for entry in self.entries.values():
            self.claim(entry)
