"""file origins: shards on a mounted path (a NAS), only below the configured roots.

A path is never trusted: it is opened without effect first (O_PATH), and where the kernel says it *is* decides, so a symlink that leads out
of the roots is refused and none can be swapped in between. Reads run in a pool of their own: a hung mount blocks eight threads of ours and
nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import TypeVar

from forebay_proxy.core.errors import (
    InvalidShard,
    OriginRefused,
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
    TruncatedShard,
)
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import ByteRange, Pin, PinKind, Shard, Version
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.errors import report

__all__ = ["FileOrigin"]

T = TypeVar("T")

PIECE_BYTES = 1 << 20  # one NFS read-ahead window; a cancelled body waits for at most this much
POOL_THREADS = 8  # enough to fill a mount, few enough that a hung one is no threat


class FileOrigin:
    """Files below ``roots``; an ``Origin``. No root, no file."""

    def __init__(self, roots: Iterable[Path | str], *, events: Events | None = None, idle_timeout_s: float = 15.0) -> None:
        self._roots = tuple((os.path.abspath(root), os.path.realpath(root)) for root in roots)
        self._events = events or Events()
        self._idle_timeout_s = idle_timeout_s
        self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="forebay-file")

    @asynccontextmanager
    async def read(self, shard: Shard, range: ByteRange | None, pin: Pin) -> AsyncIterator[OriginBody]:
        """As ``Origin.read``; ``version.pin`` is an ETag made of inode, size and time of change."""
        with report(self._events, shard):
            opened = await self._run(shard, partial(_open, shard, self._roots), late=self._close)
            try:
                _, state = opened
                version = state.version()
                if pin and pin != version.pin:
                    raise ShardChanged(shard.name, "the file is no longer the one being read")
                first, end = _extent(shard, range, state.size)
                async with aclosing(self._chunks(shard, opened, first, end)) as chunks:
                    yield OriginBody(version, first, end - first, True, True, chunks)
            finally:
                self._close(opened)

    async def head(self, shard: Shard) -> Version:
        async with self.read(shard, None, Pin()) as body:
            return body.version

    async def aclose(self) -> None:
        self._pool.shutdown(wait=False)

    def _close(self, opened: _Opened) -> None:
        try:
            self._pool.submit(os.close, opened[0])  # not on the loop: on a hung mount even closing blocks
        except RuntimeError:  # the pool is shut down
            os.close(opened[0])

    async def _chunks(self, shard: Shard, opened: _Opened, position: int, end: int) -> AsyncGenerator[bytes]:
        while position < end:
            piece = await self._run(shard, partial(_read, shard, opened, position, min(PIECE_BYTES, end - position)))
            position += len(piece)
            yield piece

    async def _run(self, shard: Shard, call: Callable[[], T], late: Callable[[T], object] | None = None) -> T:
        """A blocking call in the pool. ``late`` gets a result that nobody waits for any more."""
        running = asyncio.get_running_loop().run_in_executor(self._pool, call)
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                return await asyncio.shield(running)
        except (TimeoutError, asyncio.CancelledError) as error:
            running.add_done_callback(lambda done: done.cancelled() or done.exception() or late is None or late(done.result()))
            if isinstance(error, TimeoutError):
                raise OriginTimeout(shard.name, f"the file system was silent for {self._idle_timeout_s:g} s") from error
            raise
        except OSError as error:
            raise _mapped(shard, error) from error


_Opened = tuple[int, "_State"]  # a descriptor, and what it held then
_Root = tuple[str, str]  # a directory as the operator wrote it, and where it really is


@dataclass(frozen=True, slots=True)
class _State:
    """What tells two contents of a file apart."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, fd: int) -> _State:
        found = os.fstat(fd)
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)

    def version(self) -> Version:
        text = f"{self.inode:x}-{self.size:x}-{self.changed_ns:x}"
        whole_s = self.changed_ns // 10**9
        modified, second_over = formatdate(whole_s, usegmt=True), time.time() >= whole_s + 1
        return Version(f"file:{text}", Pin(PinKind.ETAG, f'"{text}"'), self.size, modified=modified, second_over=second_over)


def _open(shard: Shard, roots: tuple[_Root, ...]) -> _Opened:
    """Blocking. Raises ``ShardError`` or OSError."""
    path = "/" + shard.url.key()
    if ".." in path.split("/"):
        raise InvalidShard(shard.name, "a file URL holds no '..'")
    if not any(_below(root, path) for places in roots for root in places):
        raise _outside(shard)
    # O_PATH touches nothing: no device is woken, no pipe joined, no tape rewound by a name that will be refused.
    handle = os.open(os.fsencode(path), os.O_PATH | os.O_CLOEXEC)
    try:
        real = os.readlink(f"/proc/self/fd/{handle}")
        if not any(_below(root, real) for _, root in roots):
            raise _outside(shard)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise InvalidShard(shard.name, "not a regular file")
        fd = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)
    return fd, _State.of(fd)


def _read(shard: Shard, opened: _Opened, position: int, count: int) -> bytes:
    """Blocking: one piece, of the very state that was opened."""
    fd, state = opened
    piece = os.pread(fd, count, position)
    if _State.of(fd) != state:
        raise ShardChanged(shard.name, "the file changed while it was read")
    if not piece:
        raise TruncatedShard(shard.name, f"the file ends at {position} of {state.size} bytes")
    return piece


def _below(root: str, path: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def _outside(shard: Shard) -> OriginRefused:
    return OriginRefused(shard.name, "outside the directories file URLs may read", next_step="--file-root DIR allows what is below DIR")


def _extent(shard: Shard, range: ByteRange | None, size: int) -> tuple[int, int]:
    """(first byte, end) of what was asked for."""
    if range is None:
        return 0, size
    if range.first >= size:
        raise RangeNotSatisfiable(shard.name, f"the file holds {size} bytes, asked was {range.header()}", length=size)
    return range.first, size if range.last is None else min(range.last + 1, size)


def _mapped(shard: Shard, error: OSError) -> ShardError:
    """An errno as one of ours; the texts name no path but the shard's own."""
    words = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
        return ShardNotFound(shard.name, words)
    if error.errno in (errno.EACCES, errno.EPERM):
        return ShardForbidden(shard.name, words, next_step="let the sidecar's user read the file")
    return OriginUnavailable(shard.name, f"the file system failed: {words}")
