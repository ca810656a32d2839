"""What the watch asks of the cache disk: how full it is, whether the directory is where it was, whether it can be written. Blocking.

These calls may hang with the disk, so they run in a thread of their own and nobody waits for them for long.
"""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass

from forebay_proxy.store.directory import Directory
from forebay_proxy.store.files.fallocate import nameless

__all__ = ["Look", "look", "probe"]

_PROBE_BYTES = 64 * 1024  # more than what any file system keeps inside the inode, so that blocks are really written


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the file system. None: it does not say, or has no such limit."""

    free_bytes: int | None
    size_bytes: int
    free_files: int | None
    files: int
    in_place: bool


def look(directory: Directory) -> Look:
    """How full the disk is, and whether the directory's path still leads to it. Raises OSError."""
    found = os.fstatvfs(directory.shards)  # through the descriptor: the disk our bytes are on, whatever the path leads to now
    if found.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    free = found.f_bavail * found.f_frsize if found.f_blocks else None
    files = found.f_favail if found.f_files else None
    return Look(free, found.f_blocks * found.f_frsize, files, found.f_files, directory.in_place())


def probe(shards: int) -> None:
    """Write a small file in the folder ``shards`` (an open descriptor), make the disk take it, read it back. Raises OSError."""
    fd = nameless(shards)
    try:
        data = secrets.token_bytes(_PROBE_BYTES)
        written = os.pwrite(fd, data, 0)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # read what the disk has, not what memory has
        if written != len(data) or os.pread(fd, _PROBE_BYTES, 0) != data:
            raise OSError(errno.EIO, "what was written did not read back")
    finally:
        os.close(fd)
