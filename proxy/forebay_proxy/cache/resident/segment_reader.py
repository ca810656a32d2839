"""Bytes that are here: read from their file; verified before their first use where another boot of the machine stored them."""

from __future__ import annotations

from contextlib import suppress

from forebay_proxy.cache.integrity.segment_check import Finding, SegmentCheck
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.cache.resident.reclaim import Reclaimer
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.tasks import BackgroundTasks
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.health import DiskHealth

__all__ = ["SegmentReader"]

FORESEEN = 2  # segments verified ahead at one time: enough for two fast readers, and six read threads stay for those who wait


class SegmentReader:
    """Reads stored segments, and has those removed that turn out wrong. Not thread-safe: the event loop's only."""

    def __init__(
        self, *, files: OpenFiles, segment_check: SegmentCheck, reclaimer: Reclaimer, disk: DiskHealth, tasks: BackgroundTasks
    ) -> None:
        self._files = files
        self._segment_check = segment_check
        self._reclaimer = reclaimer
        self._disk = disk
        self._tasks = tasks
        self._foreseen = 0

    async def read(self, entry: Entry, first: int, buffer: memoryview) -> bytes | memoryview:
        """As many bytes as ``buffer`` holds, from ``first`` on. Raises ``DiskFailed``.

        In ``buffer`` where they are in memory and the loop could read them, else from the disk, in a read thread.
        """
        try:
            file = entry.stored.file or await self._opened(entry, entry.segments.layout.index_of(first))
            if file.read_now(first, buffer):
                return buffer
            self._disk.must_answer()
            return await file.read(first, len(buffer))
        except DiskFailed as error:
            self._disk.failed(error)
            index = entry.segments.layout.index_of(first)
            if entry.segments.has(index) and error.errno_name != "ETIMEDOUT":  # one that comes late is as good as ever
                self._tasks.spawn(self._reclaimer.discard(entry, index), "discard")
            raise

    def send_now(self, entry: Entry, first: int, length: int, sock: int) -> int | None:
        """As ``ShardFile.send_now``; also None where the file is not open. Raises ConnectionError."""
        file = entry.stored.file
        with suppress(DiskFailed):  # it is being closed, and the read will tell
            return None if file is None else file.send_now(sock, first, length)
        return None

    async def _opened(self, entry: Entry, index: int) -> ShardFile:
        """The open file. Raises ``DiskFailed`` (ENODATA) if opening it showed that segment ``index`` is not whole in it."""
        file = await self._files.stored(entry)
        if index in entry.segments.unverified:
            raise DiskFailed("read", "ENODATA", f"segment {index} of shard {entry.name} is not whole in its file")
        return file

    async def stored(self, entry: Entry) -> ShardFile:
        """As ``OpenFiles.stored``."""
        return await self._files.stored(entry)

    async def trusted(self, entry: Entry, index: int) -> bool:
        """Verify a segment that another boot stored, or that is not whole in its file; a wrong one is removed.

        False: it must not be read. Where the disk does not answer, or does not let go of it, it is still here then, and unverified.
        """
        if entry.stored.file is None and entry.segments.has(index):
            with suppress(CacheError):  # the read will tell
                await self._files.stored(entry)  # missing bytes show when the file is opened
        while index in entry.segments.unverified:
            if await self._segment_check.once(entry, index) is not Finding.RIGHT:
                return False
        return True

    def foresee(self, entry: Entry, index: int) -> None:
        """A reader will come to the segment soon: verify it now if it must be, so that the reader does not wait for that."""
        if index in entry.segments.unverified and self._foreseen < FORESEEN:
            self._foreseen += 1
            self._tasks.spawn(self._foresee(entry, index), "verify ahead")

    async def _foresee(self, entry: Entry, index: int) -> None:
        try:
            await self.trusted(entry, index)
        finally:
            self._foreseen -= 1
