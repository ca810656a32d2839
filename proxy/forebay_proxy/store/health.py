"""Whether the cache directory may be written, and read, now. A failing disk means bypass, never a failed client. Pure.

After ``MANY`` failures within ``WINDOW_S``, or one that every other operation would meet too (the disk is full, read-only, gone or hung,
the index cannot be written), the disk is *down*: nothing is stored for ``PAUSE_S``, and bytes come from their origins. Then it is tried
again. Reads go on meanwhile (a read-only remount still has the bytes), unless the disk hangs.

A directory that is not where it was stays down until the next start. Not every error is the disk's fault: a file that somebody deleted or
cut is fetched again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Literal

from forebay_proxy.core.errors import CacheError, DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import DiskChanged, DiskOperationFailed
from forebay_proxy.store.facts import SpaceRefused

__all__ = ["DiskHealth", "State"]

log = logging.getLogger("forebay")

State = Literal["normal", "down"]

MANY = 8  # half of the ranges one reader may have in the air: one bad spot of a disk is hit by fewer, a dead disk by all
WINDOW_S = 10.0  # failures further apart than this are spots, not an outage
PAUSE_S = 60.0  # a mended disk is used again within a minute

_SPACE = frozenset({"ENOSPC", "EDQUOT"})
_FILES_OWN = frozenset({"ENOENT", "ENODATA", "ESTALE", "EBADF"})  # of one file: deleted, cut, replaced, or closed by ourselves
_TOO_LONG = "EFBIG"  # of one file, too, also where it is made: an origin made up its length, and must not switch the cache off
_EVERYTHING = _SPACE | {"EROFS", "ENODEV", "ENXIO", "ENOTCONN", "ESHUTDOWN", "ETIMEDOUT"}
_WHOLE = frozenset({"index commit", "create", "load", "look"})  # operations that do not depend on one file being there


class DiskHealth:
    """The state of the disk. One log line and one event a change. Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float], events: Events) -> None:
        self.state: State = "normal"
        self.reason = ""  # of the state; empty while it is normal
        self.hung = False  # an operation did not come back: reading would not either
        self.lost = False  # the directory is not where it was
        self._clock = clock
        self._events = events
        self._failures: deque[float] = deque(maxlen=MANY)
        self._until = 0.0

    def __repr__(self) -> str:
        return f"<DiskHealth {self.state}{f', {self.reason}' if self.reason else ''}>"

    @property
    def usable(self) -> bool:
        """Whether segments may be written now."""
        return self.state == "normal"

    def must_answer(self) -> None:
        """Raises ``CacheError`` where the disk did not come back with earlier answers. (What is in memory may always be had.)"""
        if self.hung:
            raise CacheError("the cache disk does not answer; only what is in memory can be read")

    def failed(self, error: DiskFailed) -> None:
        """An operation failed."""
        self._events.emit(DiskOperationFailed(error.operation, error.errno_name))
        if error.errno_name in _SPACE:
            self._events.emit(SpaceRefused(error))
        if error.errno_name == _TOO_LONG and error.operation not in _WHOLE - {"create"}:
            log.info("%s: the file system holds no file of a length that an origin claims; that shard passes through memory", error)
            return
        if error.errno_name in _FILES_OWN and error.operation not in _WHOLE:
            return
        if error.errno_name == "ETIMEDOUT":
            self.hung = True
        now = self._clock()
        self._failures.append(now)
        many = len(self._failures) == MANY and now - self._failures[0] < WINDOW_S
        if many or error.errno_name in _EVERYTHING or (error.errno_name in _FILES_OWN and error.operation in _WHOLE):
            self._until = now + PAUSE_S
            if self.state == "normal":
                self._change("down", str(error))
                log.error("%s; nothing is stored for %g s, shards are passed through memory", error, PAUSE_S)

    def lose(self, reason: str) -> None:
        """The directory was removed, replaced or unmounted. Down for good; told once, also after what had failed of it."""
        if self.lost:
            return
        self.lost = True
        log.error("%s; shards are passed through memory until the sidecar is started again", reason)
        if self.state == "down":
            self.reason = reason
        else:
            self._change("down", reason)

    def look(self) -> None:
        """Time has passed: call once a second."""
        if self.state == "down" and not self.lost and self._clock() >= self._until:
            self.hung = False
            self._failures.clear()
            self._change("normal", "")
            log.warning("nothing failed on the cache disk for %g s: shards are stored again", PAUSE_S)

    def _change(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        self._events.emit(DiskChanged(state))
