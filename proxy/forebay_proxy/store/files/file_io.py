"""The blocking leaves of the store: what is done to a shard file through its descriptor. They run in the pools and own nothing.

A file is punched or unlinked only under ``flock(LOCK_EX)``: a descriptor that was passed to a client carries ``LOCK_SH``, and holds until
the client's last map of it is gone, even across our own restart. Without that a hole would read as zeros there, silently. The lock is
taken on a descriptor opened for it alone, so it never outlives the call.

What lies under a shard file's name is looked at before it is opened: a link, a pipe, a device or a directory is not ours and is never
opened, a file with a second name is never written to or emptied.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import xxhash

from forebay_proxy.core.digests import DigestHasher
from forebay_proxy.core.errors import CacheError
from forebay_proxy.store.files import fallocate
from forebay_proxy.store.files.fallocate import Abilities

__all__ = [
    "InTheWay", "Leased", "allocate", "append", "create", "digest", "is_plain", "lacking", "punch", "read",
    "read_now", "release", "reopen", "sync", "unlink",
]  # fmt: skip

_DIGEST_BYTES = 2**20  # read and hash in pieces that stay in the processor's cache

_OPEN = os.O_RDWR | os.O_NOFOLLOW
_ANY = 2**31
# Our own exclusive locks on one file refuse each other as a client's shared one does, and cannot be told from it: a release beside another
# would leave its range allocated and unwritten, which the next start takes for a segment that is here. So one thread at a time.
_ALONE = threading.Lock()


class Leased(CacheError):
    """A passed descriptor still holds the shard: nothing of it may leave now."""


class InTheWay(CacheError):
    """Something that cannot be a shard file, and cannot be removed like one, has its name."""


def is_plain(state: os.stat_result) -> bool:
    """Whether it can be a file of ours: a regular one of our uid. ``st_nlink`` is a question of its own: see ``_open``."""
    return stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid()


def create(key: str, directory: int, length: int | None, abilities: Abilities) -> int:
    """A new sparse file of full length, open. A file of its name leaves first. Raises Leased if that one is held, InTheWay: a directory."""
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


def reopen(key: str, directory: int, length: int | None = None) -> int:
    """A file of an earlier life, open. OSError ESTALE: what has its name now is not that file (``length``: the size it must have)."""
    fd = _open(key, directory)
    if length is not None and os.fstat(fd).st_size != length:
        os.close(fd)
        raise OSError(errno.ESTALE, "the file has another size than it was given")
    return fd


def _open(key: str, directory: int, *, names: int = 1) -> int:
    """The file ``key`` if it is a plain one of at most ``names`` names; anything else is not opened at all, not even to look at it."""
    named = os.stat(key, dir_fd=directory, follow_symlinks=False)
    if not is_plain(named) or named.st_nlink > names:
        raise OSError(errno.ESTALE, "it is not a plain file of ours")
    fd = os.open(key, _OPEN, dir_fd=directory)
    if not os.path.samestat(named, os.fstat(fd)):
        os.close(fd)
        raise OSError(errno.ESTALE, "another file took its place")
    return fd


def lacking(fd: int, spans: Iterable[tuple[int, int, int]]) -> set[int]:
    """Which of the (number, offset, length) ranges, in order, are not wholly in the file.

    A range that was written whole has no hole, whatever was evicted or cut since has: so an index that is older than the file, and a file
    that somebody cut and lengthened again, are found out without reading a byte. Where a file system cannot say, nothing is lacking.
    """
    missing, first, end = set[int](), 0, 0  # known so far: no hole in [first, end)
    size = os.fstat(fd).st_size  # of an open file: this cannot fail
    for number, offset, length in spans:
        if offset + length > size:
            missing.add(number)
            continue
        if not first <= offset < end:
            first, end = offset, _hole_after(fd, offset, size)
        if end < offset + length:
            missing.add(number)
    return missing


def _hole_after(fd: int, offset: int, size: int) -> int:
    try:
        return os.lseek(fd, offset, os.SEEK_HOLE)  # the position is nobody's: all reading and writing names its own
    except OSError:
        return size


def allocate(fd: int, offset: int, length: int, abilities: Abilities) -> None:
    """Reserve the blocks of a range; what was reserved of it is given back if not all could be."""
    _sound(fd, offset + length)
    try:
        fallocate.allocate(fd, offset, length)
    except OSError:
        if abilities.punch:
            release(fd, offset, length)
        raise


def release(fd: int, offset: int, length: int) -> None:
    """Free a range that was allocated and never claimed, unless a passed descriptor holds the file: then it stays as it is.

    One of an earlier life may: its shard was complete then, and the claim of this range was withdrawn in the moment of the kill.
    """
    with _ALONE, suppress(BlockingIOError, FileNotFoundError), _locked(fd) as own:
        fallocate.punch_from_tail(own, offset, length)


def append(fd: int, offset: int, data: bytes | memoryview, also: DigestHasher | None = None) -> float:
    """All of ``data``, at ``offset``; then ``also`` takes it. How many seconds the disk took for it."""
    began = time.monotonic()
    _sound(fd, offset + len(data))
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)
    seconds = time.monotonic() - began
    if also is not None:
        also.update(data)
    return seconds


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


def digest(fd: int, offset: int, length: int, also: DigestHasher | None = None, gentle: bool = False) -> int:
    """The xxh3_64 of the range; a sum of 0 is told as 1, because 0 means absent. ``also`` gets the same bytes.

    ``gentle``: pieces that were not in memory before are let go of again, so that looking at a whole cache keeps none of it warm.
    """
    hasher, buffer = xxhash.xxh3_64(), bytearray(min(length, _DIGEST_BYTES))
    end = offset + length
    while offset < end:
        with memoryview(buffer)[: end - offset] as piece:
            warm = gentle and read_now(fd, offset, piece)
            count = len(piece) if warm else os.preadv(fd, [piece], offset)
            if not count:
                raise _ended()
            hasher.update(piece[:count])
            if also is not None:
                also.update(piece[:count])
        if gentle and not warm:
            os.posix_fadvise(fd, offset, count, os.POSIX_FADV_DONTNEED)
        offset += count
    return hasher.intdigest() or 1


def sync(fd: int) -> None:
    """Put the file's bytes where a power cut does not reach them."""
    _linked(fd)
    os.fdatasync(fd)


