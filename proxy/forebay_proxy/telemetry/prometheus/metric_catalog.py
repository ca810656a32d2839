"""Every metric Forebay exports: name, kind, labels, meaning. One table; the code, the documentation and the dashboard tests read it. Pure.

Rules: seconds and bytes only; ratios are computed by whoever asks, from counters; no URL, key or secret in a label; every label is bounded.
A label's values are an enum, all born at zero so that ``rate()`` sees the first event. ``OPEN`` after the values known in advance lets a
family admit more until it has ``most`` series (in all, or for each origin), then ``other``. ``LabelSlots`` bounds ``origin``, ``job``, and
``rank`` together with its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay_proxy.core.digests import ALGORITHMS
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.wire.protocol.meter import CAUSES

__all__ = ["METRICS", "OPEN", "OTHER", "PREFIX", "SLOTTED", "Metric", "table"]

PREFIX = "forebay_"
OTHER = "other"
OPEN = "…"
SLOTTED = ("origin", "job", "rank")

_RESULTS = tuple(outcome.value for outcome in RequestOutcome)
_METHODS = ("GET", "HEAD", OTHER)
_ABORTS = ("origin_failed", "changed", "client_gone", "shutdown", OTHER)
_FAILURES = ("connect", "reset", "timeout", "throttled", "status", "short", "changed", "wrong", OTHER)
_LEAVING = ("plan", "guess", "stale", "admin", "unused", OTHER)
_DEVIATIONS = ("skipped", "repeated", "unplanned")
_DOOR_ANSWERS = ("passed", "incomplete", "encoded", "digest", "half", "disk", "refused", OTHER)
_INDEX_RESULTS = ("built", "read", "refused", "failed", OTHER)
_WAITED_FOR = ("origin", "proxy", "disk", OTHER)
_DISK_OPERATIONS = (
    "create", "open", "allocate", "grow", "resize", "write", "read", "punch", "sync", "remove", "load", "index commit", "look",
    OTHER,
)  # fmt: skip
_OPENING_ERRORS = (
    "InvalidShard", "OriginRefused", "ShardForbidden", "ShardNotFound", "RangeNotSatisfiable", "ShardChanged", "TruncatedShard",
    "OriginError", "OriginLied", "OriginUnavailable", "OriginTimeout", OTHER,
)  # fmt: skip

# Buckets. Quantiles are read off them by interpolation, so they are dense where a decision hangs on the answer.
# A hit takes 0.1 to 5 ms, a near origin 10 to 100 ms, a far or busy one seconds; 30 s is where a training step has long been late.
_FIRST_BYTE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)
# Exported per origin, so few: same rack, same region, another region, throttled, about to time out (15 s idle timeout).
_ORIGIN_FIRST_BYTE_S = (0.01, 0.03, 0.1, 0.3, 1, 5, 15)
# 1 kB from the store to 10 GB at 30 MB/s: five decades, three a decade would only add series.
_DURATION_S = (0.001, 0.01, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
# 8 MiB: 3 ms at 25 Gbit/s, 0.4 s at the 20 MB/s of one throttled connection, tens of seconds when something is wrong.
_SEGMENT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)
# Was it an epoch ago or a second ago? Seconds mean thrash, hours mean a cache that fits.
_AGE_S = (1, 10, 60, 300, 900, 3600, 14400, 86400, 604800)
# 10 ms is a busy loop, 100 ms is felt by every reader, 1 s starves a training step.
_LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. ``labels`` maps each label to its known values; ``most``: see OPEN."""

    name: str
    kind: str  # counter | gauge | histogram
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    most: int = 0
    stability: str = "stable"  # stable: name and labels stay; experimental: may change with a line in the changelog

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    def samples(self) -> tuple[str, ...]:
        """The sample names a query may ask for."""
        suffixes = ("_bucket", "_sum", "_count") if self.kind == "histogram" else ("",)
        return tuple(self.full_name + suffix for suffix in suffixes)


def _counter(name: str, help: str, stability: str = "stable", most: int = 0, **labels: tuple[str, ...]) -> Metric:
    return Metric(name, "counter", help, labels, most=most, stability=stability)


def _gauge(name: str, help: str, stability: str = "stable", **labels: tuple[str, ...]) -> Metric:
    return Metric(name, "gauge", help, labels, stability=stability)


def _histogram(name: str, buckets: tuple[float, ...], help: str, stability: str = "stable", **labels: tuple[str, ...]) -> Metric:
    return Metric(name, "histogram", help, labels, buckets, stability=stability)


_NEW = "experimental"

