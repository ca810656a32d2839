"""One stored shard: a sparse file, reached through one descriptor, whose segments come and go."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, TypeVarTuple

from forebay_proxy import fileio
from forebay_proxy.diskerror import disk_errors
from forebay_proxy.errors import DiskFailed
from forebay_proxy.fallocate import Abilities
from forebay_proxy.fileio import Hasher
from forebay_proxy.pools import Pool, Pools

__all__ = ["ShardFile"]

T = TypeVar("T")
Args = TypeVarTuple("Args")


class ShardFile:
    """The file of one shard version, open. The event loop's only; what blocks runs in a pool.

    Any call may raise DiskFailed. Offsets and lengths are in bytes. Nobody may read a range while it is punched: the caller sees to that.
    """

    def __init__(
        self, key: str, fd: int, directory: int, *, pools: Pools, abilities: Abilities, closed: Callable[[ShardFile], None]
    ) -> None:
        self.key = key
        self._fd = fd
        self._directory = directory
        self._pools = pools
        self._abilities = abilities
        self._when_closed = closed
        self._closing = False
        self._busy = 0
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ShardFile {self.key[:12]}, {self._busy} busy{', closing' if self._closing else ''}>"

    async def allocate(self, offset: int, length: int) -> None:
        """Reserve the blocks of a range, so that writing it cannot run out of space. Nothing where the file system cannot.

        A range that could not be reserved whole is given back before DiskFailed is raised; one that nobody waits for any more, too.
        """
        if not self._abilities.allocate:
            return
        try:
            await self._run(self._pools.writes, "allocate", fileio.allocate, self._fd, offset, length, self._abilities)
        except asyncio.CancelledError:
            if self._abilities.punch and not self._closing:
                with suppress(DiskFailed):
                    await self._run(self._pools.writes, "release", fileio.release, self._fd, offset, length)
            raise

    async def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of ``data`` at ``offset``. ``data`` is not touched any more once this returns or raises."""
        await self._run(self._pools.writes, "write", fileio.write, self._fd, offset, data)

    async def write_pieces(self, offset: int, pieces: list[bytes | memoryview], hasher: Hasher) -> None:
        """Write ``pieces`` one behind the other from ``offset`` and feed ``hasher`` with them, in one thread call."""
        await self._run(self._pools.writes, "write", fileio.write_pieces, self._fd, offset, pieces, hasher)

    def read_now(self, offset: int, buffer: memoryview) -> bool:
        """Fill ``buffer`` from ``offset`` if all of it is in memory; False where the disk would have to be asked. Never blocks."""
        self._check_open("read")
        return fileio.read_now(self._fd, offset, buffer)

    async def read(self, offset: int, length: int) -> bytes:
        """The range, all of it; a file that ends before it is a DiskFailed (ENODATA)."""
        return await self._run(self._pools.reads, "read", fileio.read, self._fd, offset, length)

    async def digest(self, offset: int, length: int) -> int:
        """The xxh3_64 of the range as it is claimed: never 0."""
        return await self._run(self._pools.reads, "read", fileio.digest, self._fd, offset, length)

    async def punch(self, offset: int, length: int) -> None:
        """Free a range, from its tail on. Raises Leased if a passed descriptor holds the shard."""
        ranges = [(offset, length)]
        await self._run(self._pools.writes, "punch", fileio.punch, self.key, self._directory, self._fd, ranges, self._abilities)

    async def grow(self, length: int) -> None:
        """Make the file at least ``length`` long: before a range of a shard of unknown length is allocated."""
        await self._run(self._pools.writes, "grow", fileio.grow, self._fd, length)

    async def settle(self, length: int) -> None:
        """Make the file exactly ``length`` long: once the length of the shard became known."""
        await self._run(self._pools.writes, "settle", fileio.resize, self._fd, length)

    async def sync(self) -> None:
        """fdatasync: what was written survives a power cut."""
        await self._run(self._pools.writes, "sync", fileio.sync, self._fd)

    async def remove(self) -> None:
        """Free everything, from the tail on, unlink the file and close it. Raises Leased, and then all is as before."""
        try:
            await self._run(self._pools.writes, "remove", self._unlink, self.key, self._directory, self._abilities, self._fd)
        finally:
            if not self._closing and not os.fstat(self._fd).st_nlink:  # also when cancelled while the thread was at it
                await self.aclose()

    @staticmethod
    def _unlink(key: str, directory: int, abilities: Abilities, fd: int) -> None:
        with suppress(FileNotFoundError):  # somebody was faster; our descriptor is the last thing that holds the blocks
            fileio.unlink(key, directory, abilities, fd)

    def allocated_bytes(self) -> int:
        """What the disk allocates for the file now."""
        self._check_open("stat")
        return os.fstat(self._fd).st_blocks * 512

    async def aclose(self) -> None:
        """Close the file once the calls that run have ended; further calls fail. Safe to repeat; cancelled early, the file stays open."""
        if self._closing:
            return
        self._closing = True
        try:
            while self._busy:
                self._idle.clear()
                await self._idle.wait()
        except asyncio.CancelledError:
            self._closing = False
            raise
        self._when_closed(self)
        try:
            await self._pools.writes.run(self._close)  # the last close of an unlinked file frees its blocks: that may take its time
        finally:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    async def _run(self, pool: Pool, operation: str, function: Callable[[*Args], T], *args: *Args) -> T:
        self._check_open(operation)
        self._busy += 1
        try:
            with disk_errors(operation, f"shard file {self.key[:12]}"):
                return await pool.run(function, *args)
        finally:
            self._busy -= 1
            self._idle.set()

    def _check_open(self, operation: str) -> None:
        if self._closing:
            raise DiskFailed(operation, "EBADF", f"shard file {self.key[:12]} is closed")
