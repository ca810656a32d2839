"""A shard's file as memory: a page that its disk cannot read, or behind the file's end, is SIGBUS there, so none is touched unseen."""

from __future__ import annotations

import errno
import mmap
import os
from typing import Callable, NoReturn

__all__ = ["ShardMap", "file_ends"]

_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14


class ShardMap:
    """All ``size`` bytes of an open file. Raises ``OSError`` where the file is shorter. It lives as long as a view of ``memory`` does."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self._size = size
        self._check_length(size)
        self.memory = mmap.mmap(file, size, access=mmap.ACCESS_READ)

    def present(self, start: int, end: int, read: Callable[[int, int], object]) -> None:
        """Have these bytes in memory, or raise ``OSError``: touching what cannot be read would end the process.

        ``read`` reads bytes ``start`` to ``end`` of the file, for a kernel or a file system that cannot be asked for pages.
        """
        self._check_length(end)
        first = start - start % mmap.PAGESIZE
        try:
            self.memory.madvise(_POPULATE_READ, first, end - first)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            read(first, end)

    def _check_length(self, end: int) -> None:
        length = os.fstat(self._file).st_size
        if length < end:
            file_ends(length, self._size)


def file_ends(at: int, size: int) -> NoReturn:
    """Raises ``OSError``: the file of a shard of ``size`` bytes ends at byte ``at``."""
    raise OSError(errno.EIO, f"the file ends at byte {at} of {size}")
