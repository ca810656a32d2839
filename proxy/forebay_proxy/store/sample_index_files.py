"""The sample indexes on the disk: one small file per shard version, each checked before it is used.

A file holds its shard version's key and the encoded index, whose own checksum covers it. A faulty file (cut by a kill, flipped bits,
another key) is removed, and made again when a reader asks. Nothing is synced: an index lost in a power cut is made again too. Used on the
event loop alone; blocking calls run in the store's pools.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.segments import allocated
from forebay_proxy.store.files.shard_file import PATIENCE_S
from forebay_proxy.store.files.thread_pools import Pool, Pools, disk_errors
from forebay_proxy.wire.tar.sample_index import MAX_INDEX_BYTES, InvalidIndex, decode

__all__ = ["MOST_FILES", "SampleFiles", "disk_bytes"]

T = TypeVar("T")
Args = TypeVarTuple("Args")

MOST_FILES = 1 << 15  # each costs one stat at a start: a sixth of a second
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_LARGEST_BYTES = MAX_INDEX_BYTES + (1 << 20)


class SampleFiles:
    """The sample indexes by key of their shard version, in the order of their last use. ``bytes`` is the sum of their allocated bytes."""

    def __init__(self, directory: int, pools: Pools) -> None:
        """``directory`` is an open descriptor of a folder that holds nothing else."""
        self.bytes = 0
        self._directory = directory
        self._pools = pools
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._busy = asyncio.Lock()  # one at a time: a removal must not hit a file that was just made

    def __repr__(self) -> str:
        return f"<SampleFiles {len(self._sizes)} files, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    def found(self, sizes: Mapping[str, int]) -> None:
        """At the start: add existing files, with their allocated bytes, the longest unused first."""
        for key, size in sizes.items():
            self._count(key, size)

    def surplus(self, most_bytes: int, *, files: int = MOST_FILES) -> list[str]:
        """The keys to remove so that at most ``most_bytes`` and ``files`` stay."""
        over_bytes, over_files, going = self.bytes - most_bytes, len(self._sizes) - files, list[str]()
        for key, size in self._sizes.items():
            if over_bytes <= 0 and over_files <= 0:
                break
            going.append(key)
            over_bytes, over_files = over_bytes - size, over_files - 1
        return going

    async def read(self, key: str) -> bytes | None:
        """The encoded index of that shard version; None if there is no valid one. Raises DiskFailed."""
        if key not in self._sizes:
            return None
        async with self._busy:
            found = await self._run(self._pools.reads, "read", _read, self._directory, key)
        if found is None:
            await self.remove(key)
        elif key in self._sizes:
            self._sizes.move_to_end(key)
        return found

    async def write(self, key: str, encoded: bytes) -> None:
        """Store ``encoded``; the caller has made room for it. Raises DiskFailed."""
        async with self._busy:
            self._count(key, disk_bytes(len(encoded)))
            try:
                await self._run(self._pools.writes, "write", _write, self._directory, key, encoded)
            except DiskFailed as error:
                if error.errno_name != "ETIMEDOUT":  # after a timeout the file may still appear
                    self._forget(key)
                raise

    async def remove(self, key: str) -> None:
        """Remove that file, if there is one. Raises DiskFailed."""
        if key not in self._sizes:
            return
        async with self._busy:
            await self._run(self._pools.writes, "remove", _remove, self._directory, key)
            self._forget(key)

    def _count(self, key: str, size: int) -> None:
        self._forget(key)
        self._sizes[key] = size
        self.bytes += size

    def _forget(self, key: str) -> None:
        self.bytes -= self._sizes.pop(key, 0)

    async def _run(self, pool: Pool, operation: str, function: Callable[[*Args], T], *args: *Args) -> T:
        with disk_errors(operation, "a sample index"):
            return await pool.run(function, *args, patience_s=PATIENCE_S)


def disk_bytes(encoded_bytes: int) -> int:
    """The bytes that a disk allocates for an index of so many bytes."""
    return allocated(32 + encoded_bytes)


def _read(directory: int, key: str) -> bytes | None:
    try:
        fd = os.open(key, _READ, dir_fd=directory)
    except FileNotFoundError:
        return None
    with open(fd, "rb", buffering=0) as file:
        content = file.read(_LARGEST_BYTES)
    encoded = memoryview(content)[32:]
    if content[:32] != bytes.fromhex(key):
        return None
    try:
        decode(encoded)
    except InvalidIndex:
        return None
    return content[32:]


def _write(directory: int, key: str, encoded: bytes) -> None:
    _remove(directory, key)
    fd = os.open(key, _MAKE, 0o600, dir_fd=directory)
    try:
        with open(fd, "wb", buffering=0) as file:
            for part in (bytes.fromhex(key), encoded):
                view = memoryview(part)
                while view:
                    view = view[file.write(view) or 0 :]
    except OSError:
        _remove(directory, key)
        raise


def _remove(directory: int, key: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(key, dir_fd=directory)
