"""Dashboard, scrape configuration and alerts: they ask only for what exists, and a real Prometheus answers every question they ask."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.prometheus import Prometheus, needs_prometheus, needs_promtool, promtool, running_prometheus
from support.scripted_answers import Answer, Call, Fault
from support.scripted_day import STEP_S, promtool_values, series
from support.scripted_origin import ScriptedOrigin, in_a_thread

import forebay_proxy
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
    RequestOutcome,
    ShardOpened,
)
from forebay_proxy.telemetry.prometheus.metric_catalog import METRICS
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.usage import Usage
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.protocol.verdict import BAD, MUCH

GRAFANA = Path(__file__).parents[1] / "grafana"
FILES = Path(forebay_proxy.__file__).parent / "dashboard"
ALERTS = FILES / "alerts.yml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
ALARMS = [rule for rule in RULES if "alert" in rule]
DASHBOARD: dict[str, Any] = json.loads((FILES / "forebay.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
FIRST: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]  # the screen that is open
PANELS: list[dict[str, Any]] = [*FIRST, *(panel for row in ROWS for panel in row["panels"])]
QUERIES: list[tuple[str, str]] = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]

# Labels that Prometheus adds; exported_job is our own `job`, renamed because its own is the scrape job.
_FROM_PROMETHEUS = {"job", "instance", "exported_job", "le"}


class Busy(Fault):
    """The metrics alone: each answer is a scrape that finds that everything has happened once more."""

    def __init__(self) -> None:
        self.metrics = Metrics(version="test")
        self.metrics.watch(_usage)

    def answer(self, call: Call) -> Answer:
        for fact in EVERYTHING:
            self.metrics.listen(fact)
        body, content_type = self.metrics.render()
        return call.honest(status=200, body=body, headers=(("Content-Type", content_type),))


def _usage() -> Usage:
    return Usage(
        configured_bytes=1000, effective_bytes=900, stored_bytes=500, reserved_bytes=100, overhead_bytes=10, peak_bytes=700, readers=3,
        plans=2, waiters=1, shards=5, segments=9, avail_bytes=10_000, size_bytes=20_000, files_free=100, origins={"s3://bucket": 2},
        lead_bytes={"train": 100}, lead_s={"train": 2.5},
    )  # fmt: skip


_ORIGIN = "s3://bucket"
_READER = ReaderName("train", "0", "1", "7.1")
EVERYTHING: tuple[Event, ...] = (
    LeaseEnded(RequestDone("GET", 200, RequestOutcome.HIT, 100, 0.01, 0.1)),
    *(RequestDone("GET", 200, outcome, 100, 0.01, 0.1, hit_bytes=50, job="train") for outcome in RequestOutcome),
    RequestDone("GET", 404, None, 0, 0.01, 0.1),
    Aborted("origin_failed"), ClientRefused("uid"), ClientRefused("origin"), DiskOperationFailed("write", "ENOSPC"),
    AccessLogged("written", 3),
    DiskChanged("down"),
    Evicted(100, "plan", 5, used=True), Evicted(100, "guess", 5, used=False), FetchRetried(_ORIGIN, "reset", True),
    FetchJoined(), IntegrityFailed("read"), LoopLagged(0.02), OpeningDone(0.1),
    OpeningDone(0.1, "ShardNotFound"), OriginAnswered(_ORIGIN, "GET", 206, 0.1),
    OriginAnswered(_ORIGIN, "GET", 503, 0.1), OriginBytes(_ORIGIN, 100, "demand"), OriginFailed(_ORIGIN, "throttled"),
    OriginOddity(_ORIGIN, "range-as-200"),
    ShardOpened(_READER, "skipped"), ReaderWaited("train", 0.5),
    ShardOpened(_READER, "planned"),
    CacheRecovered(1, 1, 0.1), Refetched(), NotStorable(_ORIGIN),
    NotTar("s3://b/a.tar", "a web page", "train"), ReservationRefused("no-room"),
    Revalidated("same"),
    SharedAnswered("hit"), SharedBytes(100, "read"), SharedFailed("wrong"),
    SegmentFetched(0.1, True, False), SegmentVerified("sample", True),
    DigestChecked("md5", "agrees"), DoorAnswered("passed"), IndexDone("built"),
    MeterTold(_READER, MeterBody(10.0, dict.fromkeys(CAUSES, 0.1), 5)),
)  # fmt: skip

needs_builder = pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None, reason="grafana-foundation-sdk is not installed: see grafana/README.md"
)


def _plain(query: str) -> str:
    """The query with Grafana's variables filled in; 30 s is long enough for a rate over scrapes a second apart."""
    return _filled(query, rate="30s", range="30s")


