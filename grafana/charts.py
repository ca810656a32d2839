"""What the dashboard asks, row by row: the questions of a person whose training is slow, in the order they come up.

Every chart's help says what to do when it looks bad. Metric names are those of docs/metrics.md; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ROWS", "Chart"]

_WHICH = 'job=~"$job",instance=~"$instance"'


def now(metric: str, by: str = "", *, how: str = "sum", where: str = "") -> str:
    """A gauge over all chosen sidecars. Prometheus calls our ``job`` label ``exported_job``: its own ``job`` is the scrape job."""
    return f"{how}{f' by ({by})' if by else ''} ({metric}{{{_WHICH}{where}}})"


def rate(metric: str, by: str = "", *, where: str = "") -> str:
    """A counter per second."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{_WHICH}{where}}}[$__rate_interval]))"


def ratio(part: str, whole: str, matching: str = "") -> str:
    """``part`` over ``whole`` where there is any; ``matching``: how several parts find their whole."""
    return f"{part} / {matching}({whole} > 0)"


def quantile(share: float, histogram: str, by: str = "") -> str:
    grouping = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share}, sum by ({grouping}) (rate({histogram}_bucket{{{_WHICH}}}[$__rate_interval])))"


@dataclass(frozen=True)
class Chart:
    """One panel: ``lines`` maps a legend to its query; ``stacked`` makes them areas, all but the ``limits``."""

    title: str
    unit: str
    help: str
    lines: Mapping[str, str]
    stacked: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)  # legend -> colour of its dashed line
    values: Mapping[str, str] = field(default_factory=dict)  # number -> word, for states


