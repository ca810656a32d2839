"""Compares stored segments with their checksums. A wrong segment is removed, and fetched again when a reader wants it.

Four parts use it: a reader of segments that another boot stored, ``forebay verify``, the sampling, and the hashing of a whole shard (one
read serves both sums). So a rotten disk is never taken for an origin that lies, nor the other way round.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import SegmentSpoilt
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import SegmentLeases, SpaceManager
from forebay_proxy.core.digests import DigestHasher
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import IntegrityFailed, SegmentVerified
from forebay_proxy.store.health import DiskHealth

__all__ = ["Finding", "SegmentCheck"]

log = logging.getLogger("forebay")

# Only these say that the bytes are not there; a disk that is slow, or a file that is being closed, says nothing about them.
_NOT_THERE = frozenset({"EIO", "ENODATA", "ENOENT", "ESTALE"})


class Finding(Enum):
    """What a look at a segment showed."""

    RIGHT = "right"
    WRONG = "wrong"  # other bytes than were stored: it has been removed
    LOST = "lost"  # its bytes cannot be read any more: it has been removed, and nobody can have been given wrong ones
    GONE = "gone"  # it was not here, or left meanwhile
    UNREAD = "unread"  # the disk did not answer; it stays, unjudged

    @property
    def removes(self) -> bool:
        """Whether the segment has left for what was found."""
        return self in (Finding.WRONG, Finding.LOST)


class SegmentCheck:
    """Not thread-safe: the event loop's only."""

    def __init__(
        self,
        *,
        room: SpaceManager,
        reclaimer: Reclaimer,
        files: OpenFiles,
        leases: SegmentLeases,
        disk: DiskHealth,
        events: Events,
    ) -> None:
        self._room = room
        self._reclaimer = reclaimer
        self._files = files
        self._leases = leases
        self._disk = disk
        self._events = events
        self._at_it: dict[tuple[str, int], asyncio.Future[Finding]] = {}

    async def once(self, entry: Entry, index: int) -> Finding:
        """Verify a segment that another boot stored, once for all callers that wait meanwhile; if the first caller is cancelled, the next
        one verifies it.
        """
        key = entry.key, index
        while key in self._at_it:
            other = self._at_it[key]
            await asyncio.wait([other])
            if not other.cancelled():
                return other.result()
        mine = self._at_it[key] = asyncio.get_running_loop().create_future()
        try:
            finding = await self.verify(entry, index, "recovery")
            mine.set_result(finding)
            return finding
        finally:
            del self._at_it[key]
            mine.cancel()

    async def verify(self, entry: Entry, index: int, why: str, *, hasher: DigestHasher | None = None, gentle: bool = False) -> Finding:
        """Compare a segment with its checksum. ``why`` (recovery, digest, verify, sample) is for metrics.

        ``hasher`` gets the same bytes. ``gentle``: leave the page cache as it was.
        """
        if not entry.segments.has(index):
            return Finding.GONE
        with self._leases.holding(entry, index):
            finding = await self._compare(entry, index, hasher, gentle=gentle)
            while finding is Finding.GONE and hasher is None and entry.segments.has(index):  # it was another one that left
                finding = await self._compare(entry, index, None, gentle=gentle)
            if finding.removes:
                await self._remove(entry, index, finding)
        if finding.removes or finding is Finding.RIGHT:
            self._events.emit(SegmentVerified(why, finding is Finding.RIGHT))
        return finding

    async def _compare(self, entry: Entry, index: int, hasher: DigestHasher | None, *, gentle: bool) -> Finding:
        expected, departures = entry.segments.sums[index], entry.segments.departures
        first, size = entry.segments.span(index)
        try:
            found: int | Finding = await (await self._files.stored(entry)).digest(first, size, also=hasher, gentle=gentle)
        except DiskFailed as error:
            self._disk.failed(error)
            found = Finding.LOST if error.errno_name in _NOT_THERE else Finding.UNREAD
        except CacheError:  # the disk hangs, and is not asked any more
            found = Finding.UNREAD
        segments = entry.segments
        if not segments.has(index) or segments.departures != departures:
            return Finding.GONE  # and what was read may be a hole
        if isinstance(found, Finding):
            return found
        if found != expected:
            return Finding.WRONG
        if index in segments.unverified:
            segments.unverified.discard(index)
            self._room.claim(entry)
        return Finding.RIGHT

    async def _remove(self, entry: Entry, index: int, finding: Finding) -> None:
        first, size = entry.segments.span(index)
        if not entry.trust.wrong:  # once a shard: a dying disk has thousands
            bytes_ = f"segment {index} (bytes {first} to {first + size - 1})"
            how = "is not what was stored" if finding is Finding.WRONG else "cannot be read any more"
            log.warning("shard %s: %s %s; it is fetched again when it is wanted", entry.name, bytes_, how)
        entry.trust.wrong += 1
        if finding is Finding.WRONG and index not in entry.segments.unverified:
            self._events.emit(SegmentSpoilt(entry, index))
        self._events.emit(IntegrityFailed("recovery" if index in entry.segments.unverified else "read"))
        await self._reclaimer.discard(entry, index)
