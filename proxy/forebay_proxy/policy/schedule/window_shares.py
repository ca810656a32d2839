"""Whose window may be how wide: all together never exceed half the cache, and no job has more than another. Pure.

A reader that stands still has no window, and leaves its share to the others.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay_proxy.policy.schedule.window import ReadAheadWindow
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["WindowShares"]


class WindowShares:
    """The readers that move, by job. Not thread-safe: the event loop's only."""

    def __init__(self, capacity: Callable[[], int]) -> None:
        """``capacity``: bytes the cache may hold now."""
        self.standing: set[ReaderName] = set()  # they stand still, and others have the room of their lead
        self._capacity = capacity
        self._present: set[ReaderName] = set()
        self._moving: dict[str, int] = {}  # job -> how many of its readers are present and do not stand still
        self._seen: dict[str, int] = {}  # job -> the limit of each of its readers, when it was last looked at

    def __repr__(self) -> str:
        return f"<WindowShares of {len(self._present)} readers, {len(self.standing)} stand still>"

    def enter(self, reader: ReaderName) -> None:
        """``reader`` has a plan from now on."""
        self._present.add(reader)
        if reader not in self.standing:
            self._moving[reader.job] = self._moving.get(reader.job, 0) + 1

    def leave(self, reader: ReaderName) -> None:
        """``reader`` has none any more."""
        self._present.discard(reader)
        if reader not in self.standing:
            self._stops(reader.job)

    def pause(self, reader: ReaderName) -> bool:
        """``reader`` stands still; False: it did already."""
        if reader in self.standing:
            return False
        self.standing.add(reader)
        if reader in self._present:
            self._stops(reader.job)
        return True

    def go_on(self, reader: ReaderName) -> bool:
        """``reader`` moves again, or is gone; False: it did not stand still."""
        if reader not in self.standing:
            return False
        self.standing.discard(reader)
        if reader in self._present:
            self._moving[reader.job] = self._moving.get(reader.job, 0) + 1
        return True

    def _stops(self, job: str) -> None:
        self._moving[job] -= 1
        if not self._moving[job]:
            del self._moving[job]

    def limit(self, job: str) -> int:
        """The most bytes the window of a reader of ``job`` may have."""
        return self._capacity() // 2 // max(1, len(self._moving)) // max(1, self._moving.get(job, 1))

    def width(self, reader: ReaderName, window: ReadAheadWindow) -> int:
        """How many bytes ahead to look for ``reader`` now, whose window is ``window``."""
        if reader in self.standing:
            return 0
        limit = self.limit(reader.job)
        if window.shared_bytes != limit:
            window.limit(limit)
        return window.bytes

    def grown(self) -> set[str]:
        """The jobs whose readers may look further than when this was last asked."""
        limits = {job: self.limit(job) for job in self._moving}
        more = {job for job, limit in limits.items() if limit > self._seen.get(job, 0)}
        self._seen = limits
        return more
