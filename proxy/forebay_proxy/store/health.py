"""Whether the cache directory can be written and read now. With a failing disk, bytes bypass the cache; no client fails. Pure.

The disk is *down* after ``MANY`` failures within ``WINDOW_S``, or after one that every other operation would meet too: the disk is full,
read-only, gone or hung, or the index cannot be written. Then nothing is stored for ``PAUSE_S``, and bytes come from their origins. After
that it is tried again. Reads go on meanwhile, unless the disk hangs: after a read-only remount the bytes are still there.

A directory that was moved or removed stays down until the next start. Some errors are not the disk's fault: a file that somebody deleted
or cut is fetched again.
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

MANY = 8  # half of the ranges that one reader may have running: one bad spot hits fewer, a dead disk hits all
WINDOW_S = 10.0  # failures further apart than this are bad spots, not an outage
PAUSE_S = 60.0  # a repaired disk is used again within a minute

_SPACE = frozenset({"ENOSPC", "EDQUOT"})
_FILES_OWN = frozenset({"ENOENT", "ENODATA", "ESTALE", "EBADF"})  # errors of one file: deleted, cut, replaced, or closed by ourselves
_TOO_LONG = "EFBIG"  # an error of one file, even when it is made: an origin invented its length, which must not switch the cache off
_EVERYTHING = _SPACE | {"EROFS", "ENODEV", "ENXIO", "ENOTCONN", "ESHUTDOWN", "ETIMEDOUT"}
_WHOLE = frozenset({"index commit", "create", "load", "look"})  # operations that do not depend on one file


class DiskHealth:
    """The state of the disk. Each change emits one log line and one event. Not thread-safe: used on the event loop alone."""

    def __init__(self, clock: Callable[[], float], events: Events) -> None:
        self.state: State = "normal"
        self.reason = ""  # of the present state; empty while it is normal
        self.hung = False  # an operation did not return: a read would not either
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
        """Raises ``CacheError`` if the disk did not answer earlier calls. Bytes in memory can always be read."""
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
        """The directory was removed, replaced or unmounted. The disk stays down; reported once, even if it was down before."""
        if self.lost:
            return
        self.lost = True
        log.error("%s; shards are passed through memory until the sidecar is started again", reason)
        if self.state == "down":
            self.reason = reason
        else:
            self._change("down", reason)

    def look(self) -> None:
        """Call once a second: ends the pause when it is over."""
        if self.state == "down" and not self.lost and self._clock() >= self._until:
            self.hung = False
            self._failures.clear()
            self._change("normal", "")
            log.warning("nothing failed on the cache disk for %g s: shards are stored again", PAUSE_S)

    def _change(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        self._events.emit(DiskChanged(state))
