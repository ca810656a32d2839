"""The blocking leaves of the store: what is done to a shard file through its descriptor. They run in the pools and own nothing.

A file is punched or unlinked only under ``flock(LOCK_EX)``: a descriptor that was passed to a client carries ``LOCK_SH``, and holds until
the client's last map of it is gone, even across our own restart. Without that a hole would read as zeros there, silently. The lock is
taken on a descriptor opened for it alone, so it never outlives the call.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import xxhash

from forebay_proxy import fallocate
from forebay_proxy.errors import CacheError
from forebay_proxy.fallocate import Abilities
from forebay_proxy.segments import SEGMENT_BYTES

__all__ = [
    "Hasher", "Leased", "allocate", "create", "digest", "grow", "punch", "read", "read_now", "release", "reopen", "resize", "sync",
    "unlink", "write", "write_pieces",
]  # fmt: skip

_DIGEST_BYTES = 2**20  # read and hash in pieces that stay in the processor's cache
_IOV_MAX = 1024  # of Linux
_TAIL_ROUNDING = 2**16  # a punch up to the end of the file must pass it, or the last block is zeroed and kept
_OPEN = os.O_RDWR | os.O_NOFOLLOW


class Leased(CacheError):
    """A passed descriptor still holds the shard: nothing of it may leave now."""


def create(key: str, directory: int, length: int | None, abilities: Abilities) -> int:
    """A new sparse file of full length, open. A file of an earlier life is removed first. Raises Leased if that one is held."""
    with suppress(FileNotFoundError):
        unlink(key, directory, abilities)
    fd = os.open(key, _OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    try:
        os.ftruncate(fd, length or 0)
    except OSError:
        os.unlink(key, dir_fd=directory)
        os.close(fd)
        raise
    return fd


def reopen(key: str, directory: int) -> int:
    """A file of an earlier life, open."""
    return os.open(key, _OPEN, dir_fd=directory)


def allocate(fd: int, offset: int, length: int, abilities: Abilities) -> None:
    """Reserve the blocks of a range; what was reserved of it is given back if not all could be."""
    _linked(fd)
    try:
        fallocate.allocate(fd, offset, length)
    except OSError:
        if abilities.punch:
            _punch_from_tail(fd, offset, length)
        raise


def release(fd: int, offset: int, length: int) -> None:
    """Free a range that was allocated and never claimed: nobody can hold a lease on it."""
    _punch_from_tail(fd, offset, length)


def write(fd: int, offset: int, data: bytes | bytearray | memoryview) -> None:
    """All of ``data``, at ``offset``."""
    _linked(fd)
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)


class Hasher(Protocol):
    """Something that takes bytes in order, as ``xxhash.xxh3_64`` does."""

    def update(self, data: bytes | memoryview, /) -> None: ...


def write_pieces(fd: int, offset: int, pieces: list[bytes | memoryview], hasher: Hasher) -> None:
    """All of ``pieces``, from ``offset`` on; ``hasher`` gets what was written."""
    _linked(fd)
    written = os.pwritev(fd, pieces[:_IOV_MAX], offset)
    if written != sum(map(len, pieces)):  # a signal, a nearly full disk or very many pieces: the slow way says what is wrong, if anything
        for piece in pieces:
            write(fd, offset, piece)
            offset += len(piece)
    for piece in pieces:
        hasher.update(piece)


def read_now(fd: int, offset: int, buffer: memoryview) -> bool:
    """Fill ``buffer`` if all of the range is in memory. The one leaf that never blocks and may run on the loop."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
    except (OSError, AttributeError):  # not in memory, or a system that cannot say; what is wrong, if anything, read() will tell
        return False


def read(fd: int, offset: int, length: int) -> bytes:
    """The range, all of it."""
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            raise _ended()
        data += more
    return data


def digest(fd: int, offset: int, length: int) -> int:
    """The xxh3_64 of the range; a sum of 0 is told as 1, because 0 means absent."""
    hasher, buffer = xxhash.xxh3_64(), bytearray(min(length, _DIGEST_BYTES))
    end = offset + length
    while offset < end:
        with memoryview(buffer)[: end - offset] as piece:
            count = os.preadv(fd, [piece], offset)
            if not count:
                raise _ended()
            hasher.update(piece[:count])
        offset += count
    return hasher.intdigest() or 1


def grow(fd: int, length: int) -> None:
    """Make the file at least ``length`` bytes long."""
    _linked(fd)
    if os.fstat(fd).st_size < length:
        os.ftruncate(fd, length)


def resize(fd: int, length: int) -> None:
    """Make the file exactly ``length`` bytes long."""
    _linked(fd)
    os.ftruncate(fd, length)


def sync(fd: int) -> None:
    """Put the file's bytes where a power cut does not reach them."""
    _linked(fd)
    os.fdatasync(fd)


def punch(key: str, directory: int, fd: int | None, ranges: Sequence[tuple[int, int]], abilities: Abilities) -> None:
    """Free (offset, length) ranges, each from its tail on: who is stopped half-way keeps the head. ``fd``: the file ``key`` must name."""
    if not abilities.punch:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    with _unleased(key, directory, fd) as own:
        for offset, length in reversed(ranges):
            _punch_from_tail(own, offset, length)


def unlink(key: str, directory: int, abilities: Abilities, fd: int | None = None) -> None:
    """Free everything from the tail on and unlink: one unlink of 0.8 GB would hold the file system's journal for 160 ms."""
    with _unleased(key, directory, fd) as own:
        if abilities.punch:
            _punch_from_tail(own, 0, os.fstat(own).st_size)
        os.unlink(key, dir_fd=directory)


@contextmanager
def _unleased(key: str, directory: int, expected: int | None) -> Iterator[int]:
    """The file, opened afresh and locked against everybody. Raises Leased."""
    fd = os.open(key, _OPEN, dir_fd=directory)
    try:
        if expected is not None and not os.path.samestat(os.fstat(fd), os.fstat(expected)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Leased(f"shard file {key[:12]} is held by a passed descriptor") from None
        yield fd
    finally:
        os.close(fd)


def _punch_from_tail(fd: int, offset: int, length: int) -> None:
    end = offset + length
    if end >= os.fstat(fd).st_size:
        end = -(-end // _TAIL_ROUNDING) * _TAIL_ROUNDING
    for first in reversed(range(offset, end, SEGMENT_BYTES)):
        fallocate.punch(fd, first, min(SEGMENT_BYTES, end - first))


def _linked(fd: int) -> None:
    """Writing into a file that was deleted under us would fill a disk with bytes nobody can see."""
    if not os.fstat(fd).st_nlink:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _ended() -> OSError:
    return OSError(errno.ENODATA, "the file ends before the range does")
