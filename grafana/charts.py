"""What the dashboard asks: one screen for the question "is training waiting?", then rows that are closed until somebody wants them.

Every chart's help says what to do when it looks bad. Metric names are those of docs/metrics.md; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ROWS", "STARTS", "Chart"]

_SIDECARS = 'job=~"$job",instance=~"$instance"'
_OF_A_JOB = ("stall_", "rank_", "reader_wait_", "plan_openings_", "plan_deviation_", "prefetch_lead_", "not_tar_")  # with our label `job`


def _which(metric: str) -> str:
    """The chosen sidecars and training jobs. Prometheus calls our ``job`` label ``exported_job``: its own ``job`` is the scrape job."""
    return _SIDECARS + (',exported_job=~"$train"' if metric.removeprefix("forebay_").startswith(_OF_A_JOB) else "")


def now(metric: str, by: str = "", *, how: str = "sum", where: str = "") -> str:
    """A gauge over all that is chosen."""
    return f"{how}{f' by ({by})' if by else ''} ({metric}{{{_which(metric)}{where}}})"


def rate(metric: str, by: str = "", *, where: str = "") -> str:
    """A counter per second."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{_which(metric)}{where}}}[$__rate_interval]))"


def grown(metric: str, by: str = "", *, where: str = "") -> str:
    """By how much a counter grew in the time that the dashboard shows."""
    return f"sum{f' by ({by})' if by else ''} (increase({metric}{{{_which(metric)}{where}}}[$__range]))"


def ratio(part: str, whole: str, matching: str = "") -> str:
    """``part`` over ``whole`` where there is any; ``matching``: how several parts find their whole."""
    return f"{part} / {matching}({whole} > 0)"


def stall(by: str) -> str:
    """The share of its time that each of ``by`` waited for batches."""
    return ratio(rate("forebay_stall_seconds_total", by), rate("forebay_rank_metered_seconds_total", by))


def quantile(share: float, histogram: str, by: str = "") -> str:
    grouping = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share}, sum by ({grouping}) (rate({histogram}_bucket{{{_which(histogram)}}}[$__rate_interval])))"


@dataclass(frozen=True)
class Chart:
    """One panel: ``lines`` maps a legend to its query; ``stacked`` makes them areas, all but the ``limits``.

    With ``steps`` it is one number, coloured by them: from which value on which colour, None for the lowest.
    """

    title: str
    unit: str
    help: str
    lines: Mapping[str, str]
    stacked: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)  # legend -> colour of its dashed line
    values: Mapping[str, str] = field(default_factory=dict)  # number -> word, for states
    steps: Mapping[float | None, str] = field(default_factory=dict)


STARTS = f"time() - process_start_time_seconds{{{_SIDECARS}}} < 60"  # each start of a sidecar is a mark on every panel
_ANY: Mapping[float | None, str] = {None: "blue"}  # nobody but the reader of the number knows what is good
BAD = ',code=~"0|401|403|429|5.."'  # no answer, not allowed, too many, or a fault of the origin's own
SAVED = f"clamp_min({grown('forebay_request_bytes_total')} - {grown('forebay_origin_bytes_total')}, 0)"

