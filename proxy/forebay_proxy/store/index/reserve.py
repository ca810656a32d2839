"""A little room kept for the index. Blocking.

On a disk that others filled nothing could be evicted without it: a claim must be withdrawn on disk before its bytes may leave.
"""

from __future__ import annotations

import os

from forebay_proxy.store.files import fallocate

__all__ = ["Reserve"]

_NAME = "reserve"
_BYTES = 2**20 + 2**16  # the write-ahead log grows to 1 MiB before it is used again from its start; and the file readers of it share


class Reserve:
    """A file of allocated, unused blocks in ``directory`` (an open descriptor)."""

    def __init__(self, directory: int) -> None:
        self._directory = directory
        self._held = False

    def hold(self) -> None:
        """Take the room, if it is not held and there is any."""
        if not self._held:
            self._held = self._resize(_BYTES)

    def give_up(self) -> bool:
        """Let the file system have the room; False if none was held."""
        held, self._held = self._held, False
        return held and self._resize(0)

    def _resize(self, size: int) -> bool:
        try:
            fd = os.open(_NAME, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600, dir_fd=self._directory)
        except OSError:
            return False
        try:
            os.ftruncate(fd, size)
            if size:
                fallocate.allocate(fd, 0, size)
        except OSError:
            os.ftruncate(fd, 0)
            return False
        finally:
            os.close(fd)
        return True
