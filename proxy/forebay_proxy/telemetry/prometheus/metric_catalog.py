"""Every metric Forebay exports: name, kind, labels, meaning. One table; the code, the documentation and the dashboard tests read it. Pure.

Rules: seconds and bytes only; ratios are computed by whoever asks, from counters; no URL, key or secret in a label; every label is bounded.
A label's values are an enum, all born at zero so that ``rate()`` sees the first event. ``OPEN`` after the values known in advance lets a
family admit more until it has ``most`` series (in all, or for each origin), then ``other``. ``LabelSlots`` bounds ``origin``, ``job``, and
``rank`` together with its job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forebay_proxy.core.digests import ALGORITHMS
from forebay_proxy.core.facts.requests import RequestOutcome
from forebay_proxy.wire.protocol.meter import CAUSES, DERIVED

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
_DERIVED_HELP = {
    "memo": {
        "hits": "results read instead of computed.",
        "made": "results computed, since they were not kept.",
        "kept": "results written.",
        "dropped": "results not kept: the writer was behind, or the transform changed while it ran.",
        "damaged": "results that were not as written; computed again.",
        "off": "times a process gave its store up: full, or failing.",
    },
    "frames": {
        "hits": "clips whose frames were read instead of decoded.",
        "kept": "clips all of whose frames were written.",
        "dropped": "clips not kept for now: no room to wait, or they could not be decoded.",
        "damaged": "clips of which a frame was not as written; decoded, and kept again.",
        "off": "times a process gave its folder up, or adds nothing to it any more: full, or failing.",
    },
}


def _derived(kind: str, what: str) -> Iterator[Metric]:
    """Of the kind of derived cache that people call ``what``."""
    yield _gauge(f"{kind}_bytes", f"{what}: bytes on the disk of the job's folders.", _NEW, job=())
    yield _gauge(f"{kind}_limit_bytes", f"{what}: the most that these folders may take.", _NEW, job=())
    for name in DERIVED[kind]:
        yield _counter(f"{kind}_{name}_total", f"{what}: {_DERIVED_HELP[kind][name]}", _NEW, job=())


# fmt: off
METRICS: tuple[Metric, ...] = (
    # At the door
    _counter("requests_total", "Client requests ended. none: not for a shard, or refused.",
             most=80, method=_METHODS, result=(*_RESULTS, "none"), code=("200", "206", OPEN)),
    _counter("request_bytes_total", "Shard bytes sent to clients, counted when the request ends.",
             result=_RESULTS),
    _counter("hit_bytes_total", "Shard bytes sent that were cached when asked for."),
    _histogram("time_to_first_byte_seconds", _FIRST_BYTE_S, "From a shard request to its first body byte.", result=_RESULTS),
    _histogram("response_duration_seconds", _DURATION_S, "From a shard request to its last body byte, slow readers included."),
    _counter(
        "reader_wait_seconds_total",
        "Time readers waited for an origin's first answer or for bytes. Not stall.",
        job=(),
    ),
    _counter("responses_aborted_total", "Responses cut after their headers.", reason=_ABORTS),
    _counter("auth_failures_total", "Clients refused.", reason=("uid", "browser", "token", OTHER)),
    _counter("ssrf_blocked_total", "Requests for an origin that Forebay does not visit."),
    _gauge("readers", "Readers inside a shard, or waiting for its origin's first answer."),

    # Origins
    _counter("origin_requests_total", "Requests to an origin. code 0: no answer.",
             most=13, origin=(), method=("GET", "HEAD"), code=("0", "200", "206", OPEN)),
    _histogram("origin_first_byte_seconds", _ORIGIN_FIRST_BYTE_S, "From a request to the origin's headers.", origin=()),
    _counter("origin_bytes_total", "Body bytes received.", origin=(), kind=("demand", "prefetch", "refetch")),
    _counter("origin_failures_total", "Requests that failed, retried or not.", origin=(), reason=_FAILURES),
    _counter("origin_retries_total", "Requests repeated after a failure.", origin=()),
    _counter("origin_resumes_total", "Retries from the next missing byte of a broken body.", origin=()),
    _counter("origin_throttled_total", "Requests answered with 429 or 503.", origin=()),
    _counter("origin_oddities_total", "Odd answers that were used. version-returned: a denied version came back.",
             _NEW, origin=(), kind=("range-as-200", "whole-for-range", "version-returned", OTHER)),
    _gauge("origin_inflight_requests", "Requests running.", origin=()),
    _histogram("opening_duration_seconds", _ORIGIN_FIRST_BYTE_S, "Until version and length of a shard were known.", _NEW),
    _counter("opening_failures_total", "Shards whose version could not be learned, by error class.", _NEW, error=_OPENING_ERRORS),
    _counter("revalidations_total", "Stored versions compared with their origin. unreachable: served nevertheless.", _NEW,
             result=("same", "changed", "unreachable", OTHER)),

    # The shared tier
    _counter("shared_lookups_total", "Shards looked for in the shared tier. waited: another sidecar brought it; fetched: this one does.",
             _NEW, result=("hit", "waited", "fetched", "given-up")),
    _counter("shared_bytes_total", "Verified bytes read from the shared tier, and bytes written to it.", _NEW,
             way=("read", "written")),
    _counter("shared_failures_total", "Times the origin was asked because the shared tier failed. foreign: another program's object.",
             _NEW, reason=("unavailable", "timeout", "refused", "full", "wrong", "foreign", OTHER)),

    # Fetches
    _histogram("segment_fetch_seconds", _SEGMENT_S, "From the first request for a segment to its last byte, retries included.", _NEW),
    _counter("segments_fetched_total", "Segments fetched. stored=no: passed through memory for lack of space.", _NEW,
             kind=("demand", "prefetch"), stored=("yes", "no")),
    _counter("not_storable_total", "Openings of shards that cannot be stored: Vary: *, no version, no length.", _NEW),
    _counter("not_tar_readings_total", "Readings of a shard that is named as a tar and does not begin as one.", _NEW, job=()),
    _counter("refetches_total", "Fetches for one reader alone, because storing failed.", _NEW),
    _counter("singleflight_joins_total", "Times a reader joined a running fetch."),
    _gauge("singleflight_waiters", "Readers waiting now, for bytes or an origin's first answer."),

    # The cache and its disk
    _gauge("cache_capacity_bytes", "The bound: as configured, and as the disk allows now.", kind=("configured", "effective")),
    _gauge("cache_bytes", "Allocated bytes; their sum never exceeds the capacity. doomed: being deleted.",
           state=("stored", "reserved", "doomed", "overhead")),
    _gauge("cache_peak_bytes", "Most bytes on the disk in the last 30 to 60 seconds; cache_bytes counts what is set aside, too."),
    _gauge("cache_segments", "Segments stored."),
    _gauge("cache_shards", "Shards with at least one segment stored."),
    _gauge("lease_bytes", "Stored bytes that a reader holds, so that they may not be evicted."),
    _counter("door_answers_total", "Shards asked for by descriptor; all but passed go over HTTP. half: descriptors hold half of the cache.",
             _NEW, answer=_DOOR_ANSWERS),
    _histogram("descriptor_lease_seconds", _DURATION_S, "From passing a descriptor to the end of its lease.", _NEW),
    _gauge("descriptor_leases", "Descriptors that readers hold, and files still locked after their lease.", _NEW),
    _gauge("descriptor_lease_bytes", "Stored bytes held by descriptors, at most half of the capacity.", _NEW),
    _counter("sample_indexes_total", "Sample indexes of complete shards. refused: the shard can have none.",
             _NEW, result=_INDEX_RESULTS),
    _counter("cache_reservation_failures_total", "Segments that got no space.",
             reason=("no-room", "disk", "quota", OTHER)),
    _counter("cache_evictions_total", "Segments evicted. plan: needed last; guess: in no plan; stale: the origin has another version; "
             "admin: forebay evict; unused: never read, and no reader waits; other: wrong or lost.",
             reason=_LEAVING),
    _counter("cache_evicted_bytes_total", "Bytes evicted.", reason=_LEAVING),
    _counter("cache_evicted_before_use_bytes_total", "Bytes evicted unread: prefetch was too deep."),
    _histogram("cache_eviction_age_seconds", _AGE_S, "How long an evicted segment had been stored."),
    _counter("cache_integrity_failures_total", "Wrong bytes found and dropped, not served.",
             stage=("origin", "read", "recovery", OTHER)),
    _counter("digest_checks_total", "Whole shards compared with the digest that their origin names. unchecked: served without.",
             algorithm=(*ALGORITHMS, OTHER), result=("agrees", "differs", "unchecked")),
    _counter("segments_verified_total", "Stored segments compared with their checksum.",
             why=("recovery", "digest", "verify", "sample"), result=("right", "wrong")),
    _counter("cache_disk_errors_total", "Failed operations in the cache directory.",
             most=40, op=_DISK_OPERATIONS, errno=("ENOSPC", "EIO", OPEN)),
    _gauge("cache_disk_state", "0 normal, 2 down (nothing is stored, bytes pass through)."),
    _counter("cache_disk_state_changes_total", "Times the cache disk entered a state.", _NEW,
             state=("normal", "down")),
    _gauge("filesystem_avail_bytes", "Free bytes on the cache's file system."),
    _gauge("filesystem_size_bytes", "Size of the cache's file system."),
    _gauge("filesystem_files_free", "Free inodes on the cache's file system."),
    _counter("recovery_segments_total", "Segments found at the start. dropped: not trusted.", outcome=("kept", "dropped")),
    _gauge("recovery_duration_seconds", "How long the last start took to load the index."),

    # What training processes tell
    _counter("stall_seconds_total", "Time training waited inside next(loader), by what the worker with the due batch did.",
             _NEW, job=(), rank=(), cause=CAUSES),
    _counter("rank_metered_seconds_total", "Metered time of a rank: divide stalls by it.", _NEW, job=(), rank=()),
    _counter("rank_reader_wait_seconds_total", "Time the workers of a rank waited for bytes. Not stall.", _NEW,
             job=(), rank=(), cause=_WAITED_FOR),
    _counter("rank_steps_total", "Batches given to a rank's trainer.", _NEW, job=(), rank=()),
    _counter("rank_samples_total", "Samples given to a rank's trainer.", _NEW, job=(), rank=()),
    _counter("rank_skipped_total", "Samples and shards skipped after errors.", _NEW, job=(), rank=()),

    *_derived("memo", "fb.memo"),
    *_derived("frames", "fb.frames"),

    # Plans
    _gauge("plan_active", "Readers with a plan."),
    _counter("plan_openings_total", "Shards opened by readers with a plan.", _NEW, job=()),
    _counter("plan_deviation_total", "Openings that skip announced shards, repeat one, or are unannounced.",
             job=(), kind=_DEVIATIONS),
    _gauge("prefetch_unread_bytes", "Prefetched bytes, arriving ones included, that no reader has read.", _NEW),
    _gauge("prefetch_lead_bytes", "Bytes stored without a gap ahead of the job's worst-served reader.", _NEW, job=()),
    _gauge("prefetch_lead_seconds", "Until the job's worst-served reader needs its first missing segment.", _NEW, job=()),

    # The access log
    _counter("access_log_lines_total", "Lines of the access log. dropped: its disk was too slow or failed.", _NEW,
             result=("written", "dropped")),

    # The process (and process_*, python_gc_* from prometheus-client)
    _histogram("event_loop_lag_seconds", _LAG_S, "Delay of the event loop; no client is served meanwhile."),
    _gauge("build_info", "Always 1.", version=(), python=()),
)
# fmt: on


def table() -> str:
    """The metrics as a Markdown table, one line each."""
    head = "| Metric | Type | Labels | Meaning | Stability |\n|---|---|---|---|---|\n"
    return head + "".join(_row(metric) for metric in METRICS)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" + (f" = {', '.join(values)}" if values else "") for label, values in metric.labels.items())
    stability = "" if metric.stability == "stable" else metric.stability
    return f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help} | {stability} |\n"
