"""What a cache can do for a training run, before the run: bytes, times, and a verdict in words. Pure.

From the theory of one pass an epoch (D = bytes of the data set, C = of the cache, r = what the trainer takes, b = what the origin gives):

- No policy fetches fewer than D - C bytes in an epoch: what hits was there when the epoch began. Forebay comes close to it: it keeps C - W,
  where W is what lies ahead of the readers and is read once (T5 in the literature: evicting the farthest use is optimal).
- No epoch is shorter than max(D / r, (D - hits) / b): the trainer's own time, and the line's.
- LRU under a fresh shuffle hits only the share f + (1 - f) ln(1 - f) of the bytes, f = C / D; under a fixed order none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from forebay_proxy.core.quantities import format_duration, format_rate, format_size
from forebay_proxy.core.segments import DEFAULT_LAYOUT

__all__ = ["AHEAD_SEGMENTS", "HELD_SEGMENTS", "SLOW_ANSWER_S", "SLOW_CONNECTION_BYTES_S", "Estimate"]

# When the cache is the limit a reader may have two segments ahead of it that something needed left for (``policy.eviction.read_ahead``).
AHEAD_SEGMENTS = 2
# And a reader leases the segment it is in, which cannot be evicted.
HELD_SEGMENTS = 1
# What an answer takes from an object store far away, and the rate of one connection there: as long as that a byte is on its way, and the
# bytes of that time must lie ahead of the readers, or they wait however large the cache is.
SLOW_ANSWER_S = 0.1
SLOW_CONNECTION_BYTES_S = 50e6


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a training run as a person knows it: bytes, and bytes a second. ``rate`` is what all ``workers`` together take."""

    dataset_bytes: int
    cache_bytes: int
    origin_bytes_s: float
    rate_bytes_s: float
    workers: int

    @property
    def ahead_bytes(self) -> int:
        """W: what lies ahead of the readers, read once and gone; no more than there is to read."""
        return min(self.dataset_bytes, self.workers * AHEAD_SEGMENTS * DEFAULT_LAYOUT.segment_bytes)

    @property
    def smallest_useful_bytes(self) -> int:
        """Below this nothing is left to keep from one epoch to the next: every reader holds the segment it is in and has two ahead, and
        the line must be full meanwhile (rate x time of one segment). A smaller cache still hides latency, down to no room at all."""
        held = self.workers * (HELD_SEGMENTS + AHEAD_SEGMENTS) * DEFAULT_LAYOUT.segment_bytes
        on_the_way = int(self.rate_bytes_s * (SLOW_ANSWER_S + DEFAULT_LAYOUT.segment_bytes / SLOW_CONNECTION_BYTES_S))
        return min(self.dataset_bytes, max(held, on_the_way))

    @property
    def hit_bytes(self) -> int:
        """An epoch's, from the second on. Where everything fits nothing is pushed out by what is read ahead."""
        return self.dataset_bytes if self.cache_bytes >= self.dataset_bytes else max(0, self.cache_bytes - self.ahead_bytes)

    @property
    def origin_bytes(self) -> int:
        """An epoch's, from the second on."""
        return self.dataset_bytes - self.hit_bytes

    @property
    def lru_hit_bytes(self) -> int:
        """What a cache that drops the least recently used would hit, each epoch shuffled anew."""
        if not self.dataset_bytes or self.cache_bytes >= self.dataset_bytes:
            return self.dataset_bytes
        share = self.cache_bytes / self.dataset_bytes
        return int(self.dataset_bytes * (share + (1 - share) * math.log(1 - share)))

    @property
    def trainer_s(self) -> float:
        """An epoch if no byte ever had to be waited for."""
        return self.dataset_bytes / self.rate_bytes_s

    @property
    def first_epoch_s(self) -> float:
        """At least: everything comes from the origin."""
        return max(self.trainer_s, self.dataset_bytes / self.origin_bytes_s)

    @property
    def epoch_s(self) -> float:
        """At least, from the second on."""
        return max(self.trainer_s, self.origin_bytes / self.origin_bytes_s)

    @property
    def waiting_ratio(self) -> float:
        """Of an epoch from the second on, how long the trainer waits for the line."""
        return 1 - self.trainer_s / self.epoch_s if self.epoch_s else 0.0

    @property
    def sufficient_bytes(self) -> int:
        """The smallest cache with which the line keeps up from the second epoch on: D - (C - W) = D x b / r."""
        if self.origin_bytes_s >= self.rate_bytes_s:
            return 0
        needed = math.ceil(self.dataset_bytes * (1 - self.origin_bytes_s / self.rate_bytes_s)) + self.ahead_bytes
        return min(self.dataset_bytes, needed)

    @property
    def verdict(self) -> str:
        """For a tired person: whether a cache helps, and what would."""
        if not self.dataset_bytes:
            return "there is nothing to read"
        first = f"{format_duration(self.first_epoch_s)}, of which {format_duration(self.first_epoch_s - self.trainer_s)} waiting"
        if self.cache_bytes >= self.dataset_bytes:
            text = "the cache holds everything from the second epoch on"
            if self.first_epoch_s > self.trainer_s:
                return f"{text}. The first epoch takes {first}"
            saved = f"saves the origin {format_size(self.hit_bytes)} an epoch"
            return f"{text} and {saved}; it makes no epoch faster, as the origin is faster than the trainer"
        if self.origin_bytes_s >= self.rate_bytes_s:
            saved = f"the cache saves the origin {format_size(self.hit_bytes)} an epoch"
            if not self.hit_bytes:
                saved = f"a cache of more than {format_size(self.smallest_useful_bytes)} would save the origin bytes"
            return (
                f"no cache can make this faster: the origin ({format_rate(self.origin_bytes_s)}) is faster than the trainer "
                f"({format_rate(self.rate_bytes_s)}). Reading ahead hides its latency, and {saved}"
            )
        if self.waiting_ratio < 0.005:  # rounds to none
            return (
                f"the cache makes up for the origin: from the second epoch on the line has {format_size(self.origin_bytes)} an epoch to "
                f"bring, for which there is time enough. The first epoch takes {first}"
            )
        why = "" if self.hit_bytes else f", and the cache is too small to keep anything ({self.workers} workers read ahead in all of it)"
        waits = f"the accelerator waits {100 * self.waiting_ratio:.0f} % of the time"
        return f"origin-bound{why}: {waits}; a cache of {format_size(self.sufficient_bytes)} would end that"
