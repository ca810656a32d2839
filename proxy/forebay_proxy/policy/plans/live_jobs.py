"""Which jobs still go on: what a job has read is worth keeping only while it may read it again. Pure; the clock is an argument.

A job is *live* while a connection is open on which it has asked for something (a trainer that writes a checkpoint for half an hour keeps
its workers' connections, or the hold of ``forebay run``), and for a minute after it was last heard of. A job that was held is over as soon
as the last hold and the last connection are gone. Requests without a reader belong to one anonymous job, of which little more than the
minute is known: its idle connections are closed.

A plain HTTP client says neither who it is nor which run it belongs to. Reads of one folder that follow each other closely are one *burst*,
which stands in for a job so that a new run asks the origin anew: after a pause the next reads may be another run's, and data may have been
replaced in between.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

__all__ = ["ANONYMOUS", "QUIET_S", "Bursts", "LiveJobs", "Presence"]

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


def _decrement(counts: Counter[str], job: str) -> int:
    """One less; how many are left."""
    counts[job] -= 1
    left = counts[job]
    if not left:
        del counts[job]
    return left


# A program that ends and is started again needs longer than this to import webdataset or torch. It is also what a pause of a slow reader
# costs: no more than one small request to the origin every two seconds.
PAUSE_S = 2.0
MOST_FOLDERS = 4096  # folders; one that is forgotten begins anew


@dataclass(slots=True)
class _Burst:
    began: float
    active: float  # when somebody last came or left
    inside: int = 0


class Bursts:
    """By folder (a shard's URL up to the last slash). Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bursts: OrderedDict[str, _Burst] = OrderedDict()

    @contextmanager
    def inside(self, group: str) -> Iterator[None]:
        """A reader without a name opens and reads a shard of ``group``, for the length of the ``with``."""
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
        """When the present burst began; long ago if there is none."""
        burst = self._bursts.get(group)
        return float("-inf") if burst is None else burst.began
