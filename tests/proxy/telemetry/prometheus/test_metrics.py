"""Every fact is counted under the right name; nothing a client or an origin sends makes the answer large or leaks into it."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from forebay_proxy.core.events import Event
from forebay_proxy.core.facts.cache import (
    CacheRecovered,
    DigestChecked,
    DiskOperationFailed,
    Evicted,
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
)
from forebay_proxy.core.facts.requests import (
    Aborted,
    ClientRefused,
    LoopLagged,
    MeterTold,
    NotTar,
    ReaderWaited,
    RequestDone,
    RequestOutcome,
    ShardOpened,
)
from forebay_proxy.telemetry.prometheus.metric_catalog import METRICS, OTHER
from forebay_proxy.telemetry.prometheus.metrics import MAX_ORIGINS, MAX_RANKS, Metrics, _Exposition
from forebay_proxy.telemetry.usage import Usage
from forebay_proxy.wire.protocol.meter import CAUSES, DERIVED, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

ORIGIN = "https://data.example.org"
READER = ReaderName("j", "0", "1", "7.1")


def _usage() -> Usage:
    return Usage(configured_bytes=1000, effective_bytes=900, stored_bytes=500, reserved_bytes=100, doomed_bytes=20, overhead_bytes=10)


def _samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.render()[0].decode()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def _value(metrics: Metrics, name: str, **labels: str) -> float:
    return _samples(metrics)["forebay_" + name, tuple(sorted(labels.items()))]


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(version="9.9.9")
    made.watch(_usage)
    return made


def test_every_fact_has_a_counter(metrics: Metrics) -> None:
    """A fact added to core/facts without a place in the metrics is a mistake."""
    assert set(metrics._counters) == set(get_args(Event))


def test_every_metric_of_the_table_is_exported(metrics: Metrics) -> None:
    """Table and exposition name the same families, each with its help and type."""
    text = metrics.render()[0].decode()
    for metric in METRICS:
        assert f"# HELP {metric.full_name} {metric.help}\n" in text
        assert f"# TYPE {metric.full_name} {metric.kind}\n" in text


def test_counters_are_born_at_zero(metrics: Metrics) -> None:
    """Every value of an enum label is there before anything happened, so rate() sees the first event."""
    for outcome in RequestOutcome:
        assert _value(metrics, "request_bytes_total", result=outcome.value) == 0
        assert _value(metrics, "requests_total", method="GET", result=outcome.value, code="206") == 0
    assert _value(metrics, "responses_aborted_total", reason="origin_failed") == 0
    assert _value(metrics, "reader_wait_seconds_total", job="anonymous") == 0
    assert _value(metrics, "origin_requests_total", origin=OTHER, method="GET", code="206") == 0


def test_a_shard_request_counts_bytes_and_times(metrics: Metrics) -> None:
    """One partial request of 100 bytes, 40 of them from the store."""
    metrics.listen(RequestDone("GET", 206, RequestOutcome.PARTIAL, 100, 0.02, 0.5, hit_bytes=40))
    assert _value(metrics, "requests_total", method="GET", result="partial", code="206") == 1
    assert _value(metrics, "request_bytes_total", result="partial") == 100
    assert _value(metrics, "hit_bytes_total") == 40
    assert _value(metrics, "time_to_first_byte_seconds_bucket", result="partial", le="0.025") == 1
    assert _value(metrics, "time_to_first_byte_seconds_bucket", result="partial", le="0.01") == 0
    assert _value(metrics, "response_duration_seconds_sum") == 0.5


def test_other_requests_do_not_blur_the_shard_latencies(metrics: Metrics) -> None:
    """A status request is counted, but not among the bytes and first bytes of shards."""
    metrics.listen(RequestDone("GET", 200, None, 5000, 0.001, 0.001))
    assert _value(metrics, "requests_total", method="GET", result="none", code="200") == 1
    assert sum(_value(metrics, "request_bytes_total", result=outcome.value) for outcome in RequestOutcome) == 0
    assert _value(metrics, "response_duration_seconds_count") == 0


@pytest.mark.parametrize(
    ("fact", "name", "labels", "value"),
    [
        (Aborted("changed"), "responses_aborted_total", {"reason": "changed"}, 1),
        (Aborted("boredom"), "responses_aborted_total", {"reason": OTHER}, 1),
        (ClientRefused("uid"), "auth_failures_total", {"reason": "uid"}, 1),
        (ClientRefused("origin"), "ssrf_blocked_total", {}, 1),
        (DiskOperationFailed("write", "ENOSPC"), "cache_disk_errors_total", {"op": "write", "errno": "ENOSPC"}, 1),
        (DiskOperationFailed("../x", "no\nerrno"), "cache_disk_errors_total", {"op": OTHER, "errno": OTHER}, 1),
        (DigestChecked("md5", "differs"), "digest_checks_total", {"algorithm": "md5", "result": "differs"}, 1),
        (DigestChecked("unknown", "unchecked"), "digest_checks_total", {"algorithm": OTHER, "result": "unchecked"}, 1),
        (Evicted(7, "guess", 60.5, used=True), "cache_evicted_bytes_total", {"reason": "guess"}, 7),
        (Evicted(7, "guess", 60.5, used=True), "cache_evicted_before_use_bytes_total", {}, 0),
        (Evicted(7, "unused", 60.5, used=False), "cache_evicted_before_use_bytes_total", {}, 7),
        (Evicted(7, "plan", 60.5, used=True), "cache_eviction_age_seconds_bucket", {"le": "300.0"}, 1),
        (FetchRetried(ORIGIN, "reset", resumed=True), "origin_resumes_total", {"origin": ORIGIN}, 1),
        (FetchRetried(ORIGIN, "reset", resumed=False), "origin_resumes_total", {"origin": ORIGIN}, 0),
        (FetchRetried(ORIGIN, "reset", resumed=False), "origin_retries_total", {"origin": ORIGIN}, 1),
        (FetchJoined(), "singleflight_joins_total", {}, 1),
        (IntegrityFailed("recovery"), "cache_integrity_failures_total", {"stage": "recovery"}, 1),
        (LoopLagged(0.2), "event_loop_lag_seconds_bucket", {"le": "0.25"}, 1),
        (OpeningDone(0.2), "opening_duration_seconds_count", {}, 1),
        (OpeningDone(0.2, "ShardNotFound"), "opening_failures_total", {"error": "ShardNotFound"}, 1),
        (OriginAnswered(ORIGIN, "GET", 404, 0.2), "origin_requests_total", {"origin": ORIGIN, "method": "GET", "code": "404"}, 1),
        (OriginAnswered(ORIGIN, "GET", 206, 0.2), "origin_first_byte_seconds_count", {"origin": ORIGIN}, 1),
        (OriginAnswered(ORIGIN, "GET", 0, 15), "origin_first_byte_seconds_count", {"origin": ORIGIN}, 0),
        (OriginFailed(ORIGIN, "throttled"), "origin_throttled_total", {"origin": ORIGIN}, 1),
        (OriginOddity(ORIGIN, "range-as-200"), "origin_oddities_total", {"origin": ORIGIN, "kind": "range-as-200"}, 1),
        (OriginFailed(ORIGIN, "short"), "origin_failures_total", {"origin": ORIGIN, "reason": "short"}, 1),
        (ShardOpened(READER, "planned"), "plan_openings_total", {"job": "j"}, 1),
        (ShardOpened(READER, "planned"), "plan_deviation_total", {"job": "j", "kind": "skipped"}, 0),
        (ShardOpened(READER, "skipped"), "plan_deviation_total", {"job": "j", "kind": "skipped"}, 1),
        (ShardOpened(READER, "unplanned"), "plan_deviation_total", {"job": "j", "kind": "unplanned"}, 1),
        (ReaderWaited("train", 1.5), "reader_wait_seconds_total", {"job": "train"}, 1.5),
        (ReaderWaited("", 1.5), "reader_wait_seconds_total", {"job": "anonymous"}, 1.5),
        (CacheRecovered(12, 3, 0.7), "recovery_segments_total", {"outcome": "dropped"}, 3),
        (CacheRecovered(12, 3, 0.7), "recovery_duration_seconds", {}, 0.7),
        (NotStorable(ORIGIN), "not_storable_total", {}, 1),
        (NotTar("s3://b/a.tar", "a web page", "train"), "not_tar_readings_total", {"job": "train"}, 1),
        (Refetched(), "refetches_total", {}, 1),
        (ReservationRefused("no-room"), "cache_reservation_failures_total", {"reason": "no-room"}, 1),
        (Revalidated("unreachable"), "revalidations_total", {"result": "unreachable"}, 1),
        (SegmentFetched(0.1, True, True), "segments_fetched_total", {"kind": "prefetch", "stored": "yes"}, 1),
        (SegmentFetched(0.1, False, False), "segments_fetched_total", {"kind": "demand", "stored": "no"}, 1),
        (SegmentVerified("verify", right=False), "segments_verified_total", {"why": "verify", "result": "wrong"}, 1),
    ],
)
def test_a_fact_is_counted(metrics: Metrics, fact: Event, name: str, labels: dict[str, str], value: float) -> None:
    """Each fact moves its own counter by what it says."""
    metrics.listen(fact)
    assert _value(metrics, name, **labels) == value


def test_levels_are_read_when_somebody_asks() -> None:
    """Two scrapes see two moments; nothing is remembered between them."""
    metrics, stored = Metrics(), [1, 2]
    metrics.watch(lambda: Usage(configured_bytes=10, effective_bytes=10, stored_bytes=stored.pop(0)))
    assert [_value(metrics, "cache_bytes", state="stored") for _ in range(2)] == [1, 2]


def test_states_add_up_to_what_is_held(metrics: Metrics) -> None:
    """The sum of cache_bytes is what the bound is compared with."""
    states = [_value(metrics, "cache_bytes", state=state) for state in ("stored", "reserved", "doomed", "overhead")]
    assert sum(states) == _usage().held_bytes
    assert _value(metrics, "cache_capacity_bytes", kind="configured") == 1000
    assert _value(metrics, "cache_capacity_bytes", kind="effective") == 900


@pytest.mark.parametrize(("state", "value"), [("normal", 0), ("down", 2), ("on fire", 2)])
def test_a_disk_state_is_a_number(state: str, value: int) -> None:
    """An unknown state looks bad, not good."""
    metrics = Metrics()
    metrics.watch(lambda: Usage(configured_bytes=1, effective_bytes=1, disk_state=state))
    assert _value(metrics, "cache_disk_state") == value


def test_the_lead_of_a_job_is_its_worst() -> None:
    """Jobs that share a label share the smallest lead, so a starving one is not averaged away."""
    metrics = Metrics()
    leads = {f"job{n}": float(n) for n in range(1, 40)} | {"not a plain name": 0.5}
    metrics.watch(lambda: Usage(configured_bytes=1, effective_bytes=1, lead_s=leads))
    assert _value(metrics, "prefetch_lead_seconds", job="job1") == 1
    assert _value(metrics, "prefetch_lead_seconds", job=OTHER) == 0.5


def test_two_thousand_lines_are_the_most_a_scrape_returns() -> None:
    """1,000 origins, 1,000 jobs, every status code and strange words in every text field."""
    metrics = Metrics()
    many = {f"https://h{n}.example": 1 for n in range(1000)}
    leads = {f"lead{n}": 1 for n in range(1000)}
    derived = {(kind, f"word{n}"): (1, 2) for kind in DERIVED for n in range(1000)}
    metrics.watch(lambda: Usage(configured_bytes=1, effective_bytes=1, origins=many, lead_bytes=leads, lead_s=leads, derived=derived))
    for number in range(1000):
        for fact in _hostile(f"https://h{number}.example", f"word{number}", 100 + number % 520):
            metrics.listen(fact)
    for code in range(600):
        for origin in list(many)[: MAX_ORIGINS + 1]:
            metrics.listen(OriginAnswered(origin, "GET" if code % 2 else "HEAD", code, 1))
    lines = metrics.render()[0].splitlines()
    assert 1500 < len(lines) <= 2000


def _unchecked(job: str, rank: str = "0") -> ReaderName:
    """A reader of any job, whatever ``ReaderName`` would say to it."""
    made = object.__new__(ReaderName)
    object.__setattr__(made, "job", job)
    object.__setattr__(made, "rank", rank)
    return made


def _hostile(origin: str, word: str, code: int) -> list[Event]:
    outcome = list(RequestOutcome)[code % 5] if code % 6 else None
    return [
        Aborted(word), ClientRefused(word), DiskOperationFailed("read", word.upper()), DiskOperationFailed(word,
        f"E{word.upper()}"),
        Evicted(1, word, 1, False), FetchRetried(origin, word, True), IntegrityFailed(word), LoopLagged(1),
        OpeningDone(1, word), OriginAnswered(origin, word, code, 1), OriginBytes(origin, 1, word),
        OriginOddity(origin, word), OriginFailed(origin, word),
        ReaderWaited(word, 1), ReservationRefused(word),
        RequestDone(word, code, outcome, 1, 1, 1, job=word), RequestDone("GET", code, outcome, 1, 1, 1),
        Revalidated(word), ShardOpened(_unchecked(word), word), DigestChecked(word, word),
        SegmentVerified("sample", True),
        MeterTold(_unchecked(word, word), _totals(1)), MeterTold(_unchecked(word, str(code)), _totals(1)),
    ]  # fmt: skip


def _totals(seconds: float) -> MeterBody:
    derived = {kind: dict.fromkeys(names, 2) for kind, names in DERIVED.items()}
    return MeterBody(10.0, dict.fromkeys(CAUSES, seconds), 5, dict.fromkeys(CAUSES, seconds), 40, 3, derived=derived)


def test_derived_caches_are_counted_by_job(metrics: Metrics) -> None:
    """Counts and sizes; a job that has no label of its own is one of the others."""
    sizes = {("memo", "j"): (10, 100), ("memo", "silent"): (1, 50), ("memo", "https://b/?sig=s"): (2, 50)}
    metrics.watch(lambda: Usage(configured_bytes=1, effective_bytes=1, derived=sizes))
    for _ in range(2):
        metrics.listen(MeterTold(READER, _totals(0.5)))
    assert _value(metrics, "memo_hits_total", job="j") == 4
    assert [_value(metrics, f"memo_{name}", job="j") for name in ("bytes", "limit_bytes")] == [10, 100]
    assert [_value(metrics, f"memo_{name}", job=OTHER) for name in ("bytes", "limit_bytes")] == [3, 100]


def test_a_rank_is_counted_by_cause(metrics: Metrics) -> None:
    """All causes of a stall; of reader waits those that bytes are waited for by, the rest together."""
    metrics.listen(MeterTold(READER, _totals(0.5)))
    metrics.listen(MeterTold(READER, _totals(0.25)))
    assert _value(metrics, "stall_seconds_total", job="j", rank="0", cause="decode") == 0.75
    assert _value(metrics, "rank_reader_wait_seconds_total", job="j", rank="0", cause="disk") == 0.75
    assert _value(metrics, "rank_reader_wait_seconds_total", job="j", rank="0", cause=OTHER) == 0.75 * (len(CAUSES) - 3)
    names = ("rank_metered_seconds_total", "rank_steps_total", "rank_samples_total", "rank_skipped_total")
    assert [_value(metrics, name, job="j", rank="0") for name in names] == [20, 10, 80, 6]


def test_a_rank_that_is_silent_for_an_hour_makes_room() -> None:
    """And leaves no series behind; ranks of one number in two jobs are two."""
    now = [0.0]
    metrics = Metrics(clock=lambda: now[0])
    for number in range(MAX_RANKS):
        metrics.listen(MeterTold(ReaderName(f"job{number}", "0", "main", "7.0"), _totals(1)))
    now[0] = 3601.0
    metrics.listen(MeterTold(READER, _totals(1)))
    jobs = {dict(labels)["job"] for name, labels in _samples(metrics) if name == "forebay_stall_seconds_total"}
    assert jobs == {OTHER, "j", *(f"job{number}" for number in range(1, MAX_RANKS))}


CANARY = "c4n4ry-s3cr3t"


@pytest.mark.parametrize("text", [
    f"https://user:{CANARY}@data.example.org/a.tar", f"https://data.example.org/a.tar?X-Amz-Signature={CANARY}",
    f"https://data.example.org/{CANARY}/a.tar", f"https://data.example.org#{CANARY}", f"https://data.example.org\\@{CANARY}",
    f"s3://bucket/{CANARY}", f"Bearer {CANARY}", f"job?token={CANARY}", f"{CANARY}\n# HELP forged 1", f'"}} forged{{x="{CANARY}',
])  # fmt: skip
def test_no_url_key_or_secret_becomes_a_label(metrics: Metrics, text: str) -> None:
    """Whatever text a fact carries by mistake, only scheme and host, or a plain word, get out."""
    for fact in _hostile(text, text, 200):
        metrics.listen(fact)
    assert CANARY not in metrics.render()[0].decode()


@given(st.text(), st.text(), st.integers(-5, 1000))
def test_any_text_leaves_the_answer_readable(origin: str, word: str, code: int) -> None:
    """Whatever is counted, a parser reads the result."""
    metrics = Metrics()
    for fact in _hostile(origin, word, code):
        metrics.listen(fact)
    assert _samples(metrics)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(), st.text(), st.floats()), max_size=5))
def test_the_text_is_the_librarys(series: list[tuple[str, str, float]]) -> None:
    """Less what is left out, whatever labels and values are; and at the second scrape, when series keep their text, too."""
    registry = CollectorRegistry()
    counter = Counter("things", "With a \\ and\na line.", ["one", "two"], registry=registry)
    gauge, histogram = Gauge("level", "", registry=registry), Histogram("took", "", ["one"], registry=registry)
    exposition = _Exposition(registry)
    for one, two, value in series:
        counter.labels(one, two).inc(abs(value))
        gauge.set(value)
        histogram.labels(one).observe(value)
        told = generate_latest(registry).decode()
        theirs = [line for line in told.split("\n") if not re.match(r"(# \w+ )?(things|took)_created\b", line)]
        assert exposition.text().split("\n") == exposition.text().split("\n") == theirs


def test_what_a_scrape_says_beside_the_table(metrics: Metrics) -> None:
    """The version; memory and descriptors of the process; the type without which Prometheus 3 refuses an answer."""
    body, content_type = metrics.render()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"_created" not in body
    samples = _samples(metrics)
    assert next(labels for name, labels in samples if name == "forebay_build_info")[1] == ("version", "9.9.9")
    assert {name for name, _ in samples} >= {"process_resident_memory_bytes", "process_open_fds", "process_max_fds"}