ROWS: Mapping[str, tuple[Chart, ...]] = {
    "Is training waiting?": (
        Chart(
            "Stall, worst rank",
            "percentunit",
            "Share of its time that the rank which waits most stood inside next(loader). Ranks that train together wait for the "
            "slowest one. Over 5 %: look at its cause below; over 20 %: act. No data: nobody meters (FOREBAY_METER=0, or a program "
            "that only rewrites URLs).",
            {"worst rank": f"max ({stall('exported_job, rank')})"},
            steps={None: "green", 0.05: "orange", 0.2: "red"},
        ),
        Chart(
            "Samples a second",
            "short",
            "Samples that all chosen ranks got. Compare it with the same run yesterday: it falls with a stall, and also where the "
            "trainer itself got slower, which Forebay cannot mend.",
            {"samples": rate("forebay_rank_samples_total")},
            steps=_ANY,
        ),
        Chart(
            "From the origins",
            "Bps",
            "What origins send now. As much as the line gives, with a stall for the origin: the origin is the limit, fill the cache "
            "before the run (forebay warm). Little, without a stall: the cache serves.",
            {"origins": rate("forebay_origin_bytes_total")},
            steps=_ANY,
        ),
        Chart(
            "Hit bytes",
            "percentunit",
            "Share of the bytes sent that were stored when asked for. In a first epoch prefetch makes the hits. Later about cache "
            "size / data set size is what one pass an epoch can give; lower: see the row on the cache.",
            {"hit": ratio(rate("forebay_hit_bytes_total"), rate("forebay_request_bytes_total"))},
            steps=_ANY,
        ),
        Chart(
            "Prefetch lead",
            "s",
            "How far the cache is ahead of the worst-served reader of all chosen jobs. Under 5 s a hiccup of the origin reaches "
            "training. Small and steady: the origin is slower than the readers, or the cache is too small to hold a lead.",
            {"lead": now("forebay_prefetch_lead_seconds", how="min")},
            steps={None: "orange", 5: "green"},
        ),
        Chart(
            "Stall by cause",
            "percentunit",
            "Share of their time that training processes waited inside next(loader), by what the worker did whose batch was due. origin: "
            "see the row on origins. decode, map, collate: more workers, if cores are idle. transfer: the batch was made, and on its way "
            "to the trainer. Empty: nobody meters (FOREBAY_METER=0, or a program that only rewrites URLs).",
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
            {"{{exported_job}} rank {{rank}}": stall("exported_job, rank")},
        ),
        Chart(
            "Samples a second by rank",
            "short",
            "What each rank got. One rank below the others: its shards are slower or its machine is busier. All of them fall "
            "together: see the stall beside it; no stall: the trainer takes longer for its steps.",
            {"{{exported_job}} rank {{rank}}": rate("forebay_rank_samples_total", "exported_job, rank")},
        ),
        Chart(
            "Steps a second by rank",
            "short",
            "Batches that each rank took. Ranks that train together take equally many; a rank that falls behind or ends first will "
            "hold up the others (docs/equal-steps.md).",
            {"{{exported_job}} rank {{rank}}": rate("forebay_rank_steps_total", "exported_job, rank")},
        ),
        Chart(
            "Readers",
            "short",
            "Readers inside a shard, those waiting for a fetch right now, and readers with a plan. Readers but no plans: the job does "
            "not announce its order, so prefetch guesses; start it with forebay run or use fb.ahead(). All readers waiting: see the "
            "row on origins.",
            {
                "readers": now("forebay_readers"),
                "waiting": now("forebay_singleflight_waiters"),
                "with a plan": now("forebay_plan_active"),
            },
        ),
    ),
    "What does it cost, and save?": (
        Chart(
            "Bytes from origins",
            "bytes",
            "Bytes that origins sent in the time shown: what their owner may bill. Far more than the data set has: the cache is too "
            "small, or jobs evict each other's shards; see the row on the cache.",
            {"from origins": grown("forebay_origin_bytes_total")},
            steps=_ANY,
        ),
        Chart(
            "Bytes saved",
            "bytes",
            "Bytes that readers got less those that origins sent, in the time shown. 0 in a first epoch, where prefetch brings more "
            "than was read so far; choose a whole run as the time.",
            {"saved": SAVED},
            steps=_ANY,
        ),
        Chart(
            "Cost of the origins",
            "currencyUSD",
            "Bytes from origins times the price in the variable Price a GB above: enter what your provider charges for traffic that "
            "leaves; within a region it is often 0. Requests are not in it.",
            {"cost": f"{grown('forebay_origin_bytes_total')} / 1e9 * $price"},
            steps=_ANY,
        ),
        Chart(
            "Money saved",
            "currencyUSD",
            "Bytes saved times the same price. It says nothing of what idle accelerators cost: the stall above, times their price, is "
            "often far more.",
            {"saved": f"{SAVED} / 1e9 * $price"},
            steps=_ANY,
        ),
        Chart(
            "Why origins were asked",
            "Bps",
            "demand: a reader waits for it. prefetch: ahead of need. refetch: a second time, for one reader alone, because what "
            "should be stored failed it. Demand that lasts: plans are missing, or the origin is slower than training.",
            {"{{kind}}": rate("forebay_origin_bytes_total", "kind")},
            stacked=True,
        ),
        Chart(
            "Bytes: origin against readers",
            "Bps",
            "What origins sent and what readers got; the gap is what the cache saves. Origin above readers for long: prefetch is filling"
            " the cache (fine in a first epoch) or bytes are fetched twice (see evictions before use).",
            {"{{origin}}": rate("forebay_origin_bytes_total", "origin"), "to readers": rate("forebay_request_bytes_total")},
        ),
    ),
    "Are the origins the reason?": (
        Chart(
            "Origin requests by code",
            "reqps",
            "206 and 200 are good; 0 is no answer. 403: credentials or a signed URL expired. 404: a wrong shard list. 429 and 503: the "
            "origin wants fewer requests; Forebay slows down by itself, ask for a higher limit if readers wait.",
            {"{{origin}} {{code}}": rate("forebay_origin_requests_total", "origin, code")},
            stacked=True,
        ),
        Chart(
            "Failures and retries",
            "reqps",
            "Requests in vain by reason, fetches asked again, and those of them that went on in the middle. Readers notice none of it "
            "unless it lasts. reset and short: a proxy or load balancer between cuts long bodies. timeout: packet loss or an overloaded "
            "origin.",
            {
                "{{origin}} {{reason}}": rate("forebay_origin_failures_total", "origin, reason"),
                "{{origin}} retries": rate("forebay_origin_retries_total", "origin"),
                "{{origin}} resumed": rate("forebay_origin_resumes_total", "origin"),
            },
        ),
        Chart(
            "Failing share",
            "percentunit",
            "Share of the requests to each origin that it refused or did not answer. Over 50 %: it is down, or credentials have "
            "expired; training ends after some six minutes of that. A few percent are retried and cost little.",
            {
                "{{origin}}": ratio(
                    rate("forebay_origin_requests_total", "origin", where=BAD), rate("forebay_origin_requests_total", "origin")
                )
            },
        ),
        Chart(
            "Throttled",
            "reqps",
            "Requests that an origin refused because it wants fewer (429, 503). Forebay halves its requests by itself; where it "
            "lasts, run fewer jobs at once, use another prefix, or ask for a higher limit.",
            {"{{origin}}": rate("forebay_origin_throttled_total", "origin")},
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
    "Are the bytes right, and is nothing left out?": (
        Chart(
            "Left out by rank",
            "short",
            "Samples and shards that ranks left out after errors, in the time shown. Training goes on without them because its "
            "handler says so. The training's skips file names each, and why (docs/skips.md).",
            {"{{exported_job}} rank {{rank}}": grown("forebay_rank_skipped_total", "exported_job, rank")},
        ),
        Chart(
            "Wrong bytes",
            "short",
            "Bytes that were not what they should be, in the time shown; they were dropped and not served. read, recovery: the cache "
            "disk or the memory; run forebay verify. origin: compare the object with the digest that its origin sends.",
            {"{{stage}}": grown("forebay_cache_integrity_failures_total", "stage")},
        ),
        Chart(
            "Whole shards compared",
            "short",
            "Shards compared with the digest that their origin names, in the time shown. differs: see wrong bytes. All unchecked: "
            "this origin names no digest that Forebay can compute, so only lengths and versions were compared.",
            {"{{result}}": grown("forebay_digest_checks_total", "result")},
        ),
        Chart(
            "Stored segments compared",
            "short",
            "Stored segments that were read and compared with their checksum, in the time shown, by what asked for it. wrong: the "
            "cache disk or the memory gave other bytes than were written; look in the kernel's log.",
            {"{{why}} {{result}}": grown("forebay_segments_verified_total", "why, result")},
        ),
        Chart(
            "Responses aborted",
            "reqps",
            "Cut after their headers were out. client_gone: workers that left, harmless. origin_failed: the origin stayed broken for the"
            " whole retry budget. changed: a shard was replaced while it was read; give new data a new name.",
            {"{{reason}}": rate("forebay_responses_aborted_total", "reason")},
        ),
        Chart(
            "Disk errors",
            "reqps",
            "ENOSPC: something else fills the disk, lower --cache-size or raise the free-space floor. EIO: the disk is dying, move "
            "--cache-dir.",
            {"{{op}} {{errno}}": rate("forebay_cache_disk_errors_total", "op, errno")},
        ),
    ),
    "Is the cache any use, and do plans pay?": (
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
            "Disk state",
            "short",
            "0 normal, 2 down. Training goes on without the cache. Look at the errors beside it and at the kernel log of "
            "that machine; forebay status says what failed.",
            {"{{instance}}": now("forebay_cache_disk_state", "instance", how="max")},
            values={"0": "normal", "2": "down"},
        ),
        Chart(
            "Requests by result",
            "reqps",
            "hit: all stored; collapsed: shared a fetch already running; partial; miss; relayed: parts of clips, which are not stored; "
            "bypass: served without storing, because no room could be granted. Lasting bypass: the cache is smaller than what its readers "
            "hold at once, or its disk is failing.",
            {"{{result}}": rate("forebay_requests_total", "result", where=',result!="none"')},
            stacked=True,
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
            "Reader wait",
            "short",
            "Seconds that readers waited for bytes, per second: 1 means one reader waits all the time. "
            "It is not stall: prefetch in the loader may hide all of it. Waiting in the first epoch is "
            "normal, its bytes must come from the origin. Later: if the origin is busy, the cache is too small for the data set or "
            "the origin too slow; if the origin is idle, look for a small prefetch lead or a bad disk.",
            {"{{exported_job}}": rate("forebay_reader_wait_seconds_total", "exported_job")},
        ),
        Chart(
            "Time to first byte",
            "s",
            "From a shard request to its first byte. The median should be milliseconds once an epoch is cached. p99 in seconds while the"
            " median is low: cold shards, see the origin's first byte. Both high: the event loop or the disk, see the row on the sidecar.",
            {"p50": quantile(0.5, "forebay_time_to_first_byte_seconds"), "p99": quantile(0.99, "forebay_time_to_first_byte_seconds")},
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
            "Free disk",
            "bytes",
            "Free bytes where the cache lies. Falling while the cache is flat: something else fills the disk.",
            {"{{instance}}": now("forebay_filesystem_avail_bytes", "instance")},
        ),
    ),
    "How is the fleet?": (
        Chart(
            "Stall by node",
            "percentunit",
            "Share of their time that the ranks of each node waited. One node far above the others: its disk, its line or its "
            "processors; compare its sidecar row. All alike: the origin, or the trainer's own stages.",
            {"{{instance}}": stall("instance")},
        ),
        Chart(
            "Stall by job",
            "percentunit",
            "The same by training job. One job alone: its data set, its workers or its decoding. All jobs of a node: the node. All "
            "jobs everywhere: the origin they share.",
            {"{{exported_job}}": stall("exported_job")},
        ),
        Chart(
            "Samples a second by job",
            "short",
            "What each training job gets from all of its ranks. Two jobs that share a cache or an origin take from each other: when "
            "the second one starts, does the first one fall?",
            {"{{exported_job}}": rate("forebay_rank_samples_total", "exported_job")},
        ),
        Chart(
            "Uneven ranks",
            "short",
            "Steps of the fastest rank of a job over the mean of its ranks: 1 is even. Ranks that train together must be even; above "
            "1.05 for long, one of them holds up the others (forebay status says which).",
            {
                "{{exported_job}}": f"max by (exported_job) ({rate('forebay_rank_steps_total', 'exported_job, rank')})"
                f" / (avg by (exported_job) ({rate('forebay_rank_steps_total', 'exported_job, rank')}) > 0)"
            },
        ),
        Chart(
            "From the origins by node",
            "Bps",
            "What each node's sidecar fetches. Nodes that read the same set fetch it once each. One node far above the others: a "
            "smaller cache, or jobs that evict each other's shards there.",
            {"{{instance}}": rate("forebay_origin_bytes_total", "instance")},
        ),
        Chart(
            "Sidecars by version",
            "short",
            "Sidecars that run, by version of Forebay. Fewer than nodes: one is down, see up in Prometheus. Two versions for long: an "
            "update stopped half way.",
            {"{{version}}": now("forebay_build_info", "version")},
        ),
    ),
    "Is the sidecar well?": (
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
    ),
    "Is the shared tier any use?": (
        Chart(
            "Shards looked for in the shared tier",
            "reqps",
            "hit: another sidecar had brought it. waited: another one was bringing it. fetched: this one brought it from afar for all. "
            "given-up: waited too long, and asked the origin. Empty or 0: no shared tier is set.",
            {"{{result}}": rate("forebay_shared_lookups_total", "result")},
            stacked=True,
        ),
        Chart(
            "Bytes read from it and written to it",
            "Bps",
            "read: what did not have to come from the origin. written: what this fleet fetched once for all. Far more written than read: "
            "nodes read different shards, and a shared tier saves nothing for them.",
            {"{{way}}": rate("forebay_shared_bytes_total", "way")},
        ),
        Chart(
            "Times it was of no use",
            "reqps",
            "The origin was asked instead, so readers get their bytes. full: give its store more room. unavailable, timeout, refused: look "
            "at its store. wrong: its bytes differed from their digest. foreign: another program writes there.",
            {"{{reason}}": rate("forebay_shared_failures_total", "reason")},
        ),
    ),
}