ROWS: Mapping[str, tuple[Chart, ...]] = {
    "Is training waiting?": (
        Chart(
            "Stall by cause",
            "percentunit",
            "Share of their time that training processes waited inside next(loader), by what the worker did whose batch was due. origin: "
            "see the origin row. decode, map, collate: more workers, if cores are idle. transfer: the batch was made, and on its way to "
            "the trainer. Empty: nobody meters (FOREBAY_METER=0, or a program that only rewrites URLs).",
            {
                "{{cause}}": ratio(
                    rate("forebay_stall_seconds_total", "cause"), rate("forebay_rank_metered_seconds_total"), "on () group_left () "
                )
            },
            stacked=True,
        ),
        Chart(
            "Stall by rank",
            "percentunit",
            "The same by rank. Ranks that train together all wait for the slowest one: one rank far above the others has slower shards, "
            "fewer workers or a busier machine than they have, and costs all of them that time.",
            {
                "{{exported_job}} rank {{rank}}": ratio(
                    rate("forebay_stall_seconds_total", "exported_job, rank"),
                    rate("forebay_rank_metered_seconds_total", "exported_job, rank"),
                )
            },
        ),
        Chart(
            "Reader wait",
            "short",
            "Seconds that readers waited for bytes, per second: 1 means one reader waits all the time. Waiting in the first epoch is "
            "normal, its bytes must come from the origin. Later: if the origin row is busy, the cache is too small for the data set or "
            "the origin too slow; if the origin is idle, look for a small prefetch lead or a bad disk.",
            {"{{exported_job}}": rate("forebay_reader_wait_seconds_total", "exported_job")},
        ),
        Chart(
            "Time to first byte",
            "s",
            "From a shard request to its first byte. The median should be milliseconds once an epoch is cached. p99 in seconds while the"
            " median is low: cold shards, see the origin's first byte. Both high: the event loop or the disk, see the last row.",
            {"p50": quantile(0.5, "forebay_time_to_first_byte_seconds"), "p99": quantile(0.99, "forebay_time_to_first_byte_seconds")},
        ),
        Chart(
            "Readers",
            "short",
            "Readers inside a shard, those waiting for a fetch right now, and readers with a plan. Readers but no plans: the job does "
            "not announce its order, so prefetch guesses; start it with forebay run or use fb.ahead(). All readers waiting: see the "
            "origin row.",
            {
                "readers": now("forebay_readers"),
                "waiting": now("forebay_singleflight_waiters"),
                "with a plan": now("forebay_plan_active"),
            },
        ),
        Chart(
            "Prefetch lead",
            "s",
            "How far the cache is ahead of each job's worst-served reader. Under 5 s a hiccup of the origin reaches training. Small and "
            "steady: the origin is slower than the readers, or the cache is too small to hold a lead.",
            {"{{exported_job}}": now("forebay_prefetch_lead_seconds", "exported_job", how="min")},
        ),
    ),
    "Is the cache any use?": (
        Chart(
            "Hit bytes",
            "percentunit",
            "Share of the bytes sent that were stored when asked for. About cache size / data set size is what one pass an epoch can "
            "give; lower: look for evictions before use. Near 0 in a second epoch: readers' URLs change (signed URLs with unknown "
            "parameters?), see forebay ls.",
            {"hit": ratio(rate("forebay_hit_bytes_total"), rate("forebay_request_bytes_total"))},
        ),
        Chart(
            "Requests by result",
            "reqps",
            "hit: all stored; collapsed: shared a fetch already running; partial; miss; relayed: parts of clips, which are not stored; "
            "bypass: served without storing, because no room could be granted. Lasting bypass: the cache is smaller than what its readers "
            "hold at once, or its disk is failing (fourth row).",
            {"{{result}}": rate("forebay_requests_total", "result", where=',result!="none"')},
            stacked=True,
        ),
        Chart(
            "Disk against its bound",
            "bytes",
            "What the cache holds, by state, under its limit. The stack must never cross the red line: if it does, report a bug and keep"
            " the directory. The effective limit below the configured one: the file system is fuller than planned, free space or lower "
            "--cache-size. doomed that stays: readers still hold what was evicted.",
            {
                "{{state}}": now("forebay_cache_bytes", "state"),
                "limit": now("forebay_cache_capacity_bytes", where=',kind="configured"'),
                "effective limit": now("forebay_cache_capacity_bytes", where=',kind="effective"'),
            },
            stacked=True,
            limits={"limit": "red", "effective limit": "orange"},
        ),
        Chart(
            "Evictions",
            "Bps",
            "Bytes that left, by reason. plan is healthy: what the epoch needs last goes first. before use: fetched and thrown away "
            "unread, prefetch is too deep for this cache; raise --cache-size or run fewer jobs. stale: shards are being replaced on the "
            "origin.",
            {
                "{{reason}}": rate("forebay_cache_evicted_bytes_total", "reason"),
                "before use": rate("forebay_cache_evicted_before_use_bytes_total"),
            },
        ),
    ),
    "Do plans pay?": (
        Chart(
            "Lead in bytes",
            "bytes",
            "Bytes that are here ahead of each job's worst-served reader. 0 while the origin is busy: the origin is the limit. 0 while "
            "it is idle: the cache is too full of what is needed to read ahead, two segments a reader is then the most.",
            {
                "{{exported_job}}": now("forebay_prefetch_lead_bytes", "exported_job", how="min"),
                "read ahead, all readers": now("forebay_prefetch_unread_bytes"),
            },
        ),
        Chart(
            "Plan deviation",
            "percentunit",
            "Share of the openings that did not follow the reader's plan: after passing shards over, once more, or unannounced. Over 10 "
            "%: the loader reads another order than it announces; look for shuffling or splitting after fb.ahead().",
            {
                "{{exported_job}} {{kind}}": ratio(
                    rate("forebay_plan_deviation_total", "exported_job, kind"),
                    rate("forebay_plan_openings_total", "exported_job"),
                    "on (exported_job) group_left () ",
                )
            },
        ),
        Chart(
            "Evicted before use",
            "Bps",
            "Bytes that were fetched and left before any reader had them, beside all that left. Each is fetched once more: prefetch is "
            "too deep for this cache, or readers announce what they do not read. Raise --cache-size or run fewer jobs.",
            {
                "before use": rate("forebay_cache_evicted_before_use_bytes_total"),
                "all": rate("forebay_cache_evicted_bytes_total"),
            },
        ),
    ),
    "Is the origin the reason?": (
        Chart(
            "Bytes: origin against readers",
            "Bps",
            "What origins sent and what readers got; the gap is what the cache saves. Origin above readers for long: prefetch is filling"
            " the cache (fine in a first epoch) or bytes are fetched twice (see evictions before use).",
            {"{{origin}}": rate("forebay_origin_bytes_total", "origin"), "to readers": rate("forebay_request_bytes_total")},
        ),
        Chart(
            "Origin requests by code",
            "reqps",
            "206 and 200 are good; 0 is no answer. 403: credentials or a signed URL expired. 404: a wrong shard list. 429 and 503: the "
            "origin wants fewer requests; Forebay slows down by itself, ask for a higher limit if readers wait.",
            {"{{code}}": rate("forebay_origin_requests_total", "code")},
            stacked=True,
        ),
        Chart(
            "Failures and retries",
            "reqps",
            "Requests in vain by reason, fetches asked again, and those of them that went on in the middle. Readers notice none of it "
            "unless it lasts. reset and short: a proxy or load balancer between cuts long bodies. timeout: packet loss or an overloaded "
            "origin.",
            {
                "{{reason}}": rate("forebay_origin_failures_total", "reason"),
                "retries": rate("forebay_origin_retries_total"),
                "resumed": rate("forebay_origin_resumes_total"),
            },
        ),
        Chart(
            "Origin requests in the air",
            "short",
            "How many requests each origin is serving. It grows until the origin slows down. Stuck at a low number while readers wait: "
            "throttled (429, 503), or --origin-connections is too low for a distant origin.",
            {"{{origin}}": now("forebay_origin_inflight_requests", "origin")},
        ),
        Chart(
            "Origin first byte, p99",
            "s",
            "From a request to the origin's headers. Three times its usual value: the origin or the way to it has a problem, compare "
            "with another machine before blaming the cache.",
            {"{{origin}}": quantile(0.99, "forebay_origin_first_byte_seconds", "origin")},
        ),
    ),
    "Is something broken?": (
        Chart(
            "Responses aborted",
            "reqps",
            "Cut after their headers were out. client_gone: workers that left, harmless. origin_failed: the origin stayed broken for the"
            " whole retry budget. changed: a shard was replaced while it was read; give new data a new name.",
            {"{{reason}}": rate("forebay_responses_aborted_total", "reason")},
        ),
        Chart(
            "Refused",
            "reqps",
            "no-room and disk: segments that could not be stored and passed through memory; quota: a job over its share. door: clients "
            "that may not talk to this sidecar (--allow-uid, token). origin: places it may not go (--allow-origin). The log names each.",
            {
                "{{reason}}": rate("forebay_cache_reservation_failures_total", "reason"),
                "door: {{reason}}": rate("forebay_auth_failures_total", "reason"),
                "origin": rate("forebay_ssrf_blocked_total"),
            },
        ),
        Chart(
            "Disk state",
            "short",
            "0 normal, 2 down. Training goes on without the cache. Look at the errors beside it and at the kernel log of "
            "that machine; forebay status says what failed.",
            {"{{instance}}": now("forebay_cache_disk_state", "instance", how="max")},
            values={"0": "normal", "2": "down"},
        ),
        Chart(
            "Disk errors and integrity",
            "reqps",
            "ENOSPC: something else fills the disk, lower --cache-size or raise the free-space floor. EIO: the disk is dying, move "
            "--cache-dir. Integrity other than recovery: stored or fetched bytes were wrong; they were not served, but find out why.",
            {
                "{{op}} {{errno}}": rate("forebay_cache_disk_errors_total", "op, errno"),
                "integrity: {{stage}}": rate("forebay_cache_integrity_failures_total", "stage"),
            },
        ),
    ),
    "Is the process well?": (
        Chart(
            "Memory",
            "bytes",
            "Resident memory. It should stay under 200 MB with 64 readers; steady growth is a leak: report it with forebay status --json.",
            {"{{instance}}": now("process_resident_memory_bytes", "instance")},
        ),
        Chart(
            "File descriptors",
            "short",
            "Open descriptors under the limit. Close to it: raise ulimit -n (LimitNOFILE in systemd); readers and origins hold one each.",
            {"{{instance}}": now("process_open_fds", "instance"), "limit": now("process_max_fds", how="min")},
            limits={"limit": "red"},
        ),
        Chart(
            "Event loop lag, p99",
            "s",
            "How late the one loop that serves everybody comes back. Over 0.1 s every reader feels it: the machine has no CPU left for "
            "the sidecar (pin data workers, or give it a core), or a plan of millions of shards is being read.",
            {"{{instance}}": quantile(0.99, "forebay_event_loop_lag_seconds", "instance")},
        ),
        Chart(
            "CPU",
            "percentunit",
            "Cores used. Near 1 for long: a sidecar has one event loop; give a job that needs more one of its own.",
            {"{{instance}}": rate("process_cpu_seconds_total", "instance")},
        ),
        Chart(
            "Free disk",
            "bytes",
            "Free bytes where the cache lies. Falling while the cache is flat: something else fills the disk.",
            {"{{instance}}": now("forebay_filesystem_avail_bytes", "instance")},
        ),
    ),
}
