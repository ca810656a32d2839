"""How fast one connection to an origin is, and so how many ranges of one reader are worth having in the air. Pure.

Object stores give a connection tens of MB/s, and sixteen of them fill a loader's need. An origin that is near gives one connection more
than the loader eats; there, further ranges bring no byte sooner, and they cost: sixteen bodies in memory at once leave the processor's
cache between being received, written and sent (measured on loopback: 0.35-0.47 GB/s with sixteen ranges, 0.47-0.79 with two).
"""

from __future__ import annotations

__all__ = ["ConnectionRate"]

MOST_RANGES = 16  # at 50 MB/s a connection 16 ranges make 0.8 GB/s; more only delays the nearest
FEW_RANGES = 2  # the next segment is in the air while one is read
FAST_BYTES_S = 100e6  # more than the 50-90 MB/s object stores give a connection: such an origin is near
WEIGHT = 0.5  # of the newest figure: two shards to notice that an origin became slow
LEAST_BYTES = 2**20  # a smaller body says more about its first byte than about its rate
ALONE = 2  # a figure counts only if at most so many requests shared the origin: else it tells of the sharing


class ConnectionRate:
    """One origin's rate per connection. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self.connection_bytes_s: float | None = None

    def __repr__(self) -> str:
        rate = "?" if self.connection_bytes_s is None else f"{self.connection_bytes_s / 1e6:.0f}"
        return f"<ConnectionRate {rate} MB/s a connection, {self.ranges} ranges>"

    def measured(self, size: int, seconds: float, company: int) -> None:
        """A body brought ``size`` bytes in ``seconds``, while ``company`` requests (it included) were in the air."""
        if size < LEAST_BYTES or company > ALONE:
            return
        newest = size / max(seconds, 1e-6)
        before = newest if self.connection_bytes_s is None else self.connection_bytes_s
        self.connection_bytes_s = before + WEIGHT * (newest - before)

    @property
    def ranges(self) -> int:
        """How many ranges one reader should have in the air."""
        known = self.connection_bytes_s
        return FEW_RANGES if known is not None and known >= FAST_BYTES_S else MOST_RANGES
