"""One stored shard version: a sparse file on one descriptor, whose segments come and go."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple

from forebay_proxy.core.digests import DigestHasher
from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.store.files import file_io, page_cache
from forebay_proxy.store.files.fallocate import Abilities
from forebay_proxy.store.files.thread_pools import Pool, Pools, disk_errors, disk_failed

__all__ = ["PATIENCE_S", "ShardFile"]

T = TypeVar("T")
Args = TypeVarTuple("Args")

# Writing a MiB into the page cache takes 0.3 ms, or 3 ms if its memory is touched for the first time. A disk that throttles writers takes
# tens of milliseconds.
QUICK_S = 0.008
QUICK_FOR_S = 0.5  # after a quick write; a segment from a near origin arrives within less
SLOW_FOR_S = 1.0
PATIENCE_S = 10.0  # a throttled disk takes a second for a write of 2 MiB; if it takes ten, the origin is the better source


class ShardFile:
    """The open file of one shard version. Used on the event loop alone; blocking calls run in a pool.

    Any call may raise DiskFailed. Offsets and lengths are in bytes. The caller ensures that no range is read while it is punched.

    Calls that a reader or a fetch waits for end with ETIMEDOUT after ``PATIENCE_S``, done or not. Removals and syncs have no time limit. A
    removal waits for overdue calls first: a late write must not fill blocks that were freed.
    """

    def __init__(
        self, key: str, fd: int, directory: int, *, pools: Pools, abilities: Abilities, closed: Callable[[ShardFile], None]
    ) -> None:
        self.key = key
        self.lacking: frozenset[int] = frozenset()  # claimed segments that were not wholly in the file when it was opened
        self._fd = fd
        self._directory = directory
        self._pools = pools
        self._abilities = abilities
        self._when_closed = closed
        self._closing = False  # no further call begins
        self._busy = 0
        self._quick_until = 0.0  # monotonic seconds: until then the event loop may write
        self._slow_until = 0.0  # until then it may not, whatever a thread measures
        self._overdue: set[asyncio.Future[Any]] = set()  # calls that still run and have no waiter
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ShardFile {self.key[:12]}, {self._busy} busy{', closing' if self._closing else ''}>"

    async def allocate(self, offset: int, length: int) -> None:
        """Reserve the blocks of a range, so that writing it cannot run out of space. Does nothing if the file system cannot do that.

        If the range cannot be reserved completely, or the caller is cancelled, the blocks are freed again.
        """
        if not self._abilities.allocate:
            return
        try:
            await self._run(self._pools.writes, "allocate", file_io.allocate, self._fd, offset, length, self._abilities)
        except asyncio.CancelledError:
            if self._abilities.punch and not self._closing and not self._overdue:
                with suppress(DiskFailed):
                    await self._run(self._pools.writes, "release", file_io.release, self._fd, offset, length)
            raise

    async def append(self, offset: int, data: bytes | memoryview, also: DigestHasher | None = None, *, probe: bool) -> None:
        """Write all of ``data`` at ``offset``, and feed it to ``also``. ``data`` is not used after this returns or raises.

        While the disk is quick, the write runs on the event loop: a thread switch costs as much processor time as the copy. It runs in a
        thread if the last write was slow or long ago, or another call uses this file. ``probe``, for the first write into a segment, also
        selects a thread, so that a hanging disk stops only the thread.
        """
        began = time.monotonic()
        if probe or self._busy or began >= self._quick_until:
            seconds = await self._run(self._pools.writes, "write", file_io.append, self._fd, offset, data, also)
            self._quick_until = time.monotonic() + QUICK_FOR_S if seconds < QUICK_S and began >= self._slow_until else 0.0
            return
        self._check_open("write")
        with disk_errors("write", f"shard file {self.key[:12]}"):
            seconds = file_io.append(self._fd, offset, data, also)
        if seconds < QUICK_S:
            self._quick_until = began + QUICK_FOR_S
        else:
            self._quick_until, self._slow_until = 0.0, began + SLOW_FOR_S

    def read_now(self, offset: int, buffer: memoryview) -> bool:
        """Fill ``buffer`` from ``offset`` if the range is in memory; otherwise return False. Never blocks."""
        self._check_open("read")
        return file_io.read_now(self._fd, offset, buffer)

    def send_now(self, sock: int, offset: int, length: int) -> int | None:
        """How many bytes from ``offset`` on the socket took; 0 if it is full. None: read them instead, which also reports errors.

        It sends only bytes that are in memory. Never blocks. Raises ConnectionError, DiskFailed.
        """
        self._check_open("read")
        if not self._abilities.send or not page_cache.in_memory(self._fd, offset, length):
            return None
        return page_cache.send(sock, self._fd, offset, length)

    async def read(self, offset: int, length: int) -> bytes:
        """Read the whole range. If the file ends before it, raises DiskFailed (ENODATA)."""
        return await self._run(self._pools.reads, "read", file_io.read, self._fd, offset, length)

    async def digest(self, offset: int, length: int, *, also: DigestHasher | None = None, gentle: bool = False) -> int:
        """The xxh3_64 of the range as the index has it: never 0. ``also`` and ``gentle`` as in ``file_io.digest``."""
        return await self._run(self._pools.reads, "read", file_io.digest, self._fd, offset, length, also, gentle)

    async def inspect(self, function: Callable[[int], T]) -> T:
        """The result of ``function``, called with the open descriptor. It must be short, and must not keep the descriptor."""
        return await self._run(self._pools.reads, "read", function, self._fd)

    def lend(self, length: int) -> int:
        """A read-only descriptor with a shared lock, to be passed to a client. Never waits for the disk."""
        self._check_open("lend")
        try:
            return _lend(self.key, self._directory, self._fd, length)
        except OSError as error:  # not by ``disk_errors``, which is slower: a client waits for this call
            raise disk_failed("lend", error, f"shard file {self.key[:12]}") from error

    def is_held(self) -> bool:
        """As ``_is_held``. Never waits for the disk."""
        return not self._closing and _is_held(self._fd)

    async def punch(self, offset: int, length: int) -> None:
        """Free a range, from its tail on. Raises Leased if a passed descriptor holds the shard."""
        place = self.key, self._directory, self._fd
        await self._settled()
        await self._run(self._pools.writes, "punch", file_io.punch, *place, [(offset, length)], self._abilities, patient=True)

    async def sync(self) -> None:
        """fdatasync: written bytes survive a power cut."""
        await self._run(self._pools.writes, "sync", file_io.sync, self._fd, patient=True)

    async def remove(self) -> None:
        """Free everything from the tail on, unlink the file and close it. Raises Leased; nothing has changed then."""
        await self._settled()
        try:
            await self._run(self._pools.writes, "remove", _unlink, self.key, self._directory, self._abilities, self._fd, patient=True)
        finally:
            if not self._closing and not _has_name(self._fd, self.key, self._directory):  # also if cancelled while the thread was at work
                await self.aclose()

    def allocated_bytes(self) -> int:
        """The bytes that the disk allocates for the file now."""
        self._check_open("stat")
        return os.fstat(self._fd).st_blocks * 512

    async def aclose(self) -> None:
        """Close the file after its running calls; later calls fail. Safe to repeat. If cancelled early, the file stays open."""
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
            await self._pools.writes.run(self._close)  # the last close of an unlinked file frees its blocks, which may take time
        finally:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _check_open(self, operation: str) -> None:
        if self._closing:
            raise DiskFailed(operation, "EBADF", f"shard file {self.key[:12]} is closed")

    async def _run(self, pool: Pool, operation: str, function: Callable[[*Args], T], *args: *Args, patient: bool = False) -> T:
        """The result of ``function``, within ``PATIENCE_S`` unless ``patient``. Raises DiskFailed."""
        self._check_open(operation)
        self._busy += 1
        try:
            with disk_errors(operation, f"shard file {self.key[:12]}"):
                return await pool.run(function, *args, patience_s=None if patient else PATIENCE_S, late=self._runs_on)
        finally:
            self._free()

    def _runs_on(self, call: asyncio.Future[Any]) -> None:
        """``call`` has no waiter any more, but still uses the descriptor."""
        self._busy += 1
        self._overdue.add(call)
        call.add_done_callback(self._came_back)

    def _came_back(self, call: asyncio.Future[Any]) -> None:
        self._overdue.discard(call)
        self._free()

    def _free(self) -> None:
        self._busy -= 1
        self._idle.set()

    async def _settled(self) -> None:
        """Wait for the calls that run without a waiter."""
        while self._overdue:
            await asyncio.wait(self._overdue)


def _has_name(fd: int, key: str, directory: int) -> bool:
    """Whether the file still has its name. A file without it may live on under a second name, linked by another program."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.stat(key, dir_fd=directory, follow_symlinks=False))
    return False


