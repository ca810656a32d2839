"""How far ahead of a reader to fetch: grows when the reader waits, shrinks while the disk is tight, comes back after. Pure.

Feedback is three events only (after mountpoint-s3's backpressure controller): the reader waited, the disk refused, the disk granted. Bytes,
not shards: a window of "2 shards" is 2 MB for one data set and 10 GB for the next.

All windows together never exceed half the cache, and no job has more than another (``WindowShares``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ReadAheadWindow", "WindowShares"]

# Two segments: what one origin round trip needs so that the second is in the air while the first is read.
MIN_SEGMENTS = 2
# 256 MiB: one typical shard (LAION 240 MB) ahead of each reader hides its opening and 2.5 s of origin trouble at 100 MB/s.
START_BYTES = 256 * 2**20


class ReadAheadWindow:
    """The read-ahead window of one reader, in bytes; ``limit_bytes`` is the most it may ever be.

    ``wanted`` is what its waits ask for; ``bytes`` is less than that while the disk is tight, and comes back by what is granted: a
    window's worth of grants doubles it, so that a disk that is tight only now and then does not take the lead for long.
    """

    def __init__(self, limit_bytes: int, segment_bytes: int) -> None:
        self._min_bytes = MIN_SEGMENTS * segment_bytes
        self.wanted = START_BYTES
        self._tight: int | None = None  # what it was cut to, while the disk is tight
        self.share_changed(limit_bytes)

    @property
    def tight(self) -> bool:
        """Whether the disk holds it back."""
        return self._tight is not None

    def share_changed(self, limit_bytes: int) -> None:
        """Readers came or went: the share of each changed."""
        self.shared_bytes = limit_bytes  # as it was said
        self.limit_bytes = max(self._min_bytes, limit_bytes)
        self._reckon()

    def waited(self) -> None:
        """The reader had to wait, and nothing was refused to it just now: look twice as far."""
        if self._tight is None:
            self.wanted = max(self.wanted, min(self.limit_bytes, self.bytes * 2))  # the limit of many readers is not for ever
            self._reckon()
        else:
            self.granted(self._tight)

    def refused(self) -> None:
        """The disk had no room for a prefetch: look half as far."""
        self._tight = max(self._min_bytes, self.bytes // 2)
        self._reckon()

    def granted(self, size: int) -> None:
        """The disk had room for ``size`` bytes of prefetch."""
        if self._tight is not None:
            self._tight += size
            if self._tight >= min(self.wanted, self.limit_bytes):
                self._tight = None
            self._reckon()

    def _reckon(self) -> None:
        most = min(max(self.wanted, self._min_bytes), self.limit_bytes)
        self.bytes = most if self._tight is None else min(most, self._tight)  # how far to look now


class WindowShares:
    """The readers with a plan, by job. Not thread-safe: the event loop's only."""

    def __init__(self, capacity: Callable[[], int]) -> None:
        """``capacity``: bytes the cache may hold now."""
        self._capacity = capacity
        self._readers: Counter[str] = Counter()  # job -> how many of its readers have a plan
        self._seen: dict[str, int] = {}  # job -> the limit of each of its readers, when it was last looked at

    def add(self, reader: ReaderName) -> None:
        """``reader`` has a plan from now on."""
        self._readers[reader.job] += 1

    def remove(self, reader: ReaderName) -> None:
        """``reader`` has none any more."""
        self._readers[reader.job] -= 1
        if not self._readers[reader.job]:
            del self._readers[reader.job]

    def limit_bytes(self, job: str) -> int:
        """The most bytes the window of a reader of ``job`` may have."""
        return self._capacity() // 2 // max(1, len(self._readers)) // max(1, self._readers[job])

    def width(self, reader: ReaderName, window: ReadAheadWindow) -> int:
        """How many bytes ahead to look for ``reader`` now, whose window is ``window``."""
        limit = self.limit_bytes(reader.job)
        if window.shared_bytes != limit:
            window.share_changed(limit)
        return window.bytes

    def grown(self) -> set[str]:
        """The jobs whose readers may look further than when this was last asked."""
        limits = {job: self.limit_bytes(job) for job in self._readers}
        more = {job for job, limit in limits.items() if limit > self._seen.get(job, 0)}
        self._seen = limits
        return more
