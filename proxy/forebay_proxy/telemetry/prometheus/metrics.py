"""Counts what rooms report. The names are in ``metric_catalog.py``; facts come from ``core/facts``; levels are pulled from ``Usage``.

No room calls anything here: the service listens with ``Metrics.listen`` and hands ``Metrics.watch`` a function that returns the levels.
The registry is our own, so two sidecars in one process (a test, a notebook) do not meet. At most 2,000 lines are exported, come what may:
16 origins, 16 jobs and 16 ranks have labels of their own, and 8 jobs for their derived caches; the rest counts as ``other``.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from forebay_proxy.core.events import Event
from forebay_proxy.core.facts.cache import (
    CacheRecovered,
    DigestChecked,
    DiskChanged,
    DiskOperationFailed,
    Evicted,
    IndexDone,
    IntegrityFailed,
    ReservationRefused,
    SegmentVerified,
)
from forebay_proxy.core.facts.origins import (
    FetchJoined,
    FetchRetried,
    NotStorable,
    OpeningDone,
    OriginAnswered,
    OriginBytes,
    OriginFailed,
    OriginOddity,
    Refetched,
    Revalidated,
    SegmentFetched,
    SharedAnswered,
    SharedBytes,
    SharedFailed,
)
from forebay_proxy.core.facts.requests import (
    Aborted,
    AccessLogged,
    ClientRefused,
    DoorAnswered,
    LeaseEnded,
    LoopLagged,
    MeterTold,
    NotTar,
    ReaderWaited,
    RequestDone,
    ShardOpened,
)
from forebay_proxy.telemetry.prometheus.metric_catalog import METRICS, OTHER, SLOTTED, table
from forebay_proxy.telemetry.prometheus.metric_labels import Family, LabelSlots, code_label, job_label, origin_label, rank_label
from forebay_proxy.telemetry.usage import Usage
from forebay_proxy.wire.protocol.meter import DERIVED

__all__ = ["CONTENT_TYPE", "MAX_DERIVED", "MAX_JOBS", "MAX_ORIGINS", "MAX_RANKS", "Metrics", "table"]


Values = Mapping[tuple[str, ...], float]

_DISK_STATES: Mapping[str, float] = {"normal": 0, "down": 2}

_SINGLE: Mapping[str, Callable[[Usage], float]] = {
    "cache_disk_state": lambda usage: _DISK_STATES.get(usage.disk_state, 2),  # a word we do not know is no reason to look healthy
    "cache_peak_bytes": lambda usage: usage.peak_bytes,
    "cache_segments": lambda usage: usage.segments,
    "cache_shards": lambda usage: usage.shards,
    "descriptor_lease_bytes": lambda usage: usage.descriptor_bytes,
    "descriptor_leases": lambda usage: usage.descriptors,
    "filesystem_avail_bytes": lambda usage: usage.avail_bytes,
    "filesystem_files_free": lambda usage: usage.files_free,
    "filesystem_size_bytes": lambda usage: usage.size_bytes,
    "lease_bytes": lambda usage: usage.leased_bytes,
    "plan_active": lambda usage: usage.plans,
    "prefetch_unread_bytes": lambda usage: usage.unread_bytes,
    "readers": lambda usage: usage.readers,
    "singleflight_waiters": lambda usage: usage.waiters,
}

_SEVERAL = (
    "cache_bytes", "cache_capacity_bytes", "origin_inflight_requests", "prefetch_lead_bytes", "prefetch_lead_seconds",
    *(f"{kind}_{level}" for kind in DERIVED for level in ("bytes", "limit_bytes")),
)  # fmt: skip
_DERIVED = frozenset(f"{kind}_{name}_total" for kind, names in DERIVED.items() for name in names)

LEVELS = frozenset((*_SINGLE, *_SEVERAL))


class UsageCollector(Collector):
    """Turns what ``usage()`` returns into gauges. An exception of ``usage`` fails the scrape: better no answer than stale levels."""

    def __init__(self, usage: Callable[[], Usage], origins: LabelSlots, jobs: LabelSlots, derived: LabelSlots) -> None:
        self._usage = usage
        self._origins = origins
        self._jobs = jobs
        self._derived = derived

    def collect(self) -> Iterator[GaugeMetricFamily]:
        levels = self._levels(self._usage())
        for metric in METRICS:
            if metric.name in levels:
                family = GaugeMetricFamily(metric.full_name, metric.help, labels=list(metric.labels))
                for labels, value in levels[metric.name].items():
                    family.add_metric(labels, value)
                yield family

    def _levels(self, usage: Usage) -> Mapping[str, Values]:
        single: dict[str, Values] = {name: {(): level(usage)} for name, level in _SINGLE.items()}
        return single | {
            "cache_bytes": _states(usage),
            "cache_capacity_bytes": {("configured",): usage.configured_bytes, ("effective",): usage.effective_bytes},
            "origin_inflight_requests": self._in_flight(usage.origins),
            "prefetch_lead_bytes": self._leads(usage.lead_bytes),
            "prefetch_lead_seconds": self._leads(usage.lead_s),
            **self._folders(usage.derived),
        }

    def _in_flight(self, origins: Mapping[str, int]) -> Values:
        """Requests in the air of every origin that has a slot; the others' added up under ``other``."""
        levels: dict[tuple[str, ...], float] = {(origin,): 0 for origin in (*self._origins.held(), OTHER)}
        for origin, count in origins.items():
            if count:  # a limiter remembers origins long after their last request; those must not hold a slot
                label = (self._origins.of(origin),)
                levels[label] = levels.get(label, 0) + count
        return levels

    def _leads(self, leads: Mapping[str, float]) -> Values:
        """The smallest lead of each job; jobs that share ``other`` share its worst."""
        levels: dict[tuple[str, ...], float] = {}
        for job, lead in leads.items():
            label = (self._jobs.of(job),)
            levels[label] = min(levels.get(label, lead), lead)
        return levels

    def _folders(self, derived: Mapping[tuple[str, str], tuple[int, int]]) -> Mapping[str, Values]:
        """Of each kind of derived cache, by job; jobs that share ``other`` are added up."""
        levels: dict[str, dict[tuple[str, ...], float]] = {f"{kind}_{level}": {} for kind in DERIVED for level in ("bytes", "limit_bytes")}
        held = self._derived.held()
        for (kind, job), sizes in derived.items():
            label = (job if job in held else OTHER,)  # to be looked at is not to be heard from
            for level, size in zip(("bytes", "limit_bytes"), sizes, strict=True):
                values = levels[f"{kind}_{level}"]
                values[label] = values.get(label, 0) + size
        return levels


