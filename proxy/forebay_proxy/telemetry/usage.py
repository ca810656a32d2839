"""How much is held right now: the levels that metrics and the status page pull on request. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["PeakBytes", "Usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One instant of the cache and what surrounds it. Bytes are allocated bytes; everything else is a count."""

    configured_bytes: int  # the limit a person set, or the default rule chose
    effective_bytes: int  # the limit now: lower while the disk is tighter than the setting
    stored_bytes: int = 0
    reserved_bytes: int = 0  # granted to segments in the air
    doomed_bytes: int = 0  # withdrawn from the index, not yet back on the disk (unlinked but open, punch pending)
    overhead_bytes: int = 0  # index, log, lock
    leased_bytes: int = 0  # of the stored bytes: held by a reader, may not leave
    descriptors: int = 0  # passed to readers that still hold their lease, or a map of what they had
    lingering: int = 0  # of the descriptors: shards whose readers have gone on, and of which maps are left
    descriptor_bytes: int = 0  # of the leased bytes: held by descriptors
    peak_bytes: int = 0  # the most on the disk in the last 30 to 60 seconds, see ``PeakBytes``
    shards: int = 0
    segments: int = 0
    in_flight: int = 0  # fetches that run
    waiters: int = 0  # readers that wait for bytes, or for an origin's first answer
    readers: int = 0
    plans: int = 0
    disk_state: str = "normal"  # normal | down
    avail_bytes: int = 0  # of the file system the cache lies on
    size_bytes: int = 0
    files_free: int = 0
    origins: Mapping[str, int] = field(default_factory=dict)  # origin -> requests in the air
    unread_bytes: int = 0  # read ahead of need, here or on their way, and not read yet
    lead_bytes: Mapping[str, int] = field(default_factory=dict)  # job -> bytes stored ahead of its worst-served reader
    lead_s: Mapping[str, float] = field(default_factory=dict)  # job -> the same in seconds of reading
    derived: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # kind, job -> bytes of its folders, and their limit

    @property
    def held_bytes(self) -> int:
        """What counts against the limit."""
        return self.stored_bytes + self.reserved_bytes + self.doomed_bytes + self.overhead_bytes


class PeakBytes:
    """The highest of the values seen lately, so that a spike between two scrapes is not lost. Not thread-safe.

    Two buckets of ``window_s``, the running one and the one before: any scraper that comes at least every 30 s sees every peak, and a
    peak is forgotten after at most twice that. Resetting at each scrape instead would hide peaks from the second of two scrapers.
    """

    def __init__(self, window_s: float = 30, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._bucket = 0
        self._running = 0
        self._before = 0

    def saw(self, count: int) -> None:
        self._turn()
        self._running = max(self._running, count)

    def value(self) -> int:
        self._turn()
        return max(self._running, self._before)

    def _turn(self) -> None:
        bucket = int(self._clock() // self._window_s)
        if bucket == self._bucket:
            return
        self._before = self._running if bucket == self._bucket + 1 else 0
        self._running = 0
        self._bucket = bucket