def _filled(query: str, *, rate: str, range: str) -> str:
    query = re.sub(r"\$(job|instance|train)\b", ".*", query).replace("$price", "0.09")
    return query.replace("$__rate_interval", rate).replace("$__range", range)


def _asked(query: str) -> set[str]:
    return set(re.findall(r"\b(?:forebay|process|python)_[a-z0-9_]+", query))


def _exported() -> set[str]:
    ours = {name for metric in METRICS for name in metric.samples()}
    lines = Metrics().render()[0].decode().splitlines()
    theirs = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith(("#", "forebay_"))}
    return ours | theirs


@needs_builder
def test_the_committed_dashboard_is_current() -> None:
    """Nobody edits the JSON by hand, nobody forgets to rebuild it."""
    done = subprocess.run([sys.executable, GRAFANA / "make_dashboard.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_question_has_one_screen() -> None:
    """Single numbers on top, and no more than a screen of 1080 lines shows; all else is closed until it is asked for."""
    assert [panel["title"] for panel in FIRST if panel["type"] == "stat"] == [
        "Stall, worst rank", "Samples a second", "From the origins", "Hit bytes", "Prefetch lead",
    ]  # fmt: skip
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in FIRST) * 38 <= 800  # 30 pixels and a gap of 8; Grafana's bars
    assert [row["collapsed"] for row in ROWS] == [False] + [True] * (len(ROWS) - 1)
    assert len({panel["id"] for panel in [*ROWS, *PANELS]}) == len(ROWS) + len(PANELS)


@pytest.mark.parametrize("row", [None, *ROWS[1:]], ids=lambda row: row["title"] if row else "open")
def test_panels_fill_the_grid_without_overlap(row: dict[str, Any] | None) -> None:
    """Every line of panels is 24 columns wide; those of a closed row begin below it."""
    cells: set[tuple[int, int]] = {(x, y) for x in range(24) for y in range(row["gridPos"]["y"] + 1)} if row else set()
    for panel in row["panels"] if row else DASHBOARD["panels"]:
        place = panel["gridPos"]
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not mine & cells, panel["title"]
        cells |= mine
    height = max(y for _, y in cells) + 1
    assert cells == {(x, y) for x in range(24) for y in range(height)}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_to_do(panel: dict[str, Any]) -> None:
    """Title, unit, queries, the chosen data source, and a description that is more than the title again."""
    assert len(panel["description"].split()) >= 15
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert all('job=~"$job",instance=~"$instance"' in target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("query", [query for _, query in QUERIES])
def test_a_panel_asks_for_metrics_that_exist(query: str) -> None:
    """A renamed metric breaks this test, not a dashboard somewhere."""
    assert _asked(query)
    assert _asked(query) <= _exported()


@pytest.mark.parametrize("query", [query for _, query in QUERIES])
def test_a_panel_asks_for_labels_that_exist(query: str) -> None:
    """Every label in a matcher or a grouping is one that some metric of the query has."""
    known = {label for metric in METRICS if any(name in _asked(query) for name in metric.samples()) for label in metric.labels}
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", query) for label in labels.split(",")}
    matched = set(re.findall(r"[{,]([a-z_]+)(?:=|!)", query))
    assert (grouped | matched) - _FROM_PROMETHEUS <= known


@pytest.mark.parametrize("query", [query for _, query in QUERIES])
def test_a_panel_of_a_job_shows_the_chosen_one(query: str) -> None:
    """Two jobs on a node can be told apart: whatever has our label ``job`` is asked for the variable."""
    of_a_job = {name for metric in METRICS if "job" in metric.labels for name in metric.samples()}
    for name, matchers in re.findall(r"\b(forebay_\w+)\{([^}]*)\}", query):
        assert ('exported_job=~"$train"' in matchers) == (name in of_a_job), name


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_ask_for_metrics_that_exist(rule: dict[str, Any]) -> None:
    """The same promise; of recorded ones that they are recorded."""
    recorded = set(re.findall(r"\w+:forebay_\w+:\w+", rule["expr"]))
    assert recorded <= {each["record"] for each in RULES if "record" in each}
    asked = _asked(re.sub(r"\w+:forebay_\w+:\w+", "", rule["expr"]))
    assert asked or recorded or "up" in rule["expr"]
    assert asked <= _exported()


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: f"{alarm['alert']}, {alarm['labels']['severity']}")
def test_an_alert_leads_to_its_next_step_its_panel_and_its_runbook(alarm: dict[str, Any]) -> None:
    """Who is paged at night reads what to do, sees the curve that brought it about, and finds a section of the runbook."""
    notes = alarm["annotations"]
    assert set(notes) == {"summary", "next_step", "runbook", "panel"}
    assert len(notes["next_step"]) >= 40
    page, _, section = notes["runbook"].partition("#")
    assert section == alarm["alert"].lower()
    (text,) = re.findall(rf"(?ms)^## {alarm['alert']}\n(.*?)(?=^## |\Z)", (FILES / page).read_text("utf-8"))
    assert "**Why there:**" in text
    assert "\n1. " in text
    number = int(re.findall(r"viewPanel=(\d+)", notes["panel"])[0])
    (panel,) = (each for each in PANELS if each["id"] == number)
    recorded = {each["record"]: each["expr"] for each in RULES if "record" in each}
    expression = re.sub(r"\w+:forebay_\w+:\w+", lambda name: recorded[name.group()], alarm["expr"])
    assert _asked(expression) & {name for target in panel["targets"] for name in _asked(target["expr"])}, panel["title"]


def test_the_runbook_has_no_section_without_an_alert() -> None:
    """Nor an alert without a unit test that makes it fire."""
    names = {alarm["alert"] for alarm in ALARMS}
    assert set(re.findall(r"(?m)^## (\w+)$", (FILES / "runbook.md").read_text("utf-8"))) == names
    units = yaml.safe_load((GRAFANA / "alerts_test.yml").read_text("utf-8"))["tests"]
    made = [sample["labels"] for unit in units for case in unit["promql_expr_test"] for sample in case["exp_samples"]]
    assert {name for labels in made for name in re.findall(r'alertname="(\w+)"', labels)} == names


def test_a_stall_alerts_where_the_verdict_is_of_the_same_mind() -> None:
    """``look`` is a ticket and ``act`` is a page."""
    found = {alarm["labels"]["severity"]: alarm["expr"].rpartition("> ")[2] for alarm in ALARMS if alarm["alert"] == "TrainingStalls"}
    assert found == {"page": f"{BAD:g}", "ticket": f"{MUCH:g}"}


@needs_promtool
def test_prometheus_accepts_rules_and_configuration() -> None:
    """promtool has nothing to complain about."""
    promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(FILES / "prometheus.yml"))