def _unlink(key: str, directory: int, abilities: Abilities, fd: int) -> None:
    with suppress(FileNotFoundError):  # already gone; our descriptor alone holds the blocks
        file_io.unlink(key, directory, abilities, fd)


# Locks for passed descriptors: each carries a shared lock until the client's last mapping is gone.


def _lend(key: str, directory: int, expected: int, length: int) -> int:
    """Open the file again, read-only and with LOCK_SH, to be passed on. ``expected`` is our own descriptor of the same file.

    The name and the inode are in memory because we hold the file open, and a local flock never leaves the kernel. So this does not wait for
    the disk and may run on the event loop. Raises OSError: ESTALE if another file, or one of another length, has the name; EAGAIN if a part
    of the file is being removed now.
    """
    fd = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        state, ours = os.fstat(fd), os.fstat(expected)
        if state.st_ino != ours.st_ino or state.st_dev != ours.st_dev or state.st_size != length:
            raise OSError(errno.ESTALE, "another file took its place")
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_held(fd: int) -> bool:
    """Whether a passed descriptor, or a mapping of one, still holds the open file ``fd``. The kernel knows that, our counters do not.

    It may run on the event loop, like ``_lend``. It takes the exclusive lock for the length of the call. So call it only for a file of
    which nothing is being removed or released. If there are no descriptors left, the answer is True; without /proc it is False.
    """
    try:
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(own)
    return False
