"""Saying things once: a warning a node and minute, a notice a process.

Sixty-four workers lose their sidecar in the same instant; sixty-four warnings would bury the one line that matters. The node's memory is
the time stamp of an empty private file beside the run file, taken under its lock. Where that file cannot be had, each process keeps
time for itself.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import threading
import time

from forebay_proxy.wire.protocol.runfile import private_directory, runtime_directory

__all__ = ["Notices", "log", "notice_once", "warn_node"]

log = logging.getLogger("forebay_loader")

INTERVAL_S = 60.0
STAMP_NAME = "forebay-warned"


class Notices:
    """What this process has said already."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._said: set[str] = set()
        self._last_s = float("-inf")
        self.renew_lock()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()  # after a fork the old one may be held by a thread that is not in this child

    def once(self, key: str, text: str) -> None:
        """Log ``text`` the first time ``key`` is seen."""
        with self._lock:
            if key in self._said:
                return
            self._said.add(key)
        log.warning("%s", text)

    def node(self, text: str) -> bool:
        """Log ``text`` unless this node has warned within the interval; says whether it was logged."""
        with self._lock:
            now = time.monotonic()
            if now - self._last_s < self._interval_s:
                return False
            self._last_s = now
        if not _takes_turn(self._interval_s):
            return False
        log.warning("%s", text)
        return True


def _takes_turn(interval_s: float) -> bool:
    """Whether no other process of this user on this node warned within the interval."""
    try:
        descriptor = _open_stamp()
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if found.st_size and abs(time.time() - found.st_mtime) < interval_s:  # the clock may have been set back
            return False
        os.pwrite(descriptor, b"\n", 0)  # one byte marks the stamp as used: a file just made has a fresh time stamp too
        os.utime(descriptor)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _open_stamp() -> int:
    directory = private_directory() or _made(runtime_directory({}))
    path = os.path.join(directory, STAMP_NAME)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(path)
    return descriptor


def _made(directory: str) -> str:
    os.mkdir(directory, mode=0o700)  # fails where it exists: then it is somebody else's
    return directory


_NOTICES = Notices()


os.register_at_fork(after_in_child=_NOTICES.renew_lock)


def notice_once(key: str, text: str) -> None:
    """Log ``text`` once in this process."""
    _NOTICES.once(key, text)


def warn_node(text: str) -> None:
    """Log ``text`` at most once a node and minute."""
    _NOTICES.node(text)
