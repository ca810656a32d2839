"""What a start found and nothing claims: counted until it is gone, removed while we serve.

Files without a claim are unlinked; of the files that stay, ranges without a claim are punched, always before the file is first opened for
anything else: no write may go into a range that is about to be punched. What cannot be removed now (a client still holds the file, the disk
fails) is tried again at the next pass. The event loop's only; what blocks runs in the write pool.
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

TELL_BYTES = 2**26  # how much is freed before the ledger hears of it: it measures the index too, which is no matter of microseconds


class GarbageSweep:
    """Says ``GarbageRemoved`` as files leave, ``FileTidied`` of a kept file whose unclaimed ranges are gone.

    ``garbage`` are files to remove, ``unclaimed`` files with ranges to punch; others only look into them.
    """

    def __init__(self, pool: Pool, directory: int, abilities: Abilities, events: Events) -> None:
        self._events = events
        self._pool = pool
        self._directory = directory
        self._abilities = abilities
        self.garbage: dict[str, int] = {}  # with its allocated bytes
        self.garbage_bytes = 0  # of all of it; unclaimed ranges are in the figure of the file they belong to
        self.unclaimed: dict[str, Sequence[tuple[int, int]]] = {}
        self._busy = asyncio.Lock()  # one file at a time, and nobody makes or opens that one meanwhile
        self.running = False
        self._untold_bytes = 0

    def __repr__(self) -> str:
        return f"<GarbageSweep {len(self.garbage)} files to remove, {len(self.unclaimed)} to tidy>"

    def __len__(self) -> int:
        """Files that are not as they should be yet."""
        return len(self.garbage) + len(self.unclaimed)

    def add(self, garbage: Mapping[str, int], unclaimed: Mapping[str, Sequence[tuple[int, int]]]) -> None:
        """Files to remove, with their allocated bytes, and ranges to punch."""
        for key, size in garbage.items():
            self._hold(key, size)
        if self._abilities.punch:
            self.unclaimed.update(unclaimed)

    async def run(self) -> int:
        """Remove and punch all that can be; how many files are left. A pass that is under way already is not joined."""
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
        """The file of ``key`` is made or opened for the length of the ``async with``: nobody is at it, and nobody punches it later."""
        if key not in self.garbage and key not in self.unclaimed:
            yield
            return
        async with self._busy:
            await self._tidy(key)
            self.unclaimed.pop(key, None)  # could it not be punched now, then never: somebody is about to write there
            yield

    def replaced(self, key: str) -> None:
        """A new file took the place of whatever was there."""
        if key in self.garbage:
            self._hold(key, None)
            self._events.emit(GarbageRemoved())

    def _hold(self, key: str, size: int | None) -> None:
        """That file is garbage of so many bytes; None: it is none any more."""
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
    """The bytes that the file still holds; None: it is gone."""
    try:
        file_io.unlink(key, directory, abilities)
    except FileNotFoundError:
        return None
    except (CacheError, OSError):  # held, or a disk that fails: it is counted, and tried again
        with suppress(OSError):
            return os.stat(key, dir_fd=directory, follow_symlinks=False).st_blocks * 512
        return 0
    return None


def _punch(key: str, directory: int, ranges: Sequence[tuple[int, int]], abilities: Abilities) -> int | None:
    """The bytes the file holds then; None: it could not be done."""
    try:
        file_io.punch(key, directory, None, ranges, abilities)
        return os.stat(key, dir_fd=directory, follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0
    except (CacheError, OSError):
        return None
