"""The open files of stored shards, asked for no longer than a reader can wait."""

from __future__ import annotations

import asyncio

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.open_files import OpenFiles
from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.store.files.shard_file import PATIENCE_S, ShardFile
from forebay_proxy.store.health import DiskHealth

__all__ = ["PatientFiles"]


class DiskHangs(CacheError):
    """The disk is not asked, because it did not come back with earlier answers."""


class PatientFiles:
    """Not thread-safe: the event loop's only."""

    def __init__(self, files: OpenFiles, disk: DiskHealth) -> None:
        self._files = files
        self._disk = disk

    async def stored(self, entry: Entry) -> ShardFile:
        """The entry's open file; whoever removes something of it holds its lock, and may hang with the disk.

        Raises ``DiskFailed`` after ``PATIENCE_S``, ``DiskHangs``.
        """
        self.must_answer()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._files.stored(entry)
        except TimeoutError:
            raise DiskFailed("open", "ETIMEDOUT", f"no answer within {PATIENCE_S:g} s ({entry.name})") from None

    def must_answer(self) -> None:
        """Raises ``DiskHangs`` where the disk did not come back with earlier answers."""
        if not self._disk.readable:
            raise DiskHangs("the cache disk does not answer; only what is in memory can be read")
