"""Whether a job may read a stored version without asking the origin about it first (``--revalidate``). No I/O.

Who names no job cannot say that a new run began: for them a comparison holds for the burst of readings it was made in, and for a minute.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.policy.plans.bursts import Bursts

__all__ = ["Freshness"]

# A minute is what a person waits before asking why the new data is not read, and costs the origin one small request a shard and minute at
# most, of shards that are read. So long it is also left alone where it did not answer.
NO_JOB_S = 60.0


class Freshness:
    """Which comparisons with an origin still hold, and which origins cannot be asked. Not thread-safe: the event loop's only."""

    def __init__(self, revalidate: str | float, clock: Callable[[], float]) -> None:
        """``revalidate``: "job", "never", or for how many seconds a comparison holds."""
        self.bursts = Bursts(clock)
        self._revalidate = revalidate
        self._clock = clock
        self._silent: dict[str, float] = {}  # origins that could not be asked whether a shard changed, and until when they are not asked

    def is_fresh(self, entry: Entry, job: str) -> bool:
        """Whether ``job`` ("": none was named) may read the stored version without asking the origin about it first."""
        if self._revalidate == "never" or entry.immutable:
            return True
        age_s = self._clock() - entry.trust.checked_at
        if self._revalidate == "job":
            if job:
                return job in entry.trust.checked_jobs
            return entry.trust.checked_at >= self.bursts.began(entry.group) and age_s < NO_JOB_S
        return age_s < float(self._revalidate)

    def checked(self, entry: Entry, job: str) -> None:
        """The origin holds this version still, or cannot say: ``job`` need not ask again."""
        entry.trust.checked(job, self._clock())

    def silenced(self, origin: str) -> None:
        """``origin`` cannot be asked now: where each shard is compared again and again, each would wait out its silence once more."""
        now = self._clock()
        self._silent = {known: until for known, until in self._silent.items() if until > now}
        self._silent[origin] = now + NO_JOB_S

    def is_silent(self, origin: str) -> bool:
        """Whether ``origin`` could not be asked a moment ago."""
        return self._silent.get(origin, 0.0) > self._clock()
