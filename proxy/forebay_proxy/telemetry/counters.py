"""Plain counters for people: what ``/v1/status`` and the summary of ``forebay run`` show. Pure; a listener of events.

Beside the metrics, since those do not have these numbers: they know 16 jobs and 16 origins at a time, forget the counts of one that makes
room, and have no requests, bytes and errors by job.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from forebay_proxy.core.events import Event
from forebay_proxy.core.facts.origins import OriginBytes
from forebay_proxy.core.facts.requests import Aborted, NotTar, ReaderWaited, RequestDone, RequestOutcome, ShardOpened
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["MAX_JOBS", "MOST_READERS", "ORDINARY", "Counters", "Followed", "JobCounters", "PlanAdherence", "heard"]

K = TypeVar("K")
V = TypeVar("V")

MAX_JOBS = 256  # the jobs heard from last; a node runs a handful at a time, and each costs about a kilobyte
_MAX_JOB_CHARS = 256
MOST_READERS = 4096  # as many as may have plans; each costs about 200 bytes
# A precondition or a range answered by the book is part of resuming, "not yet" one of a loader's questions, no error; 499 is a client that
# left before there was an answer.
ORDINARY = frozenset({409, 412, 416, 499})

_NO_FAULTS = frozenset({"", "client_gone"})  # how a response may end


@dataclass(slots=True)
class JobCounters:
    """One job's share. Origin bytes are missing: a fetch serves every job that waits for it, so its bytes belong to none."""

    requests: dict[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in RequestOutcome})
    sent_bytes: int = 0
    hit_bytes: int = 0
    opened_bytes: int = 0
    reader_wait_s: float = 0
    errors: int = 0
    no_tars: int = 0

    def request(self, fact: RequestDone) -> None:
        if fact.outcome is not None:
            self.requests[fact.outcome.value] += 1
            self.sent_bytes += fact.bytes_sent
            self.hit_bytes += fact.hit_bytes
            self.opened_bytes += fact.opened_bytes
        if fact.code >= 400 and fact.code not in ORDINARY and not fact.expected:
            self.errors += 1

    def snapshot(self) -> dict[str, Any]:
        return {
            "requests": dict(self.requests),
            "bytes": {"sent": self.sent_bytes, "hit": self.hit_bytes, "opened": self.opened_bytes},
            "reader_wait_s": self.reader_wait_s,
            "errors": self.errors,
            "no_tars": self.no_tars,
        }


def heard(rows: OrderedDict[K, V], name: K, make: Callable[[], V], most: int) -> V:
    """The row of ``name``, made if it is new; the one unheard for longest makes room."""
    row = rows.get(name)
    if row is None:
        row = rows[name] = make()
        if len(rows) > most:
            rows.popitem(last=False)
    rows.move_to_end(name)
    return row


class Counters:
    """Since the start of this sidecar: requests by outcome, bytes, waits and errors, in all and by job. Not thread-safe.

    ``errors`` counts answers of 400 and above (but ``ORDINARY`` ones) and responses cut for another reason than the client's own leaving.
    ``no_tars`` counts readings of shards whose name says tar, and which are none.
    """

    def __init__(self) -> None:
        self._total = JobCounters()
        self._anonymous = JobCounters()  # who names no reader: curl, a browser, any other program
        self._jobs: OrderedDict[str, JobCounters] = OrderedDict()
        self._origin_bytes = 0
        self._counters: dict[type, Callable[[Any], None]] = {
            Aborted: self._aborted,
            NotTar: self._not_tar,
            OriginBytes: self._origin,
            ReaderWaited: self._waited,
            RequestDone: self._request_done,
        }
        self.kinds = tuple(self._counters)

    def listen(self, event: Event) -> None:
        count = self._counters.get(type(event))
        if count is not None:
            count(event)

    @property
    def answered(self) -> int:
        """How many readings of shards have ended."""
        return sum(self._total.requests.values())

    @property
    def bypassed(self) -> int:
        """How many of them passed by the cache: what they read was not stored."""
        return self._total.requests[RequestOutcome.BYPASS.value]

    @property
    def origin_bytes(self) -> int:
        return self._origin_bytes

    @property
    def sent_bytes(self) -> int:
        return self._total.sent_bytes

    @property
    def hit_bytes(self) -> int:
        return self._total.hit_bytes

    def of(self, job: str) -> JobCounters:
        """What is known of ``job``; zeros for one unheard of."""
        return self._jobs.get(job[:_MAX_JOB_CHARS]) or JobCounters()

    def snapshot(self) -> dict[str, object]:
        """The keys ``requests``, ``bytes``, ``reader_wait_s``, ``errors``, ``no_tars``, ``jobs`` and ``anonymous`` of ``/v1/status``.

        ``bytes.saved`` is what the origin did not have to send: bytes sent less origin bytes, at least 0 (prefetch runs ahead of readers).
        ``bytes.opened``: lengths of the shards that were passed as files of which samples are read; what is read of them nobody hears, and
        ``sent`` has none of it.
        """
        origin = self._origin_bytes
        total = self._total.snapshot()
        total["bytes"] |= {"origin": origin, "saved": max(0, self._total.sent_bytes - origin)}
        jobs = {job: counters.snapshot() for job, counters in self._jobs.items()}
        return {**total, "jobs": jobs, "anonymous": self._anonymous.snapshot()}

    def _request_done(self, fact: RequestDone) -> None:
        self._total.request(fact)
        if fact.job:
            self._job(fact.job).request(fact)
        elif fact.served is not None:  # others are no readers: they ask for the page, the metrics, a plan
            self._anonymous.request(fact)
            self._anonymous.errors += fact.served.cut not in _NO_FAULTS

    def _waited(self, fact: ReaderWaited) -> None:
        self._total.reader_wait_s += fact.seconds
        (self._job(fact.job) if fact.job else self._anonymous).reader_wait_s += fact.seconds

    def _aborted(self, fact: Aborted) -> None:
        if fact.reason in _NO_FAULTS:
            return
        self._total.errors += 1
        if fact.job:
            self._job(fact.job).errors += 1

    def _not_tar(self, fact: NotTar) -> None:
        self._total.no_tars += 1
        (self._job(fact.job) if fact.job else self._anonymous).no_tars += 1

    def _origin(self, fact: OriginBytes) -> None:
        self._origin_bytes += fact.count

    def _job(self, name: str) -> JobCounters:
        return heard(self._jobs, name[:_MAX_JOB_CHARS], JobCounters, MAX_JOBS)


@dataclass(slots=True)
class Followed:
    """One reader since it was first heard of, whatever plans it has announced: shards opened, by how (``ShardOpened``); seconds waited."""

    openings: Counter[str] = field(default_factory=Counter)
    waited_s: float = 0.0


class PlanAdherence:
    """All readers heard of; the one unheard for longest makes room. Not thread-safe: the event loop's only."""

    kinds = (ShardOpened, ReaderWaited)

    def __init__(self) -> None:
        self._readers: OrderedDict[ReaderName, Followed] = OrderedDict()

    def __repr__(self) -> str:
        return f"<PlanAdherence {len(self._readers)} readers>"

    def listen(self, event: Event) -> None:
        if type(event) is ShardOpened:
            heard(self._readers, event.reader, Followed, MOST_READERS).openings[event.how] += 1
        elif type(event) is ReaderWaited and event.reader is not None:
            heard(self._readers, event.reader, Followed, MOST_READERS).waited_s += event.seconds

    def of(self, reader: ReaderName) -> Followed:
        """What is known of ``reader``; zeros for one unheard of."""
        return self._readers.get(reader) or Followed()
