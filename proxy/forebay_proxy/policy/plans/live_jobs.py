"""Which jobs are still running: what a job has read is worth keeping only while the job may read it again. Pure; the clock is an argument.

A job is *live* while a connection is open on which it has asked for something, and for a minute after its last request. A trainer that
writes a checkpoint for half an hour keeps its workers' connections, or the hold of ``forebay run``. If a job was held, it is over when its
last hold and its last connection have closed. Requests without a reader belong to one anonymous job. Its idle connections are closed, so
for that job little more than the minute counts.

A plain HTTP client names neither itself nor its run. Reads of one folder that closely follow each other are one *burst*, which stands in
for a job. After a pause, the next reads may belong to another run, and the data may have been replaced: the sidecar asks the origin again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

__all__ = ["ANONYMOUS", "QUIET_S", "Bursts", "LiveJobs", "Presence"]

ANONYMOUS = ""
QUIET_S = 60.0  # as long as a plan lives without a sign of its reader; the workers of the next epoch start within seconds
MOST_JOBS = 1 << 12  # jobs remembered by their last request: a client may invent names


class LiveJobs:
    """The jobs that are live. Not thread-safe: used on the event loop alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._connected: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._over: set[str] = set()  # was held once, and is no longer
        self._heard: dict[str, float] = {}  # job -> its last request, the longest silent first
        self.resumed = False  # the anonymous job asked again after it was over; ``EpochTracker`` reads and clears this

    def heard(self, job: str, now: float) -> None:
        """``job`` asked for something."""
        if job == ANONYMOUS and job in self._heard and not self.is_live(job, now):
            self.resumed = True
        self._heard.pop(job, None)
        self._heard[job] = now
        if len(self._heard) > MOST_JOBS:
            del self._heard[next(iter(self._heard))]

    def came(self, job: str, *, holds: bool = False) -> None:
        """A connection is open on which ``job`` asks; ``holds``: the connection is a hold, open as long as the job runs."""
        self.heard(job, self._clock())
        self._connected[job] += 1
        if holds:
            self._over.discard(job)
            self._held[job] += 1

    def left(self, job: str, *, holds: bool = False) -> None:
        """That connection has closed."""
        self.heard(job, self._clock())
        _decrement(self._connected, job)
        if holds and not _decrement(self._held, job):
            self._over.add(job)
        if job in self._over and job not in self._connected:
            self._over.discard(job)
            self._heard.pop(job, None)

    def is_live(self, job: str, now: float) -> bool:
        """Whether the job may read its shards again."""
        return job in self._connected or now - self._heard.get(job, -inf) <= QUIET_S


class Presence:
    """One connection, and the job that asks on it: that of its last request, since a process belongs to one job."""

    def __init__(self, jobs: LiveJobs) -> None:
        self._jobs = jobs
        self._job: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the connection's job has told its name."""
        return bool(self._job)

    def asks(self, job: str) -> None:
        """``job`` has asked for something on this connection."""
        if job != self._job:
            self.end()
            self._jobs.came(job)
            self._job = job

    def end(self) -> None:
        """The connection has closed. Safe to repeat."""
        job, self._job = self._job, None
        if job is not None:
            self._jobs.left(job)


def _decrement(counts: Counter[str], job: str) -> int:
    """Decrement, and return how many are left."""
    counts[job] -= 1
    left = counts[job]
    if not left:
        del counts[job]
    return left


# A program that ends and is started again needs longer than this to import webdataset or torch. For a slow reader the pause costs at most
# one small request to the origin every two seconds.
PAUSE_S = 2.0
MOST_FOLDERS = 4096  # folders remembered; a forgotten one begins a new burst


@dataclass(slots=True)
class _Burst:
    began: float
    active: float  # when somebody last came or left
    inside: int = 0


class Bursts:
    """The bursts, by folder (a shard's URL up to the last slash). Not thread-safe: used on the event loop alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bursts: OrderedDict[str, _Burst] = OrderedDict()

    @contextmanager
    def inside(self, group: str) -> Iterator[None]:
        """A reader without a name opens and reads a shard of ``group`` within the ``with``."""
        now = self._clock()
        burst = self._bursts.get(group)
        if burst is None or (not burst.inside and now - burst.active > PAUSE_S):
            burst = self._bursts[group] = _Burst(now, now)
            if len(self._bursts) > MOST_FOLDERS:
                self._bursts.popitem(last=False)
        self._bursts.move_to_end(group)
        burst.inside += 1
        burst.active = now
        try:
            yield
        finally:
            burst.inside -= 1
            burst.active = self._clock()

    def began(self, group: str) -> float:
        """When the present burst began; minus infinity if there is none."""
        burst = self._bursts.get(group)
        return float("-inf") if burst is None else burst.began
