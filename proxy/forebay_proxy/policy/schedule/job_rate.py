"""How fast the readers of one job go, all of them together. Pure.

Bytes over time, summed over the shards they passed lately, so that an interval counts as long as it was: a mean of rates would be ruled by
bursts. Readers of one job are mostly in step (a DataLoader takes a batch of each in turn), and then this is the rate of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.plans.reader_plan import START_RATE

__all__ = ["JobRates"]

KEPT = 0.95  # of the sums, when another shard was passed: the last twenty count
SLOW = 0.5  # of the common rate: a reader below that is slow of its own; shards of unlike lengths alone make that of 0.6
START_BYTES_S = START_RATE * 30 * SEGMENT_BYTES  # the same 50 MB/s before anything is measured


@dataclass(slots=True)
class _Sums:
    seconds: float = 0.0
    shards: float = 0.0
    bytes: float = 0.0


class JobRates:
    """One rate per job. Not thread-safe: the event loop's only."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Sums] = {}

    def __repr__(self) -> str:
        return f"<JobRates {len(self._jobs)} jobs>"

    def took(self, job: str, seconds: float, size: int) -> None:
        """A reader of ``job`` was so long in a shard of ``size`` bytes."""
        sums = self._jobs.setdefault(job, _Sums())
        sums.seconds = sums.seconds * KEPT + seconds
        sums.shards = sums.shards * KEPT + 1
        sums.bytes = sums.bytes * KEPT + size

    def rate(self, job: str, own: float | None = None) -> float:
        """Bytes a second of one reader; of one that takes ``own`` shards a second and never waits, less where that is far less."""
        sums = self._jobs.get(job)
        if sums is None or not sums.seconds or not sums.bytes:
            return START_BYTES_S
        common = sums.bytes / sums.seconds
        slower = 1.0 if own is None else own * sums.seconds / sums.shards
        return common * slower if slower < SLOW else common

    def clear(self) -> None:
        """Nobody reads."""
        self._jobs.clear()
