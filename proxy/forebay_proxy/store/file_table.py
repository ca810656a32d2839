"""The shard files of one directory that are open: each once, and none anew while an earlier call for it hangs. The event loop's only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.segments import SegmentLayout
from forebay_proxy.store.directory import Directory
from forebay_proxy.store.files import file_io
from forebay_proxy.store.files.fallocate import Abilities
from forebay_proxy.store.files.shard_file import PATIENCE_S, ShardFile
from forebay_proxy.store.files.thread_pools import Pools, disk_errors
from forebay_proxy.store.garbage import GarbageSweep

__all__ = ["ShardFiles"]


class ShardFiles:
    """Makes them, and opens them again."""

    def __init__(self, directory: Directory, pools: Pools, abilities: Abilities, sweeping: GarbageSweep, layout: SegmentLayout) -> None:
        self.open: dict[str, ShardFile | None] = {}  # by store key; None: being opened
        self._late = set[str]()  # being opened by a call that nobody waits for any more
        self._directory = directory
        self._pools = pools
        self._abilities = abilities
        self._sweeping = sweeping
        self._layout = layout

    def __repr__(self) -> str:
        return f"<ShardFiles {len(self.open)} open, {len(self._late)} late>"

    async def create(self, key: str, length: int | None) -> ShardFile:
        """A new sparse file of ``length`` bytes (None: empty, it grows). Raises DiskFailed, or Leased if an old file is stuck there."""

        def opener() -> int:
            return file_io.create(key, self._directory.shards, length, self._abilities)

        if not self._is_untidy(key):
            return await self._open_file(key, "create", opener)
        async with self._sweeping.apart(key):
            file = await self._open_file(key, "create", opener)
            self._sweeping.replaced(key)
            return file

    async def reopen(self, key: str, length: int | None = None, claimed: Sequence[int] = ()) -> ShardFile:
        """A file that ``load`` kept or ``create`` made, and that was closed since. Raises DiskFailed.

        ``ESTALE``: another file has its name, or the file is not ``length`` bytes long. Its ``lacking`` are those of the segments
        ``claimed`` that are not wholly in it.
        """
        lacking = set[int]()

        def opener() -> int:
            fd = file_io.reopen(key, self._directory.shards, length)
            lacking.update(file_io.lacking(fd, ((index, *self._layout.span(index, length)) for index in claimed)))  # raises nothing
            return fd

        async with self._sweeping.apart(key) if self._is_untidy(key) else nullcontext():
            file = await self._open_file(key, "open", opener)
            file.lacking = frozenset(lacking)
            return file

    def _is_untidy(self, key: str) -> bool:
        return key in self._sweeping.garbage or key in self._sweeping.unclaimed

    async def _open_file(self, key: str, operation: str, opener: Callable[[], int]) -> ShardFile:
        if key in self._late:
            raise DiskFailed(operation, "ETIMEDOUT", f"an earlier call has not come back (shard file {key[:12]})")
        if key in self.open:
            raise ValueError(f"shard file {key[:12]} is open already")
        self.open[key] = None
        try:
            with disk_errors(operation, f"shard file {key[:12]}"):
                late = partial(self._opens_late, key, operation)
                fd = await self._pools.writes.run(opener, undo=os.close, patience_s=PATIENCE_S, late=late)
        finally:
            if key not in self._late:
                del self.open[key]
        file = ShardFile(key, fd, self._directory.shards, pools=self._pools, abilities=self._abilities, closed=self._forget)
        self.open[key] = file
        return file

    def _opens_late(self, key: str, operation: str, call: asyncio.Future[int]) -> None:
        """No caller waits for ``call`` any more. Until it has come back the file may not be made again: the late call would remove that
        one. A file that it has made is nobody's.
        """
        self._late.add(key)

        def came_back(_: asyncio.Future[int]) -> None:
            self._late.discard(key)
            del self.open[key]
            if operation == "create":
                self._sweeping.add({key: 0}, {})

        call.add_done_callback(came_back)

    def _forget(self, file: ShardFile) -> None:
        del self.open[file.key]

    async def aclose(self) -> None:
        """Close all of them."""
        async with AsyncExitStack() as stack:
            for file in list(self.open.values()):
                if file is not None:
                    stack.push_async_callback(file.aclose)