@needs_promtool
def test_alerts_fire_when_they_should_and_not_before() -> None:
    """The unit tests beside the rules, run by Prometheus' own evaluator."""
    promtool("test", "rules", str(GRAFANA / "alerts_test.yml"))


@needs_promtool
def test_prometheus_has_no_complaint_about_the_names(tmp_path: Path) -> None:
    """``promtool check metrics`` knows the naming rules: units, _total, help texts."""
    body = Metrics().render()[0]
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=240, check=False)
    complaints = [line for line in (done.stdout + done.stderr).decode().splitlines() if line.startswith("forebay_")]
    assert not complaints


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes an endpoint where everything happens."""
    with (
        in_a_thread(ScriptedOrigin(anything=Busy())) as endpoint,
        running_prometheus(tmp_path_factory.mktemp("busy"), f"127.0.0.1:{endpoint.port}", ALERTS) as prometheus,
    ):
        prometheus.wait_for("count_over_time(forebay_readers[1m]) >= 3")
        yield prometheus


def test_the_busy_endpoint_leaves_nothing_out() -> None:
    """Every kind of fact happens at each scrape."""
    assert {type(fact) for fact in EVERYTHING} == set(Metrics()._counters)


@needs_prometheus
@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_every_query_has_an_answer(busy: Prometheus, title: str, query: str) -> None:
    """Where everything happens no panel is empty, and no value is NaN."""
    values = [float(sample["value"][1]) for sample in busy.query(_plain(query))]
    assert values, title
    assert any(math.isfinite(value) for value in values), title


@needs_prometheus
def test_every_alert_is_evaluated(busy: Prometheus) -> None:
    """Loaded from the committed file, healthy, and each expression is a query that succeeds."""
    rules = busy.rules()
    assert sorted(rule["name"] for rule in rules) == sorted(rule.get("alert") or rule["record"] for rule in RULES)
    for rule in rules:
        assert not rule.get("lastError"), rule
        busy.query(rule["query"])
        busy.query(re.sub(r"[<>] [\d.]+$", "", rule["query"]))


@needs_prometheus
def test_a_busy_origin_with_errors_would_alert(busy: Prometheus) -> None:
    """Half of the requests fail there: the rule's expression names the origin."""
    (sample,) = busy.query(_rule("origin:forebay_origin_failing:ratio_rate2m")["expr"])
    assert sample["metric"]["origin"] == "s3://bucket"
    assert float(sample["value"][1]) == pytest.approx(0.5)


