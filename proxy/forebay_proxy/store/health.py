"""Whether the cache directory may be written, and read, now. A failing disk means bypass, never a failed client. Pure.

Three states, and what leads from one to the next:

    normal    -> unstable   an operation failed: that segment passes through memory, the others are tried as before
    unstable  -> normal     nothing failed for ``CALM_S``, and something worked since (if nothing was tried: a probe)
    any       -> down       ``MANY`` failures within ``WINDOW_S``; or one that no other operation can escape: the file system is read-only,
                            gone or hung, the directory was removed, the index cannot be written
    down      -> unstable   a probe worked: a small file written, synced, read back and removed. One failure within ``CALM_S`` of that is
                            enough to be down again, and every return to ``down`` doubles the pause before the next probe

A directory that is not where it was stays ``down`` until the next start.

While it is down nothing is written but probes, one at a time. Reads go on (a read-only remount still has the bytes), unless it hangs.

Not every error is the disk's fault. A file that somebody deleted or cut is fetched again, and a full disk is a smaller cache
(``headroom.py``): both are counted, the second shows as ``unstable``, and neither stops the rest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Literal

from forebay_proxy.core.errors import DiskFailed
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import DiskChanged, DiskOperationFailed
from forebay_proxy.store.facts import SpaceRefused

__all__ = ["SPACE", "DiskHealth", "State"]

log = logging.getLogger("forebay")

State = Literal["normal", "unstable", "down"]

MANY = 8  # half of the ranges one reader may have in the air: one bad spot of a disk is hit by fewer, a dead disk by all
WINDOW_S = 10.0  # failures further apart than this are spots, not an outage
CALM_S = 10.0  # a segment takes up to some seconds to land: shorter, and a trial would end before anything was tried
FIRST_PROBE_S = 1.0
LAST_PROBE_S = 60.0  # a probe costs an fsync; a mended disk is used again within a minute

SPACE = frozenset({"ENOSPC", "EDQUOT"})
_FILES_OWN = frozenset({"ENOENT", "ENODATA", "ESTALE", "EBADF"})  # of one file: deleted, cut, replaced, or closed by ourselves
_TOO_LONG = "EFBIG"  # of one file, too, also where it is made: an origin made up its length, and must not switch the cache off
_EVERYTHING = frozenset({"EROFS", "ENODEV", "ENXIO", "ENOTCONN", "ESHUTDOWN", "ETIMEDOUT"})
_WHOLE = frozenset({"index commit", "create", "load", "look"})  # operations that do not depend on one file being there


class ProbeSchedule:
    """When a disk is tried next: one probe at a time, and of a disk that stays down with twice the pause before each."""

    def __init__(self) -> None:
        self.running = False
        self.pause_s = FIRST_PROBE_S  # before the next probe of a disk that goes down
        self._at = 0.0

    def is_due(self, now: float) -> bool:
        """Of a disk that is down."""
        return now >= self._at

    def postpone(self, now: float) -> None:
        self._at = now + self.pause_s
        self.pause_s = min(LAST_PROBE_S, 2 * self.pause_s)

    def forget_pauses(self) -> None:
        """The disk is well: if it is down again, that is another time."""
        self.pause_s = FIRST_PROBE_S


class DiskHealth:
    """The state of the disk, and the operations it allows. One log line and one event a change. Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float], events: Events) -> None:
        self.state: State = "normal"
        self.reason = ""  # of the state; empty while it is normal
        self.hung = False  # an operation did not come back: reading would not either
        self.no_files = False  # the file system has no inodes left for new files
        self._clock = clock
        self._events = events
        self._failures: deque[float] = deque(maxlen=MANY)
        self._failed_at = float("-inf")
        self._worked_at = float("-inf")
        self._trial_until = float("-inf")
        self._probes = ProbeSchedule()
        self._lost = False

    def __repr__(self) -> str:
        return f"<DiskHealth {self.state}{f', {self.reason}' if self.reason else ''}>"

    @property
    def usable(self) -> bool:
        """Whether segments may be written and removed now."""
        return self.state != "down"

    @property
    def readable(self) -> bool:
        """Whether stored bytes may be asked of the disk now. (What is in memory may always be had.)"""
        return not self.hung

    # What operations tell

    def failed(self, error: DiskFailed) -> None:
        """An operation failed."""
        self._events.emit(DiskOperationFailed(error.operation, error.errno_name))
        if error.errno_name in SPACE:
            self._events.emit(SpaceRefused(error))
        if error.errno_name == _TOO_LONG and error.operation not in _WHOLE - {"create"}:
            log.info("%s: the file system holds no file of a length that an origin claims; that shard passes through memory", error)
            return
        if error.errno_name in _FILES_OWN and error.operation not in _WHOLE:
            return
        if error.errno_name == "ETIMEDOUT":
            self.hung = True
        self._failed_at = now = self._clock()
        if self.state == "down":
            return
        if self._is_fatal(error) or now < self._trial_until or self._are_many(error, now):
            self._go_down(str(error))
        elif self.state == "normal":
            self._change("unstable", str(error))
            log.warning("%s; what fails is passed through memory", error)

    @staticmethod
    def _is_fatal(error: DiskFailed) -> bool:
        return error.errno_name in _EVERYTHING or (error.errno_name in _FILES_OWN and error.operation in _WHOLE)

    def _are_many(self, error: DiskFailed, now: float) -> bool:
        """Whether failures are so many that trying is in vain. A full disk fails sixteen at once: those have one cause, and an answer."""
        if error.errno_name in SPACE and error.operation != "index commit":
            return False
        self._failures.append(now)
        return len(self._failures) == MANY and now - self._failures[0] < WINDOW_S

    def worked(self) -> None:
        """A segment was stored: by a disk that is slow, or has come back, or was never bad."""
        self._worked_at = self._clock()
        self._calm()

    def lost(self, reason: str) -> None:
        """The directory is not where it was: removed, replaced, unmounted. Down for good; told once, also behind what had failed of it."""
        if self._lost:
            return
        self._lost = True
        log.error("%s; shards are passed through memory until the sidecar is started again", reason)
        if self.state == "down":
            self.reason = reason
        else:
            self._change("down", reason)

    # Probes

    @property
    def probe_due(self) -> bool:
        """Whether the disk should be probed now."""
        if self._probes.running or self._lost:
            return False
        if self.state == "down":
            return self._probes.is_due(self._clock())
        return self.state == "unstable" and self._worked_at <= self._failed_at and self._clock() - self._failed_at >= CALM_S

    def probe_begun(self) -> None:
        self._probes.running = True

    def probed(self, error: DiskFailed | None) -> None:
        """A probe ended."""
        self._probes.running = False
        if self._lost:
            return
        if error is not None:
            self._events.emit(DiskOperationFailed("probe", error.errno_name))
            self._failed_at = self._clock()
            self.hung = self.hung or error.errno_name == "ETIMEDOUT"
            if self.state == "down":
                self._probes.postpone(self._clock())
            else:
                self._go_down(str(error))
            return
        self.hung = False
        self._worked_at = self._clock()
        if self.state == "down":
            self._trial_until = self._clock() + CALM_S
            self._failed_at = self._clock()  # calm begins now
            self._change("unstable", f"on trial since it was down ({self.reason})")
            log.warning("the cache disk answers again: shards are stored again")
        self._calm()

    def calm_down(self) -> None:
        """Time has passed: call once a second."""
        self._calm()

    def _calm(self) -> None:
        now = self._clock()
        if self.state == "unstable" and now - self._failed_at >= CALM_S and self._worked_at >= self._failed_at:
            self._probes.forget_pauses()
            self._failures.clear()
            self._change("normal", "")
            log.warning("the cache disk works again: nothing failed for %g s", CALM_S)

    def _go_down(self, reason: str) -> None:
        self._change("down", reason)
        self._failures.clear()
        pause_s = self._probes.pause_s
        log.error("%s; shards are passed through memory until the directory works again, which is tried in %g s", reason, pause_s)
        self._probes.postpone(self._clock())

    def _change(self, state: State, reason: str) -> None:
        self.state, self.reason = state, reason
        self._events.emit(DiskChanged(state))
