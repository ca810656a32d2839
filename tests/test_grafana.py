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
from support.prometheus import (
    EVERYTHING,
    Prometheus,
    busy_metrics,
    needs_prometheus,
    needs_promtool,
    promtool,
    running_prometheus,
)

from forebay_proxy.telemetry.prometheus.metric_catalog import METRICS
from forebay_proxy.telemetry.prometheus.metrics import Metrics

GRAFANA = Path(__file__).parents[1] / "grafana"
ALERTS = GRAFANA / "alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "forebay.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERT_NAMES = ["CacheOverBound", "TrainingStalls", "SamplesSkipped", "WrongBytes", "OriginErrors", "CacheDiskDown"]
QUERIES: list[tuple[str, str]] = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]

# Labels that Prometheus adds; exported_job is our own `job`, renamed because its own is the scrape job.
_FROM_PROMETHEUS = {"job", "instance", "exported_job", "le"}

needs_builder = pytest.mark.skipif(
    importlib.util.find_spec("grafana_foundation_sdk") is None, reason="grafana-foundation-sdk is not installed: see grafana/README.md"
)


def _plain(query: str) -> str:
    """The query with Grafana's variables filled in; 30 s is long enough for a rate over scrapes a second apart."""
    return query.replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "30s")


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


def test_panels_fill_the_grid_without_overlap() -> None:
    """Every line of panels is 24 columns wide, and every panel has an id of its own."""
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not mine & cells, panel["title"]
        cells |= mine
    height = max(y for _, y in cells) + 1
    assert cells == {(x, y) for x in range(24) for y in range(height)}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


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


def test_alerts_ask_for_metrics_that_exist() -> None:
    """The same promise for the rules."""
    text = ALERTS.read_text(encoding="utf-8")
    asked = _asked("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    assert asked
    assert asked <= _exported()


def test_every_alert_names_its_next_step() -> None:
    """Who is paged at night reads what to do."""
    text = ALERTS.read_text(encoding="utf-8")
    assert re.findall(r"- alert: (\w+)", text) == ALERT_NAMES
    assert len(re.findall(r"(?m)^ +next_step: \".{40,}\"$", text)) == len(ALERT_NAMES)


@needs_promtool
def test_prometheus_accepts_rules_and_configuration() -> None:
    """promtool has nothing to complain about."""
    promtool("check", "rules", str(ALERTS))
    promtool("check", "config", str(GRAFANA / "prometheus.yml"))


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
    with busy_metrics() as target, running_prometheus(tmp_path_factory.mktemp("busy"), target, ALERTS) as prometheus:
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
    assert {rule["name"] for rule in rules} == set(ALERT_NAMES)
    for rule in rules:
        assert not rule.get("lastError"), rule
        busy.query(rule["query"])
        busy.query(re.sub(r"[<>] [\d.]+$", "", rule["query"]))


@needs_prometheus
def test_a_busy_origin_with_errors_would_alert(busy: Prometheus) -> None:
    """Half of the requests fail there: the rule's expression names the origin."""
    rule = next(rule for rule in busy.rules() if rule["name"] == "OriginErrors")
    (sample,) = busy.query(rule["query"])
    assert sample["metric"]["origin"] == "s3://bucket"
    assert float(sample["value"][1]) == pytest.approx(0.5)


# What must show something after one shard was read twice from a real sidecar; the rest needs faults, plans or evictions.
