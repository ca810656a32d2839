"""A file that only grows, whole lines at a time, by one process. For a thread of its own: every call may block.

It may be moved away at any moment (logrotate, ``mv``): the next write notices and begins a new file under the old name. What a full disk
took only half of is taken back, and a torn last line, left by a kill, is ended before the next one begins.

Not ``logging.handlers.WatchedFileHandler``: it opens through links and beside another writer, leaves half a line on a full disk (tried),
and took 17 us a line where a batch takes 0.2; the end of its ``QueueListener`` waits for a disk that hangs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["AppendFile"]

# Never through a link. To read as well: its end is looked at, and a pipe opened so waits for nobody.
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o600


class AppendFile:
    """Opened by ``open`` or the first ``write``. A file that is made is its owner's alone (0600); one that was there keeps its mode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = -1

    def __repr__(self) -> str:
        return f"<AppendFile {self.path}, {'open' if self._handle >= 0 else 'closed'}>"

    def open(self) -> None:
        """Raises ``OSError``, also for what is no file of ours and for one that another process writes."""
        self.close()
        handle = os.open(self.path, _FLAGS, _MODE)
        try:
            _must_be_ours(handle)
            _end_torn_line(handle)
        except OSError:
            os.close(handle)
            raise
        self._handle = handle

    def write(self, lines: bytes) -> None:
        """All of ``lines``, or an ``OSError`` and nothing."""
        if self._handle < 0 or self._has_moved():
            self.open()
        before = os.fstat(self._handle).st_size
        try:
            _write_all(self._handle, lines)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._handle, before)
            self.close()
            raise

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _has_moved(self) -> bool:
        """Whether its name leads to another file now, or to none."""
        try:
            return not os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(self._handle))
        except OSError:
            return True


def _must_be_ours(handle: int) -> None:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    if found.st_uid != os.geteuid() or found.st_nlink != 1:
        raise OSError(errno.EPERM, "it belongs to another user, or has a second name")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another process writes it") from None
    except OSError:
        pass  # a file system without locks: two processes that write there may tear each other's lines, and a reader of the log skips those


def _end_torn_line(handle: int) -> None:
    size = os.fstat(handle).st_size
    if size and os.pread(handle, 1, size - 1) != b"\n":
        os.write(handle, b"\n")


def _write_all(handle: int, lines: bytes) -> None:
    left = memoryview(lines)
    while left:
        left = left[os.write(handle, left) :]
