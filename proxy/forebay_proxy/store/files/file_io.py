"""The blocking operations on shard files, through their descriptors. They run in the thread pools and own no state.

A file is punched or unlinked only under ``flock(LOCK_EX)``. A descriptor that was passed to a client carries ``LOCK_SH``. It prevents the
punch until the client's last mapping is gone, even across a restart of the sidecar; otherwise the client would silently read zeros. The
exclusive lock is taken on a descriptor opened for it alone, so it never outlives the call.

A shard file's name is checked before it is opened. A link, a pipe, a device or a directory is never opened. A file with a second name is
never written to or emptied.
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

_DIGEST_BYTES = 2**20  # pieces that stay in the processor's cache

_OPEN = os.O_RDWR | os.O_NOFOLLOW
_ANY = 2**31
# Two exclusive locks of our own on one file refuse each other, and look like a client's shared lock. If a release failed that way, its
# range would stay allocated and unwritten, and the next start would take it for a stored segment. So one thread at a time.
_ALONE = threading.Lock()


class Leased(CacheError):
    """A passed descriptor still holds the shard: nothing of it may leave now."""


class InTheWay(CacheError):
    """The shard file's name is taken by something that is no shard file and cannot be removed like one."""


def is_plain(state: os.stat_result) -> bool:
    """Whether it can be a file of ours: a regular file of our uid. ``_open`` checks ``st_nlink``."""
    return stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid()


def create(key: str, directory: int, length: int | None, abilities: Abilities) -> int:
    """Make and open a sparse file of full length; an older file of that name is removed.

    Raises Leased, InTheWay (a directory) or OSError.
    """
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
    """Open a file made earlier. Raises OSError; ESTALE if another file has its name, or its size is not ``length``."""
    fd = _open(key, directory)
    if length is not None and os.fstat(fd).st_size != length:
        os.close(fd)
        raise OSError(errno.ESTALE, "the file has another size than it was given")
    return fd


def _open(key: str, directory: int, *, names: int = 1) -> int:
    """Open the file ``key`` if it is a plain one with at most ``names`` names. Anything else is not opened at all."""
    named = os.stat(key, dir_fd=directory, follow_symlinks=False)
    if not is_plain(named) or named.st_nlink > names:
        raise OSError(errno.ESTALE, "it is not a plain file of ours")
    fd = os.open(key, _OPEN, dir_fd=directory)
    if not os.path.samestat(named, os.fstat(fd)):
        os.close(fd)
        raise OSError(errno.ESTALE, "another file took its place")
    return fd


def lacking(fd: int, spans: Iterable[tuple[int, int, int]]) -> set[int]:
    """The numbers of the (number, offset, length) ranges, given in order, that are not wholly in the file.

    A range that was written completely has no hole; an evicted or cut range has one. So this finds an index that is older than the file,
    and a file that was cut and lengthened again, without reading a byte. If the file system cannot say, nothing is lacking.
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
        return os.lseek(fd, offset, os.SEEK_HOLE)  # the file position is not used otherwise
    except OSError:
        return size


def allocate(fd: int, offset: int, length: int, abilities: Abilities) -> None:
    """Reserve the blocks of a range. If not all can be reserved, those that were are freed again. Raises OSError."""
    _sound(fd, offset + length)
    try:
        fallocate.allocate(fd, offset, length)
    except OSError:
        if abilities.punch:
            release(fd, offset, length)
        raise


def release(fd: int, offset: int, length: int) -> None:
    """Free a range that was allocated and never claimed. If a passed descriptor holds the file, the range stays as it is.

    A descriptor from before a restart may: its shard was complete then, and the claim of this range was being withdrawn at the kill.
    """
    with _ALONE, suppress(BlockingIOError, FileNotFoundError), _locked(fd) as own:
        fallocate.punch_from_tail(own, offset, length)


def append(fd: int, offset: int, data: bytes | memoryview, also: DigestHasher | None = None) -> float:
    """Write all of ``data`` at ``offset``, then feed it to ``also``. Returns the seconds that the disk took."""
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
    """Fill ``buffer`` if the whole range is in memory. This is the one operation that never blocks and may run on the event loop."""
    try:
        return os.preadv(fd, [buffer], offset, os.RWF_NOWAIT) == len(buffer)
    except (OSError, AttributeError):  # not in memory, or the system cannot say; read() will report errors
        return False


def read(fd: int, offset: int, length: int) -> bytes:
    """Read the whole range."""
    data = os.pread(fd, length, offset)
    while len(data) < length:
        more = os.pread(fd, length - len(data), offset + len(data))
        if not more:
            raise _ended()
        data += more
    return data


def digest(fd: int, offset: int, length: int, also: DigestHasher | None = None, gentle: bool = False) -> int:
    """The xxh3_64 of the range; 1 instead of 0, because 0 means absent. ``also`` gets the same bytes.

    ``gentle``: pieces that were not in memory before are dropped from it again, so that a check of a whole cache does not displace other
    data.
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
    """Write the file's bytes to the disk, so that they survive a power cut."""
    _linked(fd)
    os.fdatasync(fd)


def punch(key: str, directory: int, fd: int | None, ranges: Sequence[tuple[int, int]], abilities: Abilities) -> None:
    """Free (offset, length) ranges, each from its tail on, so that an interruption keeps the head.

    ``fd``: the file that ``key`` must name.
    """
    if not abilities.punch:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    with _ALONE, _unleased(key, directory, fd) as own:
        for offset, length in reversed(ranges):
            fallocate.punch_from_tail(own, offset, length)


def unlink(key: str, directory: int, abilities: Abilities, fd: int | None = None) -> None:
    """Free everything from the tail on, then unlink: unlinking 0.8 GB at once would hold the file system's journal for 160 ms.

    If the name belongs to something that is no plain file, or has a second name, only the name is removed. Raises Leased, InTheWay,
    OSError.
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
    """The file, on a new descriptor and exclusively locked. Raises Leased."""
    fd = _open(key, directory, names=1 if expected is None else _ANY)  # a file that we hold open is ours, even with a second name
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
    """The open file ``fd``, whatever its name is now, on a new descriptor and exclusively locked. Raises OSError."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield own
    finally:
        os.close(own)


def _linked(fd: int) -> os.stat_result:
    """Check that the file still has a name. Writing into a deleted file would fill the disk with bytes that nobody can see."""
    state = os.fstat(fd)
    if not state.st_nlink:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    return state


def _sound(fd: int, end: int) -> None:
    """Check that the file is at least ``end`` bytes long. It has its length before any write: a shorter one was cut by another program."""
    if _linked(fd).st_size < end:
        raise _ended()


def _ended() -> OSError:
    return OSError(errno.ENODATA, "the file ends before the range does")