def _rule(name: str) -> dict[str, Any]:
    return next(rule for rule in RULES if name in (rule.get("alert"), rule.get("record")))


# Of the day of tests/support/scripted_day.py: minute, panel, what is true of its curves then.
DAY = [
    (5, "Stall, worst rank", "> 0.05"), (5, "Prefetch lead", "< 5"), (5, "From the origins", "> 20e6"),
    (25, "Stall, worst rank", "< 0.02"), (25, "Samples a second", "> 100"), (25, "Hit bytes", "> 0.9"), (25, "Prefetch lead", "> 30"),
    (25, "Readers", "== 4"), (25, "Bytes saved", "> 1e9"), (25, "Money saved", "> 0.09"),
    (45, "Throttled", "> 0"), (45, "Failing share", "> 0.1"), (45, "Stall by cause", "> 0.1"),
    (65, "Stall, worst rank", "> 0.8"), (65, "Failing share", "> 0.5"), (65, "Responses aborted", "> 0"), (65, "From the origins", "== 0"),
    (89, "Stall, worst rank", "< 0.02"), (89, "Failing share", "== 0"),
    (98, "Disk state", "== 2"), (98, "Disk errors", "> 0"), (98, "Wrong bytes", "> 0"), (98, "Stored segments compared", "> 0"),
    (145, "Left out by rank", "> 0"), (145, "Uneven ranks", "> 1.05"), (145, "Plan deviation", "> 0.1"), (145, "Evictions", "> 0"),
]  # fmt: skip
# When which alerts fire, each with its severity. What is not named does not fire.
FIRING: dict[int, set[tuple[str, str]]] = {
    9: set(),
    29: set(),
    48: {("OriginThrottled", "ticket"), ("TrainingStalls", "ticket")},
    59: set(),
    64: {("OriginDown", "page")},
    66: {("TrainingStalls", "page")},
    89: set(),
    98: {("CacheDiskDown", "page"), ("WrongBytes", "ticket")},
    112: {("SidecarDown", "ticket"), ("WrongBytes", "ticket")},
    119: set(),
    148: {("SamplesSkipped", "ticket"), ("PlanNotFollowed", "ticket"), ("FetchedInVain", "ticket"), ("CacheShrunk", "ticket")},
    169: set(),
}


@needs_promtool
def test_a_day_with_everything_in_it(tmp_path: Path) -> None:
    """Warm-up, steady, throttled, outage, bad disk, restart, second job: each panel shows it, and alerts fire and resolve."""
    queries = {title: [target["expr"] for target in panel["targets"]] for panel in PANELS for title in [panel["title"]]}
    starts = DASHBOARD["annotations"]["list"][0]["expr"]
    wanted = _asked(" ".join([starts, *(query for _, query in QUERIES), *(rule["expr"] for rule in RULES)])) | {"up"}
    one, none = [{"labels": "{}", "value": 1}], []

    def case(minute: int, expression: str, samples: list[Any]) -> dict[str, Any]:
        return {"expr": _filled(expression, rate="4m", range="10m"), "eval_time": f"{minute}m", "exp_samples": samples}

    cases = [case(145, f"count({query}) > bool 0", one) for _, query in QUERIES]
    cases += [case(minute, f"count(({' or '.join(queries[title])}) {holds}) > bool 0", one) for minute, title, holds in DAY]
    cases += [case(25, f"count({queries['Samples a second by job'][0]} > 0)", one)]
    cases += [case(145, f"count({queries['Samples a second by job'][0]} > 0) == bool 2", one)]
    cases += [case(minute, queries["Readers"][1], [{"labels": "{}", "value": value}]) for minute, value in ((25, 0), (65, 4))]
    cases += [case(minute, f"count({starts})", samples) for minute, samples in ((25, none), (113, one), (116, none))]
    for minute, alerts in FIRING.items():
        fires = [{"labels": f'{{alertname="{name}", severity="{severity}"}}', "value": 1} for name, severity in sorted(alerts)]
        cases.append(case(minute, 'count by (alertname, severity) (ALERTS{alertstate="firing"}) > bool 0', fires))
    made = [{"series": name, "values": promtool_values(values)} for name, values in series(wanted).items()]
    day = {"interval": f"{STEP_S}s", "input_series": made, "promql_expr_test": cases}
    order = [group["name"] for group in GROUPS]  # without it promtool draws one, and an alert may see its level a minute later
    unit = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "group_eval_order": order, "tests": [day]}
    (tmp_path / "day.yml").write_text(json.dumps(unit), encoding="utf-8")
    promtool("test", "rules", str(tmp_path / "day.yml"))
