"""Removes the segments that the space manager gave up: commits the withdrawn claims first, and only then frees the bytes.

How a segment leaves: ``AdmissionPolicy.reserve`` (``policy/eviction``) chooses it. ``SpaceManager._doom`` takes it out of use and withdraws
its claim. ``_commit_and_free`` here commits that. ``_free`` punches it out of its file, or removes the file. Garbage found at a start is
removed by ``store/garbage.py``.

The index never claims bytes that are gone, with one exception. A disk that others filled may have no block left for a commit, so nothing
would ever leave. Then whole shards lose their files at once. A start drops a row without a file, and ``OpenFiles`` makes no new file of
that name before the row has gone.

A removal that has begun is finished even if its caller is cancelled: a half-removed segment would belong to no grant. A segment that cannot
be removed is put back, and verified before it is read.

Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import EntryRetired, FileHeld
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.space import Slice, SpaceManager
from forebay_proxy.core.errors import CacheFull, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.tasks import BackgroundTasks, to_its_end
from forebay_proxy.policy.eviction.ledger import Grant, Victim
from forebay_proxy.store.files.file_io import Leased
from forebay_proxy.store.health import DiskHealth
from forebay_proxy.store.store import Store

__all__ = ["Reclaimer"]

log = logging.getLogger("forebay")


class Reclaimer:
    """Removes from the disk what the space manager gave up. ``OpenFiles`` then allocates the room."""

    def __init__(
        self, *, room: SpaceManager, files: OpenFiles, store: Store, disk: DiskHealth, tasks: BackgroundTasks, events: Events
    ) -> None:
        self._disk = disk
        self._events = events
        self._room = room
        self._files = files
        self._store = store
        self._tasks = tasks

    # For a grant

    async def clear(self, grant: Grant[Slice]) -> None:
        """Remove the grant's victims from the disk. Raises ``CacheFull`` if one could not be removed; the grant is closed then.

        If it is cancelled, it still finishes, and closes the grant.
        """
        if not grant.victims:
            return
        try:
            await to_its_end(self._clear(grant))
        except asyncio.CancelledError:
            if not grant.closed:
                self._room.ledger.release(grant)
            raise

    async def _clear(self, grant: Grant[Slice]) -> None:
        ledger, victims = self._room.ledger, list(grant.victims)
        gone = await self._commit_and_free([victim.subject for victim in victims])
        stayed = [victim for victim, left in zip(victims, gone, strict=True) if not left]
        for victim in stayed:
            ledger.stayed(grant, victim)
        promised = grant.bytes
        ledger.vacated(grant)
        if stayed:
            ledger.release(grant)
            raise CacheFull(f"{len(stayed)} segments could not be removed; {promised} bytes are free instead")

    async def abandon(self, entry: Entry, index: int | None, grant: Grant[Slice]) -> None:
        """Free the blocks of a grant that did not become a segment, and give the grant back."""
        if index is None:
            with suppress(CacheFull):
                await self.clear(grant)
                self._room.ledger.release(grant)
            return
        await to_its_end(self._abandon(entry, index, grant))

    async def _abandon(self, entry: Entry, index: int, grant: Grant[Slice]) -> None:
        mine = entry.in_use.leaving.get(index)
        try:
            await self._free_unfinished(entry, index, grant)
        finally:
            if mine is not None and not mine.done():  # a fault of ours: other fetches of the segment must not wait for it
                entry.in_use.leaving.pop(index).set_result(None)

    async def _free_unfinished(self, entry: Entry, index: int, grant: Grant[Slice]) -> None:
        if index not in entry.stored.writing:  # the present file has nothing of it: it was never opened, or was removed
            self._room.ledger.release(grant)
            self._removal_ended(entry, (index,), removed=True)
            return
        entry.stored.writing.discard(index)
        self._room.ledger.freeing(grant)
        entry.in_use.departing[index] = 1  # no segment has this checksum: if it cannot be removed, it is found wrong at its next use
        if await self._remove((entry, (index,))):
            self._room.ledger.release(grant)
        else:
            self._room.ledger.commit(grant)

    # For other reasons

    async def discard(self, entry: Entry, index: int) -> None:
        """Remove one stored segment whose bytes are wrong, if it has not left already."""
        if entry.segments.has(index):
            await self._let_go([Victim((entry, (index,)), entry.segments.bytes_of(index))], "other")

    async def evict(self, entry: Entry, reason: str = "") -> int:
        """Remove everything of ``entry`` that is not leased; returns the bytes freed.

        ``reason``: the label for metrics; "" to derive it from the plans.
        """
        return await self._let_go(list(self._room.candidates.victims_of(entry)), reason)

    async def work_off(self) -> None:
        """Remove segments until the cache fits a capacity that shrank."""
        self._room.candidates.refresh()
        while victims := self._room.admission.excess():
            if not await self._let_go(victims):
                break
        for _, entry in list(self._room.candidates.in_order()) if victims else ():  # whole shards: those can leave without a commit
            if self._room.ledger.excess_bytes() <= 0:
                return
            await self._let_go(list(self._room.candidates.victims_of(entry)))

    async def _let_go(self, victims: Sequence[Victim[Slice]], reason: str = "") -> int:
        if not victims:
            return 0
        self._room.vacate(victims, reason)
        return await to_its_end(self._depart(victims))

    async def _depart(self, victims: Sequence[Victim[Slice]]) -> int:
        gone = await self._commit_and_free([victim.subject for victim in victims])
        freed = sum(victim.bytes for victim, left in zip(victims, gone, strict=True) if left)
        self._room.ledger.gone(freed)
        self._room.ledger.spared(sum(victim.bytes for victim in victims) - freed)
        return freed

    # Removing

    async def _commit_and_free(self, slices: Sequence[Slice]) -> list[bool]:
        """Commit the withdrawn claims of segments, then free their bytes. Returns which are gone."""
        try:
            await self._store.index_writer.committed()
        except DiskFailed as error:
            self._disk.failed(error)
            parts: dict[Entry, list[int]] = {}
            for entry, indices in slices:
                parts.setdefault(entry, []).extend(indices)
            gone = {entry: await self._unlink(entry, tuple(indices)) for entry, indices in parts.items()}
            return [gone[entry] for entry, _ in slices]
        return [await self._remove(leaving) for leaving in slices]

    async def _remove(self, leaving: Slice) -> bool:
        """Free the bytes of some segments; False if the disk or a descriptor's lock keeps them."""
        entry, indices = leaving
        removed, leased = True, False
        try:
            async with entry.stored.lock:
                await self._free(entry, indices)
        except (DiskFailed, Leased, CacheFull) as error:
            removed = isinstance(error, DiskFailed) and error.errno_name == "ENOENT"  # without a file there are no bytes
            if removed:
                entry.stored.charged_bytes -= min(entry.stored.charged_bytes, sum(map(entry.segments.bytes_of, indices)))
            leased = isinstance(error, Leased)
            if isinstance(error, DiskFailed):
                self._disk.failed(error)
        except Exception:
            removed = False  # whatever it was: the segment is put back and counted, so that no caller waits for ever
            log.exception("segments of shard %s could not be removed, for no reason that is known", entry.name)
        self._removal_ended(entry, indices, removed=removed)
        if leased:
            self._events.emit(FileHeld(entry))
        return removed

    async def _unlink(self, entry: Entry, indices: tuple[int, ...]) -> bool:
        """Remove the file of a shard whose withdrawn claims could not be committed; False if it holds more than ``indices``, or stays."""
        removed = False
        try:
            async with entry.stored.lock:
                used = entry.segments.stored_count or entry.stored.writing or len(entry.in_use.leaving) > len(indices)
                if not (used or entry.in_use.fetching or entry.in_use.readers):
                    await self._files.remove(entry)
                    removed = True
        except (DiskFailed, Leased) as error:
            log.warning("the file of shard %s could not be removed: %s", entry.name, error)
        self._removal_ended(entry, indices, removed=removed)
        return removed

    def _removal_ended(self, entry: Entry, indices: Sequence[int], *, removed: bool) -> None:
        self._room.removal_ended(entry, indices, removed=removed)
        self.retire(entry)

    async def _free(self, entry: Entry, indices: tuple[int, ...]) -> None:
        file = await self._files.open(entry)
        unused = not entry.segments.stored_count and not entry.stored.writing and len(entry.in_use.leaving) == len(indices)
        if unused and not (self._store.abilities.punch and (entry.in_use.fetching or entry.in_use.readers)):  # a new reader gets a new file
            await self._files.remove(entry)
            return
        if not self._store.abilities.punch:
            raise CacheFull("this file system frees whole files only, and this one is in use")
        for index in sorted(indices, reverse=True):  # from the tail: cheaper for the file system
            await file.punch(entry.segments.span(index)[0], entry.segments.bytes_of(index))
        entry.stored.charged_bytes -= sum(map(entry.segments.bytes_of, indices))  # all or none: if one cannot be freed, all are put back

    # Forgetting entries

    def retire(self, entry: Entry) -> None:
        """Forget an idle entry without segments, once its file is gone too. Call it when a reader, fetch or segment has left."""
        if not self._is_over(entry):
            return
        if entry.stored.filed:
            self._tasks.spawn(self._clean_up(entry), "clean up")
            return
        self._room.forget(entry)
        self._events.emit(EntryRetired(entry))

    def _is_over(self, entry: Entry) -> bool:
        return entry.is_empty and self._room.entries.get(entry.key) is entry

    async def _clean_up(self, entry: Entry) -> None:
        """Remove the empty file, unless a reader came meanwhile."""
        async with entry.stored.lock:
            if not (self._is_over(entry) and entry.stored.filed):
                return
            await to_its_end(self._remove_file(entry))
        self.retire(entry)

    async def _remove_file(self, entry: Entry) -> None:
        try:
            await self._files.remove(entry)
        except (DiskFailed, Leased) as error:
            log.warning("the file of shard %s could not be removed: %s", entry.name, error)
            await self._files.leave_behind(entry)
