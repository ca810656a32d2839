"""What the watch asks of the cache disk: how full it is, and whether the directory is where it was. Blocking.

The calls may hang with the disk, so they run in a thread of their own and nobody waits for them for long.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from forebay_proxy.store.directory import Directory

__all__ = ["Look", "look"]


@dataclass(frozen=True, slots=True)
class Look:
    """One look at the file system. None: it does not say, or has no such limit."""

    free_bytes: int | None
    size_bytes: int
    free_files: int | None
    in_place: bool


def look(directory: Directory) -> Look:
    """How full the disk is, and whether the directory's path still leads to it. Raises OSError."""
    found = os.fstatvfs(directory.shards)  # through the descriptor: the disk our bytes are on, whatever the path leads to now
    if found.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    free = found.f_bavail * found.f_frsize if found.f_blocks else None
    files = found.f_favail if found.f_files else None
    return Look(free, found.f_blocks * found.f_frsize, files, directory.in_place())
