"""The metrics page is made from the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from forebay_proxy.telemetry.prometheus.metric_catalog import METRICS, table
from forebay_proxy.telemetry.prometheus.metrics import MAX_DERIVED, MAX_JOBS, MAX_ORIGINS, MAX_RANKS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_the_table_is_current() -> None:
    """Rebuild it with ``python -m forebay_proxy.telemetry.prometheus.metrics --table`` when this fails."""
    assert table() in PAGE


def test_the_command_prints_the_table() -> None:
    """What the page tells people to run works."""
    command = [sys.executable, "-W", "error", "-m", "forebay_proxy.telemetry.prometheus.metrics", "--table"]
    done = subprocess.run(command, cwd=ROOT / "proxy", capture_output=True, text=True, check=True)
    assert done.stdout == table()


def test_a_row_for_every_metric() -> None:
    """No cell breaks the table, no metric is listed twice."""
    rows = table().splitlines()[2:]
    named = [name for row in rows for name in row.split(" | ")[0].split("`")[1::2]]
    assert sorted(named) == sorted(metric.full_name for metric in METRICS)
    assert {row.count(" | ") for row in rows} == {2}
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_the_bounds_are_those_of_the_code() -> None:
    """The page promises what the code keeps."""
    assert f"at most {MAX_ORIGINS} origins" in PAGE
    assert f"{MAX_JOBS} jobs and {MAX_RANKS} ranks" in PAGE
    assert f"({MAX_DERIVED} jobs for their" in PAGE