# fmt: off
METRICS: tuple[Metric, ...] = (
    # At the door
    _counter("requests_total", "Client requests ended. result: how the shard was served; none: not a shard (status, plans, refused).",
             most=80, method=_METHODS, result=(*_RESULTS, "none"), code=("200", "206", OPEN)),
    _counter("request_bytes_total", "Shard bytes sent to clients by how their request was served; counted when the request ends.",
             result=_RESULTS),
    _counter("hit_bytes_total", "Of the shard bytes sent: those that were in the store when asked for."),
    _histogram("time_to_first_byte_seconds", _FIRST_BYTE_S, "From a shard request to its first body byte.", result=_RESULTS),
    _histogram("response_duration_seconds", _DURATION_S, "From a shard request to its last body byte; a slow reader makes it long."),
    _counter(
        "reader_wait_seconds_total",
        "Time readers waited for an origin's first answer or for bytes not yet here; the trainer's stall may be shorter.",
        job=(),
    ),
    _counter("responses_aborted_total", "Responses cut after their headers were out: a short body never looks complete.", reason=_ABORTS),
    _counter("auth_failures_total", "Clients turned away at the door.", reason=("uid", "browser", "token", OTHER)),
    _counter("ssrf_blocked_total", "Requests for an origin that Forebay refuses to visit."),
    _gauge("readers", "Readers inside a shard now, or waiting for its origin's first answer."),

    # Origins
    _counter("origin_requests_total", "Requests answered by an origin; code 0: no answer came.",
             most=13, origin=(), method=("GET", "HEAD"), code=("0", "200", "206", OPEN)),
    _histogram("origin_first_byte_seconds", _ORIGIN_FIRST_BYTE_S, "From a request to the origin's headers.", origin=()),
    _counter("origin_bytes_total", "Body bytes received; kind: why asked for.", origin=(), kind=("demand", "prefetch", "refetch")),
    _counter("origin_failures_total", "Requests in vain, retried or not.", origin=(), reason=_FAILURES),
    _counter("origin_retries_total", "Fetches that asked again; the reason is that of the failure before.", origin=()),
    _counter("origin_resumes_total", "Of the retries: those that went on from the next missing byte of a broken body.", origin=()),
    _counter("origin_throttled_total", "Requests refused because the origin wants fewer (429, 503).", origin=()),
    _counter("origin_oddities_total", "Answers used though odd: a range with status 200, a whole for a range, a denied version back.",
             _NEW, origin=(), kind=("range-as-200", "whole-for-range", "version-returned", OTHER)),
    _gauge("origin_inflight_requests", "Requests in the air.", origin=()),
    _histogram("opening_duration_seconds", _ORIGIN_FIRST_BYTE_S, "Until version and length of a shard were known.", _NEW),
    _counter("opening_failures_total", "Shards whose version could not be learned, by error class.", _NEW, error=_OPENING_ERRORS),
    _counter("revalidations_total", "Stored versions compared with their origin; unreachable: served all the same.", _NEW,
             result=("same", "changed", "unreachable", OTHER)),

    # The shared tier
    _counter("shared_lookups_total", "Shards looked for in the shared tier: found, brought by another sidecar while this one waited, to be "
             "fetched by this one from afar for all, given up waiting for.", _NEW, result=("hit", "waited", "fetched", "given-up")),
    _counter("shared_bytes_total", "Bytes of shards read from the shared tier and verified, and written to it.", _NEW,
             way=("read", "written")),
    _counter("shared_failures_total", "Times the shared tier was of no use, and the origin was asked. foreign: another program's object.",
             _NEW, reason=("unavailable", "timeout", "refused", "full", "wrong", "foreign", OTHER)),

    # Fetches
    _histogram("segment_fetch_seconds", _SEGMENT_S, "From the first request for a segment to its last byte, retries included.", _NEW),
    _counter("segments_fetched_total", "Segments fetched; stored=no: passed through memory because no room could be granted.", _NEW,
             kind=("demand", "prefetch"), stored=("yes", "no")),
    _counter("not_storable_total", "Openings of shards of which nothing is kept: Vary: *, no version, no length.", _NEW),
    _counter("not_tar_readings_total", "Readings of a shard whose name says tar and whose first bytes do not.", _NEW, job=()),
    _counter("refetches_total", "Times a reader had to fetch for itself alone: what was to be stored failed it.", _NEW),
    _counter("singleflight_joins_total", "Times a reader joined a fetch already in the air instead of starting one."),
    _gauge("singleflight_waiters", "Readers waiting now, for bytes or for an origin's first answer."),

    # The cache and its disk
    _gauge("cache_capacity_bytes", "The bound: as configured, and as the disk allows now.", kind=("configured", "effective")),
    _gauge("cache_bytes", "Allocated bytes held; the sum of the states never exceeds the capacity. doomed: on its way out.",
           state=("stored", "reserved", "doomed", "overhead")),
    _gauge("cache_peak_bytes", "Highest sum of cache_bytes in the last 30 to 60 seconds."),
    _gauge("cache_segments", "Segments stored."),
    _gauge("cache_shards", "Shards with at least one segment stored."),
    _gauge("lease_bytes", "Stored bytes that may not leave because a reader holds them."),
    _counter("door_answers_total", "Shards asked for by descriptor; all but passed go over HTTP. half: descriptors hold half the cache.",
             _NEW, answer=_DOOR_ANSWERS),
    _histogram("descriptor_lease_seconds", _DURATION_S, "From passing a descriptor to its lease's end: a reader's time in a shard.", _NEW),
    _gauge("descriptor_leases", "Descriptors that readers hold, or maps (views) made of one that outlived its reader.", _NEW),
    _gauge("descriptor_lease_bytes", "Of forebay_lease_bytes: held by descriptors; never more than half the capacity.", _NEW),
    _counter("sample_indexes_total", "Sample indexes made of complete shards, or read from the disk; refused: the shard can have none.",
             _NEW, result=_INDEX_RESULTS),
    _counter("cache_reservation_failures_total", "Segments for which no room was granted.",
             reason=("no-room", "disk", "quota", OTHER)),
    _counter("cache_evictions_total", "Segments that left. plan: farthest announced use; guess: no plan spoke for it; unused: never read, "
             "and nobody waits for it any more; stale: the origin has another version; admin: forebay evict; other: wrong or lost.",
             reason=_LEAVING),
    _counter("cache_evicted_bytes_total", "Bytes that left.", reason=_LEAVING),
    _counter("cache_evicted_before_use_bytes_total", "Bytes that left before any reader had read them: prefetch was too deep."),
    _histogram("cache_eviction_age_seconds", _AGE_S, "How long a segment had been stored when it left."),
    _counter("cache_integrity_failures_total", "Bytes that were not what they should be; they were dropped, not served.",
             stage=("origin", "read", "recovery", OTHER)),
    _counter("digest_checks_total", "Whole shards compared with the digest their origin names; unchecked: could not be, and were served.",
             algorithm=(*ALGORITHMS, OTHER), result=("agrees", "differs", "unchecked")),
    _counter("segments_verified_total", "Stored segments read whole and compared with their checksum; why: what asked for it.",
             why=("recovery", "digest", "verify", "sample"), result=("right", "wrong")),
    _counter("cache_disk_errors_total", "Failed operations in the cache directory.",
             most=40, op=_DISK_OPERATIONS, errno=("ENOSPC", "EIO", OPEN)),
    _gauge("cache_disk_state", "0 normal, 2 down (nothing is stored, bytes pass through)."),
    _counter("cache_disk_state_changes_total", "Times the cache disk came into a state; back in normal: it works again.", _NEW,
             state=("normal", "down")),
    _gauge("filesystem_avail_bytes", "Free bytes on the cache's file system."),
    _gauge("filesystem_size_bytes", "Size of the cache's file system."),
    _gauge("filesystem_files_free", "Free inodes on the cache's file system."),
    _counter("recovery_segments_total", "Segments found at start; dropped: could not be trusted.", outcome=("kept", "dropped")),
    _gauge("recovery_duration_seconds", "How long the last start took to load the index."),

    # What training processes tell
    _counter("stall_seconds_total", "Time the training process waited inside next(loader), by what the worker did whose batch was due.",
             _NEW, job=(), rank=(), cause=CAUSES),
    _counter("rank_metered_seconds_total", "Time in which a rank's stalls were metered: what to divide them by.", _NEW, job=(), rank=()),
    _counter("rank_reader_wait_seconds_total", "Time the workers of a rank waited for bytes, as they measured it; not a stall.", _NEW,
             job=(), rank=(), cause=_WAITED_FOR),
    _counter("rank_steps_total", "Batches given to a rank's trainer.", _NEW, job=(), rank=()),
    _counter("rank_samples_total", "Samples in them.", _NEW, job=(), rank=()),
    _counter("rank_skipped_total", "Samples and shards that a rank left out after errors.", _NEW, job=(), rank=()),

    # Plans
    _gauge("plan_active", "Readers with a plan."),
    _counter("plan_openings_total", "Shards opened by readers with a plan.", _NEW, job=()),
    _counter("plan_deviation_total", "Of them: opened after passing announced ones over, once more, or without having been announced.",
             job=(), kind=_DEVIATIONS),
    _gauge("prefetch_unread_bytes", "Bytes read ahead of need, here or on their way, that no reader has had yet.", _NEW),
    _gauge("prefetch_lead_bytes", "Bytes stored, without a gap, ahead of the job's worst-served reader.", _NEW, job=()),
    _gauge("prefetch_lead_seconds", "Until the job's worst-served reader meets its first missing segment, at its own pace.", _NEW, job=()),

    # The access log
    _counter("access_log_lines_total", "Lines for the access log; dropped: its disk took them too slowly, or not at all.", _NEW,
             result=("written", "dropped")),

    # The process (and process_*, python_gc_* from prometheus-client)
    _histogram("event_loop_lag_seconds", _LAG_S, "How late the event loop came back when asked: nobody is served meanwhile."),
    _gauge("build_info", "Always 1; the labels say what runs.", version=(), python=()),
)
# fmt: on


def table() -> str:
    """The metrics as a Markdown table, one line each."""
    head = "| Metric | Type | Labels | Meaning | Stability |\n|---|---|---|---|---|\n"
    return head + "".join(_row(metric) for metric in METRICS)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" + (f" = {', '.join(values)}" if values else "") for label, values in metric.labels.items())
    return f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} | {metric.stability} |\n"
