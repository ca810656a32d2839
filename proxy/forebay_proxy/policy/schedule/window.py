"""How far ahead of a reader to fetch. The window grows when the reader waits, shrinks while the disk is full, and recovers after. Pure.

There are three inputs (after mountpoint-s3's backpressure controller): the reader waited, the disk refused, the disk granted. The window is
in bytes, not shards: "2 shards" is 2 MB for one data set and 10 GB for the next.

All windows together never exceed half the cache, and no job has more than another (``WindowShares``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["ReadAheadWindow", "WindowShares"]

# Two segments: while the first is read, the second is being fetched.
MIN_SEGMENTS = 2
# 256 MiB: one typical shard (LAION 240 MB) ahead of each reader hides its opening and 2.5 s of origin trouble at 100 MB/s.
START_BYTES = 256 * 2**20


class ReadAheadWindow:
    """The read-ahead window of one reader, in bytes; ``limit_bytes`` is its maximum.

    ``wanted`` is the size that its waits ask for. ``bytes`` is smaller while the disk is full, and recovers by what is granted: it doubles
    with each window's worth of grants. So a disk that is full only now and then does not reduce the lead for long.
    """

    def __init__(self, limit_bytes: int, segment_bytes: int) -> None:
        self._min_bytes = MIN_SEGMENTS * segment_bytes
        self.wanted = START_BYTES
        self._tight: int | None = None  # its size while the disk is full
        self.share_changed(limit_bytes)

    @property
    def tight(self) -> bool:
        """Whether a full disk limits the window."""
        return self._tight is not None

    def share_changed(self, limit_bytes: int) -> None:
        """Readers came or went: the share of each changed."""
        self.shared_bytes = limit_bytes  # as given
        self.limit_bytes = max(self._min_bytes, limit_bytes)
        self._reckon()

    def waited(self) -> None:
        """The reader had to wait, and nothing was refused to it recently: double the window."""
        if self._tight is None:
            self.wanted = max(self.wanted, min(self.limit_bytes, self.bytes * 2))  # the limit of many readers does not last for ever
            self._reckon()
        else:
            self.granted(self._tight)

    def refused(self) -> None:
        """The disk had no room for a prefetch: halve the window."""
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
        self.bytes = most if self._tight is None else min(most, self._tight)  # the present size


class WindowShares:
    """The readers with a plan, by job. Not thread-safe: used on the event loop alone."""

    def __init__(self, capacity: Callable[[], int]) -> None:
        """``capacity`` returns the bytes that the cache may hold now."""
        self._capacity = capacity
        self._readers: Counter[str] = Counter()  # job -> how many of its readers have a plan
        self._seen: dict[str, int] = {}  # job -> the limit of each of its readers at the last ``grown``

    def add(self, reader: ReaderName) -> None:
        """``reader`` has a plan from now on."""
        self._readers[reader.job] += 1

    def remove(self, reader: ReaderName) -> None:
        """``reader`` no longer has a plan."""
        self._readers[reader.job] -= 1
        if not self._readers[reader.job]:
            del self._readers[reader.job]

    def limit_bytes(self, job: str) -> int:
        """The largest window, in bytes, that a reader of ``job`` may have."""
        return self._capacity() // 2 // max(1, len(self._readers)) // max(1, self._readers[job])

    def width(self, reader: ReaderName, window: ReadAheadWindow) -> int:
        """The present size of ``window`` in bytes, within the present share of ``reader``."""
        limit = self.limit_bytes(reader.job)
        if window.shared_bytes != limit:
            window.share_changed(limit)
        return window.bytes

    def grown(self) -> set[str]:
        """The jobs whose readers may have larger windows than at the last call."""
        limits = {job: self.limit_bytes(job) for job in self._readers}
        more = {job for job, limit in limits.items() if limit > self._seen.get(job, 0)}
        self._seen = limits
        return more
