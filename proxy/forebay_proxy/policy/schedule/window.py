"""How far ahead of a reader to fetch: grows when the reader waits, shrinks while the disk is tight, comes back after. Pure.

Feedback is three events only (after mountpoint-s3's backpressure controller): the reader waited, the disk refused, the disk granted. Bytes,
not shards: a window of "2 shards" is 2 MB for one data set and 10 GB for the next.
"""

from __future__ import annotations

from forebay_proxy.core.segments import SEGMENT_BYTES

__all__ = ["ReadAheadWindow"]

# Two segments: what one origin round trip needs so that the second is in the air while the first is read.
MIN_BYTES = 2 * SEGMENT_BYTES
# 256 MiB: one typical shard (LAION 240 MB) ahead of each reader hides its opening and 2.5 s of origin trouble at 100 MB/s.
START_BYTES = 256 * 2**20


class ReadAheadWindow:
    """The look-ahead of one reader, in bytes; ``limit_bytes`` is the most it may ever be.

    ``wanted`` is what its waits ask for; ``bytes`` is less than that while the disk is tight, and comes back by what is granted: a
    window's worth of grants doubles it, so that a disk that is tight only now and then does not take the lead for long.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.wanted = START_BYTES
        self._tight: int | None = None  # what it was cut to, while the disk is tight
        self.limit(limit_bytes)

    def __repr__(self) -> str:
        return f"<ReadAheadWindow {self.bytes / 2**20:.0f}/{self.limit_bytes / 2**20:.0f} MiB{', tight' if self.tight else ''}>"

    @property
    def tight(self) -> bool:
        """Whether the disk holds it back."""
        return self._tight is not None

    def limit(self, limit_bytes: int) -> None:
        """Readers came or went: the share of each changed."""
        self.shared_bytes = limit_bytes  # as it was said
        self.limit_bytes = max(MIN_BYTES, limit_bytes)
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
        self._tight = max(MIN_BYTES, self.bytes // 2)
        self._reckon()

    def granted(self, size: int) -> None:
        """The disk had room for ``size`` bytes of prefetch."""
        if self._tight is not None:
            self._tight += size
            if self._tight >= min(self.wanted, self.limit_bytes):
                self._tight = None
            self._reckon()

    def _reckon(self) -> None:
        most = min(max(self.wanted, MIN_BYTES), self.limit_bytes)
        self.bytes = most if self._tight is None else min(most, self._tight)  # how far to look now
