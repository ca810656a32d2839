"""What a person may say about the meter."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from forebay_loader.meter.report.meter_thread import LINE_S, WATCHDOG_S, line_s, watchdog_s


def test_what_holds_where_nothing_is_said() -> None:
    """A line every half minute, a word after a minute without a batch."""
    assert (line_s({}), watchdog_s({})) == (LINE_S, WATCHDOG_S) == (30.0, 60.0)


def test_the_page_names_each_variable() -> None:
    """docs/loader.md, with what holds without it."""
    page = (Path(__file__).parents[4] / "docs" / "loader.md").read_text(encoding="utf-8")
    rows = (
        "| `FOREBAY_METER=0` |",
        "| `FOREBAY_METER_LINE_S` | seconds between two lines, 30;",
        "| `FOREBAY_WATCHDOG_S` | seconds without a",
    )
    assert [row for row in rows if row not in page] == []


def test_what_was_said_holds() -> None:
    """0 turns each off."""
    assert line_s({"FOREBAY_METER_LINE_S": "2.5"}) == 2.5
    assert watchdog_s({"FOREBAY_WATCHDOG_S": "0"}) == 0


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_nonsense_is_told_and_the_usual_holds(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once a process."""
    with caplog.at_level(logging.WARNING, "forebay_loader"):
        assert [line_s({"FOREBAY_METER_LINE_S": text}) for _ in range(2)] == [LINE_S, LINE_S]
    assert [record.getMessage() for record in caplog.records] == [f"FOREBAY_METER_LINE_S={text!r} is not a number of seconds; using 30"]
