"""How far ahead of a reader to fetch: grows when the reader waits, shrinks when the disk is tight. Pure.

Feedback is two events only (mountpoint-s3's backpressure controller): the reader waited, the disk refused. Bytes, not shards: a window of
"2 shards" is 2 MB for one data set and 10 GB for the next.
"""

from __future__ import annotations

from forebay_proxy.segments import SEGMENT_BYTES

__all__ = ["Window"]

# Two segments: what one origin round trip needs so that the second is in the air while the first is read.
MIN_BYTES = 2 * SEGMENT_BYTES
# 256 MiB: one typical shard (LAION 240 MB) ahead of each reader hides its opening and 2.5 s of origin trouble at 100 MB/s.
START_BYTES = 256 * 2**20


class Window:
    """The look-ahead of one reader, in bytes; ``limit_bytes`` is the most it may ever be."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = max(MIN_BYTES, limit_bytes)
        self.bytes = min(START_BYTES, self.limit_bytes)

    def __repr__(self) -> str:
        return f"<Window {self.bytes / 2**20:.0f}/{self.limit_bytes / 2**20:.0f} MiB>"

    def limit(self, limit_bytes: int) -> None:
        """Readers came or went: the share of each changed."""
        self.limit_bytes = max(MIN_BYTES, limit_bytes)
        self.bytes = min(self.bytes, self.limit_bytes)

    def waited(self) -> None:
        """The reader had to wait: look twice as far."""
        self.bytes = min(self.limit_bytes, self.bytes * 2)

    def refused(self) -> None:
        """The disk had no room for a prefetch: look half as far."""
        self.bytes = max(MIN_BYTES, self.bytes // 2)
