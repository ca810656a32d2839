"""Removes, in the background, files and ranges that a start found without an index row. They count as used until then.

Files without a row are unlinked. In files that stay, ranges without a claim are punched before the file is first opened for anything else:
no write may go into a range that is about to be punched. If a removal fails (a client holds the file, or the disk fails), the next pass
tries again. Used on the event loop alone; blocking calls run in the write pool.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from forebay_proxy.core.errors import CacheError
from forebay_proxy.core.events import Events
from forebay_proxy.store.facts import FileTidied, GarbageRemoved
from forebay_proxy.store.files import file_io
from forebay_proxy.store.files.fallocate import Abilities
from forebay_proxy.store.files.thread_pools import Pool

__all__ = ["GarbageSweep"]

TELL_BYTES = 2**26  # freed bytes per report to the ledger, which then also measures the index


class GarbageSweep:
    """Removes the garbage. Emits ``GarbageRemoved`` as files leave, and ``FileTidied`` for a kept file whose unclaimed ranges are freed.

    ``garbage`` are files to remove, ``unclaimed`` files with ranges to punch; other modules only read them.
    """

    def __init__(self, pool: Pool, directory: int, abilities: Abilities, events: Events) -> None:
        self._events = events
        self._pool = pool
        self._directory = directory
        self._abilities = abilities
        self.garbage: dict[str, int] = {}  # key -> allocated bytes
        self.garbage_bytes = 0  # the sum; unclaimed ranges count in their file's figure
        self.unclaimed: dict[str, Sequence[tuple[int, int]]] = {}
        self._busy = asyncio.Lock()  # one file at a time; nobody makes or opens that file meanwhile
        self.running = False
        self._untold_bytes = 0

    def __repr__(self) -> str:
        return f"<GarbageSweep {len(self.garbage)} files to remove, {len(self.unclaimed)} to tidy>"

    def __len__(self) -> int:
        """How many files are still to be removed or punched."""
        return len(self.garbage) + len(self.unclaimed)

    def add(self, garbage: Mapping[str, int], unclaimed: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        """Add files to remove, with their allocated bytes, and ranges to punch."""
        for key, size in garbage.items():
            self._hold(key, size)
        if self._abilities.punch:
            self.unclaimed.update(unclaimed)

    async def run(self) -> int:
        """Remove and punch as much as possible. Returns how many files are left. Returns at once if a pass is running already."""
        if self.running:
            return len(self)
        self.running = True
        try:
            for key in list(self.garbage):
                await self._remove(key)
            for key in list(self.unclaimed):
                async with self._busy:
                    await self._tidy(key)
        finally:
            self.running = False
            self._tell()
        return len(self)

    @asynccontextmanager
    async def apart(self, key: str) -> AsyncIterator[None]:
        """Within the ``async with``, the caller may make or open the file of ``key``: no pass is at it, and none punches it later."""
        if key not in self.garbage and key not in self.unclaimed:
            yield
            return
        async with self._busy:
            await self._tidy(key)
            self.unclaimed.pop(key, None)  # if it could not be punched now, it never will be: the caller is about to write there
            yield

    def replaced(self, key: str) -> None:
        """A new file took the place of the garbage."""
        if key in self.garbage:
            self._hold(key, None)
            self._events.emit(GarbageRemoved())

    def _hold(self, key: str, size: int | None) -> None:
        """Count the file as garbage of ``size`` bytes; None: it is no longer garbage."""
        self.garbage_bytes += (size or 0) - self.garbage.pop(key, 0)
        if size is not None:
            self.garbage[key] = size

    async def _remove(self, key: str) -> None:
        async with self._busy:
            if key not in self.garbage:
                return  # replaced meanwhile
            before = self.garbage[key]
            left = await self._pool.run(_unlink, key, self._directory, self._abilities)
            self._hold(key, left)
        self._untold_bytes += before - (left or 0)
        if self._untold_bytes >= TELL_BYTES:
            self._tell()

    async def _tidy(self, key: str) -> None:
        ranges = self.unclaimed.get(key)
        if ranges is None:
            return
        found = await self._pool.run(_punch, key, self._directory, ranges, self._abilities)
        if found is not None:
            self.unclaimed.pop(key, None)
            self._events.emit(FileTidied(key, found))

    def _tell(self) -> None:
        if self._untold_bytes:
            self._untold_bytes = 0
            self._events.emit(GarbageRemoved())


def _unlink(key: str, directory: int, abilities: Abilities) -> int | None:
    """Unlink the file. Returns the bytes that it still holds; None if it is gone."""
    try:
        file_io.unlink(key, directory, abilities)
    except FileNotFoundError:
        return None
    except (CacheError, OSError):  # held by a client, or a failing disk: it still counts, and is tried again
        with suppress(OSError):
            return os.stat(key, dir_fd=directory, follow_symlinks=False).st_blocks * 512
        return 0
    return None


def _punch(key: str, directory: int, ranges: Sequence[tuple[int, int]], abilities: Abilities) -> int | None:
    """Punch the ranges. Returns the bytes that the file holds then; None if it failed."""
    try:
        file_io.punch(key, directory, None, ranges, abilities)
        return os.stat(key, dir_fd=directory, follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0
    except (CacheError, OSError):
        return None