def punch(key: str, directory: int, fd: int | None, ranges: Sequence[tuple[int, int]], abilities: Abilities) -> None:
    """Free (offset, length) ranges, each from its tail on: who is stopped half-way keeps the head. ``fd``: the file ``key`` must name."""
    if not abilities.punch:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    with _ALONE, _unleased(key, directory, fd) as own:
        for offset, length in reversed(ranges):
            fallocate.punch_from_tail(own, offset, length)


def unlink(key: str, directory: int, abilities: Abilities, fd: int | None = None) -> None:
    """Free everything from the tail on and unlink: one unlink of 0.8 GB would hold the file system's journal for 160 ms.

    What is not a plain file, or has a second name, only loses this name: unopened, its bytes untouched. Raises Leased, InTheWay, OSError.
    """
    named = os.stat(key, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISDIR(named.st_mode):
        raise InTheWay(f"a directory has the name of shard file {key[:12]}")
    if not is_plain(named) or named.st_nlink != 1:
        os.unlink(key, dir_fd=directory)
        return
    with _ALONE, _unleased(key, directory, fd) as own:
        if abilities.punch:
            fallocate.punch_from_tail(own, 0, os.fstat(own).st_size)
        os.unlink(key, dir_fd=directory)


@contextmanager
def _unleased(key: str, directory: int, expected: int | None) -> Iterator[int]:
    """The file, opened afresh and locked against everybody. Raises Leased."""
    fd = _open(key, directory, names=1 if expected is None else _ANY)  # one that we hold open is ours, whoever linked to it since
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


@contextmanager
def _locked(fd: int) -> Iterator[int]:
    """The open file ``fd``, whatever its name is now, opened once more and locked against everybody. Raises OSError."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield own
    finally:
        os.close(own)


def _linked(fd: int) -> os.stat_result:
    """Writing into a file that was deleted under us would fill a disk with bytes nobody can see."""
    state = os.fstat(fd)
    if not state.st_nlink:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return state


def _sound(fd: int, end: int) -> None:
    """A file has its length before anything is written: a write beyond it would make a hole of bytes that another program cut."""
    if _linked(fd).st_size < end:
        raise _ended()


def _ended() -> OSError:
    return OSError(errno.ENODATA, "the file ends before the range does")
