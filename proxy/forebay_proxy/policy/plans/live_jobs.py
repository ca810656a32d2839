"""Which jobs still go on: what a job has read is worth keeping only while it may read it again. Pure; the clock is an argument.

A job is *live* while a connection is open on which it has asked for something (a trainer that writes a checkpoint for half an hour keeps
its workers' connections, or the hold of ``forebay run``), and for a minute after it was last heard of. A job that was held is over as soon
as the last hold and the last connection are gone. Requests without a reader belong to one anonymous job, of which little more than the
minute is known: its idle connections are closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

__all__ = ["ANONYMOUS", "QUIET_S", "LiveJobs", "Presence"]

ANONYMOUS = ""
QUIET_S = 60.0  # as long as a plan lives without a sign of its reader; workers of the next epoch start within seconds
MOST_JOBS = 1 << 12  # remembered by the moment they were heard: a client may make names up


class LiveJobs:
    """Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._connected: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._over: set[str] = set()  # held once, and not any more
        self._heard: dict[str, float] = {}  # longest silent first
        self.resumed = False  # the anonymous job was heard of after it had not been live; for whoever looks for another one in it

    def __repr__(self) -> str:
        return f"<LiveJobs {len(self._connected)} connected, {len(self._heard)} heard of>"

    def heard(self, job: str, now: float) -> None:
        """It asked for something."""
        if job == ANONYMOUS and job in self._heard and not self.is_live(job, now):
            self.resumed = True
        self._heard.pop(job, None)
        self._heard[job] = now
        if len(self._heard) > MOST_JOBS:
            del self._heard[next(iter(self._heard))]

    def came(self, job: str, *, holds: bool = False) -> None:
        """A connection is open on which it asks; ``holds``: for as long as it goes on."""
        self.heard(job, self._clock())
        self._connected[job] += 1
        if holds:
            self._over.discard(job)
            self._held[job] += 1

    def left(self, job: str, *, holds: bool = False) -> None:
        """That connection is gone."""
        self.heard(job, self._clock())
        _take(self._connected, job)
        if holds and not _take(self._held, job):
            self._over.add(job)
        if job in self._over and job not in self._connected:
            self._over.discard(job)
            self._heard.pop(job, None)

    def is_live(self, job: str, now: float) -> bool:
        """Whether it may read again what it has read."""
        return job in self._connected or now - self._heard.get(job, -inf) <= QUIET_S


class Presence:
    """One connection, and the job that asks on it: that of its last request, since a process is of one job."""

    def __init__(self, jobs: LiveJobs) -> None:
        self._jobs = jobs
        self._job: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether it is of a job that has told its name."""
        return bool(self._job)

    def asks(self, job: str) -> None:
        """``job`` has asked for something."""
        if job != self._job:
            self.end()
            self._jobs.came(job)
            self._job = job

    def end(self) -> None:
        """The connection is gone. Safe to repeat."""
        job, self._job = self._job, None
        if job is not None:
            self._jobs.left(job)


def _take(counts: Counter[str], job: str) -> int:
    """One less; how many are left."""
    counts[job] -= 1
    left = counts[job]
    if not left:
        del counts[job]
    return left
