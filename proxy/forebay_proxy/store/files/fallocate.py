"""fallocate(2) through ctypes: reserve blocks before they are written, and free blocks in the middle of a file.

Python offers only ``posix_fallocate``. It cannot punch holes, and writes zeros if a file system lacks support, instead of failing.

What a file system can do is probed, because a return value of 0 is not always true: a punch beyond the file's size returns 0 on ext4 and
frees nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FOLIO_BYTES", "Abilities", "Reserve", "allocate", "nameless", "probe", "punch", "punch_from_tail"]

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV, errno.EINVAL})
_PUNCH_BYTES = 8 * 2**20  # freed per call: the journal is held no longer than for a segment
# The largest folio with pages of 4 KiB. A punch that cuts a folio zeroes its part in place, and a socket may still hold these pages
# (``page_cache``). So each piece begins and ends where no folio can lie across; a piece up to the end of the file goes beyond it.
FOLIO_BYTES = 2**21
_PROBE_BYTES = 256 * 1024  # a multiple of every block size in use; blocks of 64 KiB exist
_RESERVE_NAME = "reserve"
_RESERVE_BYTES = 2**20 + 2**16  # the log grows to 1 MiB before SQLite starts it again; plus the file that its readers share


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the file system of a directory can do."""

    allocate: bool
    punch: bool
    lock: bool = True  # a shared flock on one descriptor prevents an exclusive one on another
    send: bool = False  # pages of a shard file may be handed to sockets, see ``page_cache``


def _find() -> Callable[[int, int, int, int], int] | None:
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if call is None:  # not Linux
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    call.restype = ctypes.c_int
    return call  # type: ignore[no-any-return]


_fallocate = _find()


def allocate(fd: int, offset: int, length: int) -> None:
    """Reserve the blocks of ``length`` bytes from ``offset``; the file's size stays. Raises OSError."""
    _call(fd, _KEEP_SIZE, offset, length)


def punch(fd: int, offset: int, length: int) -> None:
    """Free the blocks of ``length`` bytes from ``offset``; they read as zeros then, and the file's size stays. Raises OSError."""
    _call(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length)


def punch_from_tail(fd: int, offset: int, length: int) -> None:
    """As ``punch``, in pieces from the tail on. A range up to the end of the file also frees its last block. Raises OSError.

    No piece cuts a folio, unless the range itself does.
    """
    end = offset + length
    if end >= os.fstat(fd).st_size:
        end = _up(end)
    for first, past in reversed(_pieces(fd, offset, end)):
        punch(fd, first, past - first)


def _pieces(fd: int, offset: int, end: int) -> list[tuple[int, int]]:
    """(first byte, end) of the pieces to punch: data in small pieces, each hole in one.

    A hole may be terabytes long, if an origin invented its shard's length. It may also have blocks to which nothing was written.
    """
    pieces, size = list[tuple[int, int]](), os.fstat(fd).st_size
    while offset < end:
        found = min(end, _next(fd, offset, os.SEEK_DATA, end))
        data = max(offset, found // FOLIO_BYTES * FOLIO_BYTES)
        hole = _next(fd, found, os.SEEK_HOLE, end)
        hole = min(end, _up(hole)) if found < hole < size else end  # beyond the file's end: see ``FOLIO_BYTES``
        if data > offset:
            pieces.append((offset, data))
        pieces += ((first, min(hole, first + _PUNCH_BYTES)) for first in range(data, hole, _PUNCH_BYTES))
        offset = hole
    return pieces


def _up(offset: int) -> int:
    return -(-offset // FOLIO_BYTES) * FOLIO_BYTES


def _next(fd: int, offset: int, kind: int, end: int) -> int:
    """Where data, or a hole, begins at or after ``offset``; ``end`` if there is none. If the file system cannot say, all is data."""
    try:
        return os.lseek(fd, offset, kind)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end
        return offset if kind == os.SEEK_DATA else end


def _call(fd: int, mode: int, offset: int, length: int) -> None:
    if _fallocate is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while _fallocate(fd, mode, offset, length):
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def probe(directory: int) -> Abilities:
    """Try everything on a nameless file in ``directory`` (an open descriptor). Raises OSError if no file can be made there."""
    fd = nameless(directory)
    try:
        os.ftruncate(fd, _PROBE_BYTES)
        return Abilities(_supports(allocate, fd), _frees(fd), _locks(fd))
    finally:
        os.close(fd)


def nameless(directory: int) -> int:
    """A file that leaves nothing behind, even after a kill. Without O_TMPFILE, a named file that is unlinked at once."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise
    fd = os.open("probe", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600, dir_fd=directory)
    os.unlink("probe", dir_fd=directory)
    return fd


def _supports(call: Callable[[int, int, int], None], fd: int) -> bool:
    try:
        call(fd, 0, _PROBE_BYTES)
    except OSError as error:
        return error.errno not in _UNSUPPORTED  # a full disk refuses, but supports it
    return True


def _locks(fd: int) -> bool:
    """Whether flock holds between two openings of one file, read-only and not, as between a client's descriptor and ours."""
    try:
        shared = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    except OSError:  # without /proc it cannot be tried: then no descriptor is passed
        return False
    try:
        fcntl.flock(shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(shared)
    return False


def _frees(fd: int) -> bool:
    """Whether a punch frees blocks. If the disk is too full to try, whether a punch is accepted."""
    try:
        os.pwrite(fd, b"\x5a" * _PROBE_BYTES, 0)
        os.fdatasync(fd)  # some file systems count blocks only then
        before = os.fstat(fd).st_blocks
    except OSError:
        return _supports(punch, fd)
    if not _supports(punch, fd):
        return False
    os.fdatasync(fd)
    return os.fstat(fd).st_blocks < before


class Reserve:
    """A little room kept for the index: a file of allocated, unused blocks in ``directory`` (an open descriptor).

    On a disk that other programs filled, nothing could be evicted without it: the index must be committed before bytes may leave.
    """

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._held = False

    def allocate(self) -> None:
        """Take the room, if it is not held and the disk has any."""
        if not self._held:
            self._held = self._resize(_RESERVE_BYTES)

    def give_up(self) -> bool:
        """Give the room back to the file system. Returns False if none was held."""
        held, self._held = self._held, False
        return held and self._resize(0)

    def _resize(self, size: int) -> bool:
        try:
            fd = os.open(_RESERVE_NAME, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)
        except OSError:
            return False
        try:
            os.ftruncate(fd, size)
            if size:
                allocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, 0)
            return False
        finally:
            os.close(fd)
        return True