def _states(usage: Usage) -> Values:
    return {
        ("stored",): usage.stored_bytes,
        ("reserved",): usage.reserved_bytes,
        ("doomed",): usage.doomed_bytes,
        ("overhead",): usage.overhead_bytes,
    }


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # understood by every Prometheus since 0.4; 3.x refuses answers without a type
MAX_ORIGINS = 16  # one job reads from a few; so many with all their series still fit into one 2,000-line answer
MAX_JOBS = 16  # one node runs at most a job per accelerator
MAX_RANKS = 16  # of all jobs: a process for each accelerator
MAX_DERIVED = 8  # jobs that keep derived results


class Metrics:
    """All counters of one sidecar and their text. ``version`` is what ``build_info`` says. Not thread-safe: the event loop's only."""

    def __init__(self, *, version: str = "unknown", clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = CollectorRegistry()
        self._exposition = _Exposition(self._registry)
        self._families = {metric.name: Family(metric, self._registry) for metric in METRICS if metric.name not in LEVELS}
        self._origins = self._slots(("origin",), MAX_ORIGINS, origin_label, clock)
        self._jobs = self._slots(("job",), MAX_JOBS, job_label, clock)
        self._derived = self._slots(("job",), MAX_DERIVED, job_label, clock, derived=True)
        self._ranks = self._slots(("job", "rank"), MAX_RANKS, rank_label, clock)
        self._jobs.of("")  # readers without a name are expected from the start
        self._families["build_info"].set(version, platform.python_version(), to=1)
        self._counters: dict[type, Callable[[Any], None]] = self._dispatch()
        self.kinds = tuple(self._counters)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def listen(self, event: Event) -> None:
        """Count one fact. Costs a few microseconds, never raises on a value it does not know."""
        count = self._counters.get(type(event))
        if count is not None:
            count(event)

    def watch(self, usage: Callable[[], Usage]) -> None:
        """Export what ``usage()`` returns at each scrape. Call once, when the cache exists."""
        self._registry.register(UsageCollector(usage, self._origins, self._jobs, self._derived))

    def render(self) -> tuple[bytes, str]:
        """The exposition and its content type."""
        return self._exposition.text().encode(), CONTENT_TYPE

    def _slots(
        self, labels: tuple[str, ...], most: int, clean: Callable[[str], str], clock: Callable[[], float], *, derived: bool = False
    ) -> LabelSlots:
        """Of the families that have exactly these slotted labels, and are of derived caches or are not; the values of several labels
        share a slot, joined by "/"."""
        slotted = {name: tuple(label for label in family.metric.labels if label in SLOTTED) for name, family in self._families.items()}
        families = [family for name, family in self._families.items() if slotted[name] == labels and (name in _DERIVED) == derived]

        def born(value: str) -> None:
            for family in families:
                family.bear(**dict(zip(labels, _parts(value, labels), strict=True)))

        def gone(value: str) -> None:
            for family in families:
                family.forget(**dict(zip(labels, _parts(value, labels), strict=True)))

        born(OTHER)
        return LabelSlots(most, clean, born=born, gone=gone, clock=clock)

    def _dispatch(self) -> dict[type, Callable[[Any], None]]:
        count = {name: family.inc for name, family in self._families.items()}
        return {
            Aborted: lambda fact: count["responses_aborted_total"](fact.reason),
            AccessLogged: lambda fact: count["access_log_lines_total"](fact.result, by=fact.count),
            ClientRefused: self._client_refused,
            DiskChanged: lambda fact: count["cache_disk_state_changes_total"](fact.state),
            DigestChecked: lambda fact: count["digest_checks_total"](fact.algorithm, fact.result),
            DiskOperationFailed: lambda fact: count["cache_disk_errors_total"](fact.operation, _errno_label(fact.errno_name)),
            DoorAnswered: lambda fact: count["door_answers_total"](fact.answer),
            Evicted: self._evicted,
            FetchRetried: self._fetch_retried,
            FetchJoined: lambda _: count["singleflight_joins_total"](),
            IndexDone: lambda fact: count["sample_indexes_total"](fact.result),
            IntegrityFailed: lambda fact: count["cache_integrity_failures_total"](fact.stage),
            LeaseEnded: lambda fact: self._families["descriptor_lease_seconds"].observe(seconds=fact.done.seconds),
            LoopLagged: lambda fact: self._families["event_loop_lag_seconds"].observe(seconds=fact.seconds),
            MeterTold: self._meter_told,
            OpeningDone: self._opening_done,
            OriginAnswered: self._origin_answered,
            OriginBytes: lambda fact: count["origin_bytes_total"](self._origins.of(fact.origin), fact.kind, by=fact.count),
            OriginFailed: self._origin_failed,
            OriginOddity: lambda fact: count["origin_oddities_total"](self._origins.of(fact.origin), fact.kind),
            ReaderWaited: lambda fact: count["reader_wait_seconds_total"](self._jobs.of(fact.job), by=fact.seconds),
            CacheRecovered: self._recovered,
            NotStorable: lambda _: count["not_storable_total"](),
            NotTar: lambda fact: count["not_tar_readings_total"](self._jobs.of(fact.job)),
            Refetched: lambda _: count["refetches_total"](),
            RequestDone: self._request_done,
            ReservationRefused: lambda fact: count["cache_reservation_failures_total"](fact.reason),
            Revalidated: lambda fact: count["revalidations_total"](fact.result),
            SegmentFetched: self._segment_fetched,
            SegmentVerified: lambda fact: count["segments_verified_total"](fact.why, "right" if fact.right else "wrong"),
            SharedAnswered: lambda fact: count["shared_lookups_total"](fact.result),
            SharedBytes: lambda fact: count["shared_bytes_total"](fact.way, by=fact.count),
            SharedFailed: lambda fact: count["shared_failures_total"](fact.reason),
            ShardOpened: self._shard_opened,
        }

    def _request_done(self, fact: RequestDone) -> None:
        result = fact.outcome.value if fact.outcome else "none"
        self._families["requests_total"].inc(fact.method, result, code_label(fact.code))
        if fact.outcome is None:
            return
        self._families["request_bytes_total"].inc(result, by=fact.bytes_sent)
        self._families["hit_bytes_total"].inc(by=fact.hit_bytes)
        self._families["time_to_first_byte_seconds"].observe(result, seconds=fact.first_byte_s)
        self._families["response_duration_seconds"].observe(seconds=fact.seconds)

    def _client_refused(self, fact: ClientRefused) -> None:
        if fact.reason == "origin":
            self._families["ssrf_blocked_total"].inc()
        else:
            self._families["auth_failures_total"].inc(fact.reason)

    def _origin_answered(self, fact: OriginAnswered) -> None:
        origin = self._origins.of(fact.origin)
        self._families["origin_requests_total"].inc(origin, fact.method, code_label(fact.code))
        if fact.code:  # without an answer there was no first byte, only a timeout
            self._families["origin_first_byte_seconds"].observe(origin, seconds=fact.first_byte_s)

    def _origin_failed(self, fact: OriginFailed) -> None:
        origin = self._origins.of(fact.origin)
        self._families["origin_failures_total"].inc(origin, fact.reason)
        if fact.reason == "throttled":
            self._families["origin_throttled_total"].inc(origin)

    def _fetch_retried(self, fact: FetchRetried) -> None:
        origin = self._origins.of(fact.origin)
        self._families["origin_retries_total"].inc(origin)
        if fact.resumed:
            self._families["origin_resumes_total"].inc(origin)

    def _opening_done(self, fact: OpeningDone) -> None:
        self._families["opening_duration_seconds"].observe(seconds=fact.seconds)
        if fact.error:
            self._families["opening_failures_total"].inc(fact.error)

    def _segment_fetched(self, fact: SegmentFetched) -> None:
        self._families["segments_fetched_total"].inc("prefetch" if fact.prefetched else "demand", "yes" if fact.stored else "no")
        self._families["segment_fetch_seconds"].observe(seconds=fact.seconds)

    def _evicted(self, fact: Evicted) -> None:
        self._families["cache_evictions_total"].inc(fact.reason)
        self._families["cache_evicted_bytes_total"].inc(fact.reason, by=fact.bytes)
        self._families["cache_eviction_age_seconds"].observe(seconds=fact.age_s)
        if not fact.used:
            self._families["cache_evicted_before_use_bytes_total"].inc(by=fact.bytes)

    def _shard_opened(self, fact: ShardOpened) -> None:
        job = self._jobs.of(fact.reader.job)
        self._families["plan_openings_total"].inc(job)
        if fact.how != "planned":
            self._families["plan_deviation_total"].inc(job, fact.how)

    def _meter_told(self, fact: MeterTold) -> None:
        rank, grown = _parts(self._ranks.of(f"{fact.reader.job}/{fact.reader.rank}"), ("job", "rank")), fact.grown
        for cause, seconds in grown.stall_s.items():
            self._families["stall_seconds_total"].inc(*rank, cause, by=seconds)
        for cause, seconds in grown.reader_wait_s.items():
            self._families["rank_reader_wait_seconds_total"].inc(*rank, cause, by=seconds)
        self._families["rank_metered_seconds_total"].inc(*rank, by=grown.wall_s)
        self._families["rank_steps_total"].inc(*rank, by=grown.steps)
        self._families["rank_samples_total"].inc(*rank, by=grown.samples)
        self._families["rank_skipped_total"].inc(*rank, by=grown.skipped)
        job = self._derived.of(fact.reader.job) if grown.derived or grown.folders else OTHER
        for kind, counts in grown.derived.items():
            for name, count in counts.items():
                self._families[f"{kind}_{name}_total"].inc(job, by=count)

    def _recovered(self, fact: CacheRecovered) -> None:
        self._families["recovery_segments_total"].inc("kept", by=fact.kept)
        self._families["recovery_segments_total"].inc("dropped", by=fact.dropped)
        self._families["recovery_duration_seconds"].set(to=fact.seconds)


def _parts(value: str, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The value of each of ``labels`` that share a slot."""
    return (OTHER,) * len(labels) if value == OTHER else tuple(value.rsplit("/", len(labels) - 1))


def _errno_label(name: str) -> str:
    return name if name.isascii() and name.isalnum() and name.isupper() and name.startswith("E") and len(name) <= 16 else OTHER


class _Exposition:
    """The text of what a registry collects. The library's own sorts and escapes the labels of each series at each scrape, which takes
    as long as all the rest; here a series keeps its text. ``_created`` samples, which would double the answer, are left out.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._series: dict[tuple[str, ...], str] = {}

    def text(self) -> str:
        if len(self._series) > _MOST_SERIES:  # of slots whose values have gone
            self._series.clear()
        lines = []
        for family in self._registry.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            lines += [f"# HELP {name} {_escaped(family.documentation)}", f"# TYPE {name} {family.type}"]
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    key = (sample.name, *sample.labels.values())
                    series = self._series.get(key) or self._series.setdefault(key, _series(sample.name, sample.labels))
                    lines.append(f"{series} {floatToGoString(sample.value)}")  # type: ignore[no-untyped-call]
        return "\n".join((*lines, ""))


_MOST_SERIES = 4000


def _series(name: str, labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{label}="{_escaped(value).replace(chr(34), chr(92) + chr(34))}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--table"]:
        sys.exit("usage: python -m forebay_proxy.telemetry.prometheus.metrics --table")
    sys.stdout.write(table())
