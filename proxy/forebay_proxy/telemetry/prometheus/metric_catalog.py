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
_MOST_SHOWN = 10  # values of a label in the table

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
        "hits": "results read instead of made.",
        "made": "results made.",
        "kept": "results written.",
        "dropped": "results not kept: slow writer, or a transform that changed.",
        "damaged": "damaged results, made again.",
        "off": "times a process stopped using it: full or failing.",
    },
    "frames": {
        "hits": "clips read instead of decoded.",
        "kept": "clips written.",
        "dropped": "clips not kept: full queue, or not decodable.",
        "damaged": "damaged clips, decoded again.",
        "off": "times a process stopped using or filling it: full or failing.",
    },
}


def _derived(kind: str, what: str) -> Iterator[Metric]:
    """Of the kind of derived cache that people call ``what``."""
    yield _gauge(f"{kind}_bytes", f"{what}: bytes on disk.", _NEW, job=())
    yield _gauge(f"{kind}_limit_bytes", f"{what}: limit of these bytes.", _NEW, job=())
    for name in DERIVED[kind]:
        yield _counter(f"{kind}_{name}_total", f"{what}: {_DERIVED_HELP[kind][name]}", _NEW, job=())


# fmt: off
METRICS: tuple[Metric, ...] = (
    # At the door
    _counter("requests_total", "Client requests ended. none: no shard, or refused.",
             most=80, method=_METHODS, result=(*_RESULTS, "none"), code=("200", "206", OPEN)),
    _counter("request_bytes_total", "Shard bytes sent, counted when the request ends.",
             result=_RESULTS),
    _counter("hit_bytes_total", "Shard bytes sent that were cached when asked for."),
    _histogram("time_to_first_byte_seconds", _FIRST_BYTE_S, "From a shard request to its first body byte.", result=_RESULTS),
    _histogram("response_duration_seconds", _DURATION_S, "From a shard request to its last body byte."),
    _counter(
        "reader_wait_seconds_total",
        "Time readers waited for bytes. Not stall.",
        job=(),
    ),
    _counter("responses_aborted_total", "Responses cut after their headers.", reason=_ABORTS),
    _counter("auth_failures_total", "Clients refused.", reason=("uid", "browser", "token", OTHER)),
    _counter("ssrf_blocked_total", "Requests for forbidden origins."),
    _gauge("readers", "Readers now."),

    # Origins
    _counter("origin_requests_total", "Requests to an origin. code 0: no answer.",
             most=13, origin=(), method=("GET", "HEAD"), code=("0", "200", "206", OPEN)),
    _histogram("origin_first_byte_seconds", _ORIGIN_FIRST_BYTE_S, "From a request to the origin's answer.", origin=()),
    _counter("origin_bytes_total", "Body bytes received.", origin=(), kind=("demand", "prefetch", "refetch")),
    _counter("origin_failures_total", "Failed requests, retried or not.", origin=(), reason=_FAILURES),
    _counter("origin_retries_total", "Requests repeated after a failure.", origin=()),
    _counter("origin_resumes_total", "Retries that continued a broken body.", origin=()),
    _counter("origin_throttled_total", "Requests answered with 429 or 503.", origin=()),
    _counter("origin_oddities_total", "Odd answers used. version-returned: one that it had denied (412) is back.",
             _NEW, origin=(), kind=("range-as-200", "whole-for-range", "version-returned", OTHER)),
    _gauge("origin_inflight_requests", "Requests running.", origin=()),
    _histogram("opening_duration_seconds", _ORIGIN_FIRST_BYTE_S, "Until a shard's version and length were known.", _NEW),
    _counter("opening_failures_total", "Shards whose version stayed unknown.", _NEW, error=_OPENING_ERRORS),
    _counter("revalidations_total", "Stored versions compared with their origin. unreachable: served anyway.", _NEW,
             result=("same", "changed", "unreachable", OTHER)),

    # The shared tier
    _counter("shared_lookups_total", "Shards looked up in the shared tier. waited: another sidecar brought it; fetched: this one does.",
             _NEW, result=("hit", "waited", "fetched", "given-up")),
    _counter("shared_bytes_total", "Bytes read from and written to the shared tier.", _NEW,
             way=("read", "written")),
    _counter("shared_failures_total", "Times the shared tier failed and the origin was asked. foreign: another program's object.",
             _NEW, reason=("unavailable", "timeout", "refused", "full", "wrong", "foreign", OTHER)),

    # Fetches
    _histogram("segment_fetch_seconds", _SEGMENT_S, "Time to fetch a segment, with retries.", _NEW),
    _counter("segments_fetched_total", "Segments fetched. stored=no: passed through memory.", _NEW,
             kind=("demand", "prefetch"), stored=("yes", "no")),
    _counter("not_storable_total", "Openings of shards that cannot be stored: Vary: *, no version or length.", _NEW),
    _counter("not_tar_readings_total", "Reads of shards that are named .tar but are not tars.", _NEW, job=()),
    _counter("refetches_total", "Fetches for one reader, because storing failed.", _NEW),
    _counter("singleflight_joins_total", "Times a reader joined a running fetch."),
    _gauge("singleflight_waiters", "Readers waiting now."),

    # The cache and its disk
    _gauge("cache_capacity_bytes", "Cache limit: as configured; as the disk allows now.", kind=("configured", "effective")),
    _gauge("cache_bytes", "Allocated bytes; the sum never exceeds the capacity. doomed: being deleted.",
           state=("stored", "reserved", "doomed", "overhead")),
    _gauge("cache_peak_bytes", "Most bytes on the disk in the last 30 to 60 seconds."),
    _gauge("cache_segments", "Segments stored."),
    _gauge("cache_shards", "Shards with a segment stored."),
    _gauge("lease_bytes", "Stored bytes that readers protect from eviction."),
    _counter("door_answers_total", "Shards asked for by descriptor; all but passed go over HTTP. half: descriptors hold half of the cache.",
             _NEW, answer=_DOOR_ANSWERS),
    _histogram("descriptor_lease_seconds", _DURATION_S, "How long descriptors were held.", _NEW),
    _gauge("descriptor_leases", "Descriptors held, and files still locked.", _NEW),
    _gauge("descriptor_lease_bytes", "Stored bytes held by descriptors; half of the capacity at most.", _NEW),
    _counter("sample_indexes_total", "Sample indexes. refused: the shard can have none.",
             _NEW, result=_INDEX_RESULTS),
    _counter("cache_reservation_failures_total", "Segments that got no space.",
             reason=("no-room", "disk", "quota", OTHER)),
    _counter("cache_evictions_total", "Segments evicted. plan: needed last; guess: in no plan; stale: new version at the origin; "
             "admin: forebay evict; unused: never read; other: wrong or lost.",
             reason=_LEAVING),
    _counter("cache_evicted_bytes_total", "Bytes evicted.", reason=_LEAVING),
    _counter("cache_evicted_before_use_bytes_total", "Bytes evicted unread."),
    _histogram("cache_eviction_age_seconds", _AGE_S, "Age of evicted segments."),
    _counter("cache_integrity_failures_total", "Wrong bytes found, and dropped.",
             stage=("origin", "read", "recovery", OTHER)),
    _counter("digest_checks_total", "Shards compared with their origin's digest. unchecked: not compared.",
             algorithm=(*ALGORITHMS, OTHER), result=("agrees", "differs", "unchecked")),
    _counter("segments_verified_total", "Stored segments compared with their checksums.",
             why=("recovery", "digest", "verify", "sample"), result=("right", "wrong")),
    _counter("cache_disk_errors_total", "Failed operations in the cache directory.",
             most=40, op=_DISK_OPERATIONS, errno=("ENOSPC", "EIO", OPEN)),
    _gauge("cache_disk_state", "0 normal; 2 down: nothing is stored."),
    _counter("cache_disk_state_changes_total", "Changes of the cache disk's state.", _NEW,
             state=("normal", "down")),
    _gauge("filesystem_avail_bytes", "Free bytes of the cache's file system."),
    _gauge("filesystem_size_bytes", "Size of the cache's file system."),
    _gauge("filesystem_files_free", "Free inodes of the cache's file system."),
    _counter("recovery_segments_total", "Segments found at the start.", outcome=("kept", "dropped")),
    _gauge("recovery_duration_seconds", "Time to load the index at the start."),

    # What training processes tell
    _counter("stall_seconds_total", "Time inside next(loader), by what the worker of the next batch did.",
             _NEW, job=(), rank=(), cause=CAUSES),
    _counter("rank_metered_seconds_total", "Metered time: divide stalls by it.", _NEW, job=(), rank=()),
    _counter("rank_reader_wait_seconds_total", "Time workers waited for bytes. Not stall.", _NEW,
             job=(), rank=(), cause=_WAITED_FOR),
    _counter("rank_steps_total", "Batches given to the trainer.", _NEW, job=(), rank=()),
    _counter("rank_samples_total", "Samples given to the trainer.", _NEW, job=(), rank=()),
    _counter("rank_skipped_total", "Samples and shards skipped after errors.", _NEW, job=(), rank=()),

    *_derived("memo", "fb.memo"),
    *_derived("frames", "fb.frames"),

    # Plans
    _gauge("plan_active", "Readers with a plan."),
    _counter("plan_openings_total", "Shards opened by readers with a plan.", _NEW, job=()),
    _counter("plan_deviation_total", "Openings that do not follow the plan.",
             job=(), kind=_DEVIATIONS),
    _gauge("prefetch_unread_bytes", "Prefetched bytes that nobody has read yet.", _NEW),
    _gauge("prefetch_lead_bytes", "Bytes stored without a gap ahead of the job's worst-served reader.", _NEW, job=()),
    _gauge("prefetch_lead_seconds", "Time until the job's worst-served reader needs a missing segment.", _NEW, job=()),

    # The access log
    _counter("access_log_lines_total", "Access log lines. dropped: disk slow or failed.", _NEW,
             result=("written", "dropped")),

    # The process (and process_*, python_gc_* from prometheus-client)
    _histogram("event_loop_lag_seconds", _LAG_S, "Delay of the event loop; it serves nobody meanwhile."),
    _gauge("build_info", "Always 1.", version=(), python=()),
)
# fmt: on


