"""Sends bytes of a file that are in memory without copying them: the kernel hands its own pages to the socket.

The socket then holds the page cache's pages until the client has read them, long after the call. A change of such a page in place changes
what the client gets. Three operations do that (tried on ext4, xfs and tmpfs): overwriting it, truncating the file within it, and punching a
part of its folio. Shard files avoid all three. A range is written once until it is punched. Bytes beyond a truncation were never given out.
And ``fallocate.punch_from_tail`` drops whole folios, which leaves a socket's pages as they are; ``probe`` checks that.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from contextlib import suppress

from forebay_proxy.store.files import fallocate

__all__ = ["can_send", "in_memory", "probe", "send"]

_PAGE_BYTES = 4096  # larger pages have larger folios, which may lie across segments
_PROBE_BYTES = fallocate.FOLIO_BYTES + 12_345  # a whole folio, and an end within a page
_PROBE_SENT = 64 * 1024  # from the end of the probe; any socket takes so much at once
_FAILED = ctypes.c_void_p(-1).value


def can_send(segment_bytes: int) -> bool:
    """Whether no folio can lie across two segments of this size."""
    return mmap.PAGESIZE == _PAGE_BYTES and segment_bytes % fallocate.FOLIO_BYTES == 0


class _FileRange(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("length", ctypes.c_uint64))


# These calls keep the interpreter lock: they take some microseconds, and giving it up may cost five thousand.
_libc = ctypes.PyDLL(None)
_mmap, _mincore, _munmap = _libc.mmap, _libc.mincore, _libc.munmap
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mmap.restype = ctypes.c_void_p
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_CACHESTAT = ctypes.c_long(451)  # Linux 6.5; the C library has no name for it


def in_memory(fd: int, offset: int, length: int) -> bool:
    """Whether the range can be read without waiting for the disk. Never blocks; False if the kernel cannot say."""
    first = offset - offset % _PAGE_BYTES
    size = offset + length - first
    told = (ctypes.c_uint64 * 5)()
    if _libc.syscall(_CACHESTAT, fd, ctypes.byref(_FileRange(first, size)), ctypes.byref(told), 0):
        return _all_mapped(fd, first, size)  # an older kernel, or the call is forbidden: mincore says the same in ten times the time
    # A page that is being read counts already. Such pages lie together, at one end of the range.
    return told[0] >= -(-size // _PAGE_BYTES) and _can_read(fd, offset) and _can_read(fd, offset + length - 1)


def _can_read(fd: int, offset: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def _all_mapped(fd: int, first: int, size: int) -> bool:
    where = _mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, first)  # the mapping is never touched, so no page is loaded
    if where == _FAILED:
        return False
    try:
        pages = ctypes.create_string_buffer(-(-size // _PAGE_BYTES))
        return not _mincore(where, size, pages) and b"\x00" not in pages.raw
    finally:
        _munmap(where, size)


def send(sock: int, fd: int, offset: int, length: int) -> int | None:
    """How many bytes from ``offset`` on the socket took; 0 if it is full, None if the file gave none. Raises ConnectionError.

    Only for bytes that are in memory: if the kernel has dropped them just now, the call waits for the disk.
    """
    try:
        return os.sendfile(sock, fd, offset, length) or None  # 0: the file ends before that
    except BlockingIOError:
        return 0
    except ConnectionError:
        raise
    except OSError:  # the caller reads the bytes, and then the error shows
        return None


def probe(directory: int) -> bool:
    """Whether bytes sent from a file in ``directory`` (an open descriptor) survive a punch, and the kernel tells what is in memory."""
    data = os.urandom(_PROBE_BYTES)
    fd = fallocate.nameless(directory)
    try:
        os.ftruncate(fd, len(data))
        if in_memory(fd, 0, _PAGE_BYTES):  # nobody has read this hole, so it is not in memory: the answer cannot be trusted
            return False
        os.pwrite(fd, data, 0)
        return in_memory(fd, 0, len(data)) and _outlives(fd, data)
    except OSError:
        return False
    finally:
        os.close(fd)


def _outlives(fd: int, data: bytes) -> bool:
    first = len(data) - _PROBE_SENT
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        sent = send(ours.fileno(), fd, first, _PROBE_SENT)
        if not sent:
            return False
        with suppress(OSError):  # a file system that cannot punch never frees part of a file
            fallocate.punch_from_tail(fd, 0, len(data))
        ours.shutdown(socket.SHUT_WR)
        with theirs.makefile("rb") as received:
            return received.read() == data[first : first + sent]
