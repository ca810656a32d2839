"""Plain counters for people: what ``/v1/status`` and the summary of ``forebay run`` show. Pure; a listener of events.

Not read back from the metrics on purpose: those are bounded for a time series database, these are exact for the jobs a person looks at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.events import Aborted, Event, OptimalBytes, OriginBytes, Outcome, ReaderWaited, RequestDone

__all__ = ["MAX_JOBS", "JobTally", "Tally"]

MAX_JOBS = 256  # the jobs heard from last; a node runs a handful at a time, and each costs about a kilobyte
_MAX_JOB_CHARS = 256
_ORDINARY = frozenset({412, 416})  # a precondition or a range answered by the book is part of resuming, not an error


@dataclass(slots=True)
class JobTally:
    """One job's share. Origin bytes are missing: a fetch serves every job that waits for it, so they belong to none."""

    requests: dict[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in Outcome})
    sent_bytes: int = 0
    hit_bytes: int = 0
    reader_wait_s: float = 0
    errors: int = 0

    def request(self, fact: RequestDone) -> None:
        if fact.outcome is not None:
            self.requests[fact.outcome.value] += 1
            self.sent_bytes += fact.bytes_sent
            self.hit_bytes += fact.hit_bytes
        if fact.code >= 400 and fact.code not in _ORDINARY:
            self.errors += 1

    def snapshot(self) -> dict[str, object]:
        return {
            "requests": dict(self.requests),
            "bytes": {"sent": self.sent_bytes, "hit": self.hit_bytes},
            "reader_wait_s": self.reader_wait_s,
            "errors": self.errors,
        }


class Tally:
    """Since the start of this sidecar: requests by outcome, bytes, waits and errors, in all and by job. Not thread-safe.

    ``errors`` counts answers of 400 and above (except 412 and 416) and responses cut for another reason than the client's own leaving.
    """

    def __init__(self) -> None:
        self._total = JobTally()
        self._jobs: OrderedDict[str, JobTally] = OrderedDict()
        self._origin_bytes = self._optimal_bytes = 0
        self._counters: dict[type, Callable[[Any], None]] = {
            Aborted: self._aborted,
            OptimalBytes: self._optimal,
            OriginBytes: self._origin,
            ReaderWaited: self._waited,
            RequestDone: self._request_done,
        }

    def listen(self, event: Event) -> None:
        count = self._counters.get(type(event))
        if count is not None:
            count(event)

    def snapshot(self) -> dict[str, object]:
        """The keys ``requests``, ``bytes``, ``reader_wait_s``, ``errors`` and ``jobs`` of ``/v1/status``.

        ``bytes.optimal`` is the least that any schedule could have fetched for the readings that have ended. ``bytes.saved`` is what the
        origin did not have to send: bytes sent less origin bytes, at least 0 (prefetch runs ahead of readers).
        """
        total = self._total
        saved = max(0, total.sent_bytes - self._origin_bytes)
        return {
            "requests": dict(total.requests),
            "bytes": {
                "sent": total.sent_bytes,
                "hit": total.hit_bytes,
                "origin": self._origin_bytes,
                "optimal": self._optimal_bytes,
                "saved": saved,
            },
            "reader_wait_s": total.reader_wait_s,
            "errors": total.errors,
            "jobs": {job: tally.snapshot() for job, tally in self._jobs.items()},
        }

    def _request_done(self, fact: RequestDone) -> None:
        self._total.request(fact)
        if fact.job:
            self._job(fact.job).request(fact)

    def _waited(self, fact: ReaderWaited) -> None:
        self._total.reader_wait_s += fact.seconds
        if fact.job:
            self._job(fact.job).reader_wait_s += fact.seconds

    def _aborted(self, fact: Aborted) -> None:
        if fact.reason == "client_gone":
            return
        self._total.errors += 1
        if fact.job:
            self._job(fact.job).errors += 1

    def _origin(self, fact: OriginBytes) -> None:
        self._origin_bytes += fact.count

    def _optimal(self, fact: OptimalBytes) -> None:
        self._optimal_bytes += fact.count

    def _job(self, name: str) -> JobTally:
        """The job's tally; the job unheard for longest makes room."""
        name = name[:_MAX_JOB_CHARS]
        tally = self._jobs.get(name)
        if tally is None:
            tally = self._jobs[name] = JobTally()
            if len(self._jobs) > MAX_JOBS:
                self._jobs.popitem(last=False)
        self._jobs.move_to_end(name)
        return tally