def table() -> str:
    """The metrics as a Markdown table. A list of values is written where it comes first; fb.frames stands beside fb.memo."""
    head = "| Metric | Labels | Meaning |\n|---|---|---|\n"
    known = set[tuple[str, tuple[str, ...]]]()
    return head + "".join(_row(metric, known) for metric in METRICS if not metric.name.startswith("frames_"))


def _row(metric: Metric, known: set[tuple[str, tuple[str, ...]]]) -> str:
    labels = ", ".join(_label(label, values, known) for label, values in metric.labels.items())
    mark = "" if metric.stability == "stable" else "\\*"
    twin = metric.name.replace("memo_", "frames_", 1)
    both = [name for name in (metric.name, twin) if any(name == other.name for other in METRICS)]
    names = ", ".join(f"`{PREFIX}{name}`{mark}" for name in dict.fromkeys(both))
    meaning = metric.help.removeprefix("fb.memo: ")  # the name says it
    if metric.kind == "histogram":
        meaning = f"Histogram. {meaning}"
    return f"| {names} | {labels} | {meaning[0].upper()}{meaning[1:]} |\n"


def _label(label: str, values: tuple[str, ...], known: set[tuple[str, tuple[str, ...]]]) -> str:
    new = [value for value in values if value != OTHER] if (label, values) not in known else []
    if len(new) > _MOST_SHOWN:
        new = [*new[:3], OPEN]
    known.add((label, values))
    return f"`{label}`" + (f" = {', '.join(new)}" if new else "")
