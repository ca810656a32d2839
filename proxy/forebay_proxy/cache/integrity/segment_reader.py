"""Reads stored segments, and compares them with their checksums before their first use after another boot of the machine.

``forebay verify``, the sampling, and the hashing of whole shards compare them here too; one read serves both sums. A wrong segment is
removed, and fetched again when a reader wants it. So a failing disk is never mistaken for an origin that lies, or the reverse.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from enum import Enum

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import SegmentSpoilt
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.digests import DigestHasher
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import IntegrityFailed, SegmentVerified
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.health import DiskHealth

__all__ = ["Finding", "SegmentReader"]

log = logging.getLogger("forebay")

FORESEEN = 2  # segments verified ahead at one time: enough for two fast readers, and leaves six read threads for waiting ones
# Only these errors say that the bytes are not there; a slow disk, or a file that is being closed, says nothing about them.
_NOT_THERE = frozenset({"EIO", "ENODATA", "ENOENT", "ESTALE"})


class Finding(Enum):
    """The result of checking a segment."""

    RIGHT = "right"
    WRONG = "wrong"  # other bytes than were stored; it has been removed
    LOST = "lost"  # its bytes cannot be read any more; it has been removed, and no reader can have got wrong ones
    GONE = "gone"  # it was not stored, or left meanwhile
    UNREAD = "unread"  # the disk did not answer; it stays, unchecked

    @property
    def removes(self) -> bool:
        """Whether the segment was removed because of the result."""
        return self in (Finding.WRONG, Finding.LOST)


class SegmentReader:
    """Reads stored segments, and removes wrong ones. Not thread-safe: used on the event loop alone."""

    def __init__(
        self, *, room: SpaceManager, reclaimer: Reclaimer, files: OpenFiles, disk: DiskHealth, events: Events,
        tasks: BackgroundTasks,
    ) -> None:  # fmt: skip
        self._room = room
        self._reclaimer = reclaimer
        self._files = files
        self._disk = disk
        self._events = events
        self._tasks = tasks
        self._foreseen = 0
        self._verifying: dict[tuple[str, int], asyncio.Future[Finding]] = {}

    # Reading

    async def read(self, entry: Entry, first: int, buffer: memoryview) -> bytes | memoryview:
        """As many bytes as ``buffer`` holds, from ``first`` on. Raises ``DiskFailed``.

        Bytes in memory are read into ``buffer`` on the event loop; others are read from the disk in a thread.
        """
        index = entry.segments.layout.index_of(first)
        try:
            file = entry.stored.file
            if file is None:
                file = await self._files.stored(entry)
                if index in entry.segments.unverified:
                    raise DiskFailed("read", "ENODATA", f"segment {index} of shard {entry.name} is not whole in its file")
            if file.read_now(first, buffer):
                return buffer
            self._disk.must_answer()
            return await file.read(first, len(buffer))
        except DiskFailed as error:
            self._disk.failed(error)
            if entry.segments.has(index) and error.errno_name != "ETIMEDOUT":  # after a timeout the bytes may still be good
                self._tasks.spawn(self._reclaimer.discard(entry, index), "discard")
            raise

    def send_now(self, entry: Entry, first: int, length: int, sock: int) -> int | None:
        """As ``ShardFile.send_now``; also None if the file is not open. Raises ConnectionError."""
        file = entry.stored.file
        with suppress(DiskFailed):  # the file is being closed, and the read reports it
            return None if file is None else file.send_now(sock, first, length)
        return None

    async def stored(self, entry: Entry) -> ShardFile:
        """As ``OpenFiles.stored``."""
        return await self._files.stored(entry)

    # Before the first use

    async def trusted(self, entry: Entry, index: int) -> bool:
        """Verify a segment that another boot stored, or that is not whole in its file. A wrong one is removed.

        False: it must not be read. If the disk does not answer, or cannot remove it, the segment stays, unverified.
        """
        if entry.stored.file is None and entry.segments.has(index):
            with suppress(CacheError):  # the read reports it
                await self._files.stored(entry)  # missing bytes show when the file is opened
        while index in entry.segments.unverified:
            if await self._verified_once(entry, index) is not Finding.RIGHT:
                return False
        return True

    def foresee(self, entry: Entry, index: int) -> None:
        """A reader will come to the segment soon: verify it now if necessary, so that the reader need not wait."""
        if index in entry.segments.unverified and self._foreseen < FORESEEN:
            self._foreseen += 1
            self._tasks.spawn(self._foresee(entry, index), "verify ahead")

    async def _foresee(self, entry: Entry, index: int) -> None:
        try:
            await self.trusted(entry, index)
        finally:
            self._foreseen -= 1

    async def _verified_once(self, entry: Entry, index: int) -> Finding:
        """Verify once for all callers that wait meanwhile. If the first one is cancelled, the next one verifies."""
        key = entry.key, index
        while key in self._verifying:
            other = self._verifying[key]
            await asyncio.wait([other])
            if not other.cancelled():
                return other.result()
        mine = self._verifying[key] = asyncio.get_running_loop().create_future()
        try:
            finding = await self.verify(entry, index, "recovery")
            mine.set_result(finding)
            return finding
        finally:
            del self._verifying[key]
            mine.cancel()

    # Comparing

    async def verify(self, entry: Entry, index: int, why: str, *, hasher: DigestHasher | None = None, gentle: bool = False) -> Finding:
        """Compare a segment with its checksum. ``why`` (recovery, digest, verify, sample) is for metrics.

        ``hasher`` gets the same bytes. ``gentle``: leave the page cache as it was.
        """
        if not entry.segments.has(index):
            return Finding.GONE
        with self._room.holding(entry, index):
            finding = await self._compare(entry, index, hasher, gentle=gentle)
            while finding is Finding.GONE and hasher is None and entry.segments.has(index):  # another segment left
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
            return Finding.GONE  # the bytes that were read may be a hole
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
        if not entry.trust.wrong:  # logged once per shard: a dying disk has thousands
            bytes_ = f"segment {index} (bytes {first} to {first + size - 1})"
            how = "is not what was stored" if finding is Finding.WRONG else "cannot be read any more"
            log.warning("shard %s: %s %s; it is fetched again when it is wanted", entry.name, bytes_, how)
        entry.trust.wrong += 1
        if finding is Finding.WRONG and index not in entry.segments.unverified:
            self._events.emit(SegmentSpoilt(entry, index))
        self._events.emit(IntegrityFailed("recovery" if index in entry.segments.unverified else "read"))
        await self._reclaimer.discard(entry, index)
