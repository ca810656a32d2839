"""The thread of a training process: once, never in a worker, and never the end of a training."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.seams import swapped

from forebay_loader.meter.report.meter_client import MeterClient
from forebay_loader.meter.report.meter_thread import LOG, MeterThread, MeterTicks, _name, line_s, say, watchdog_s
from forebay_loader.meter.report.node_view import NodeSums, SidecarSums
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody, decode_meter


def totals(steps: int = 10) -> MeterBody:
    return MeterBody(0.5 * steps, dict.fromkeys(CAUSES, 0.01), steps)


def ticks_of(totals: object = totals, **how: float) -> MeterTicks:
    return MeterTicks(totals, lambda: None, **{"line_s": 0.0, "watchdog_s": 0.0, **how})  # type: ignore[arg-type]


def test_a_program_without_logging_sees_it_on_stderr(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself would drop what is no warning; a program that logs has it in its log, and nowhere else."""
    monkeypatch.setattr(LOG, "hasHandlers", lambda: False)
    say(logging.INFO, "stall 3.1 %")
    assert capfd.readouterr().err == "forebay: stall 3.1 %\n"
    caplog.set_level(logging.ERROR, LOG.name)
    say(logging.INFO, "stall 3.1 %")
    assert capfd.readouterr().err == ""


def test_a_program_that_logs_has_it_in_its_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """By the logger's name."""
    with caplog.at_level(logging.INFO, "forebay.meter"):
        say(logging.INFO, "stall 3.1 %")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("forebay.meter", "forebay: stall 3.1 %")]
    assert "forebay: stall" not in capfd.readouterr().err


def test_it_begins_once_and_tells_the_last_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a training that was shorter than the time between two messages."""
    with FakeServer().running() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        monkeypatch.setenv("RANK", "3")
        made: list[MeterTicks] = []
        thread = MeterThread(lambda: made.append(ticks_of()) or made[-1])  # type: ignore[func-returns-value]
        before = threading.active_count()
        thread.begin()
        thread.begin()
        assert (len(made), threading.active_count()) == (1, before + 1)
        thread.end()
        told = [request for request in server.requests if request.method == "POST"]
        assert [decode_meter(request.body) for request in told] == [totals()]
        assert 0 <= (decode_meter(told[0].body).idle_cores or 0.0) <= (os.cpu_count() or 1)
        assert told[0].target.startswith("/v1/meter/job-1/3/main/")


def test_a_fault_of_the_meter_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """One notice, and it goes on."""

    def broken() -> MeterBody:
        raise ZeroDivisionError("of the meter")

    ticks = ticks_of(broken)
    running = threading.Thread(target=ticks.run, daemon=True)
    running.start()
    time.sleep(1.2)
    ticks.end()
    running.join(30)
    assert not running.is_alive()
    assert [record.getMessage() for record in caplog.records] == [
        "the meter failed (ZeroDivisionError: of the meter); training is not touched by it"
    ]


def three_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of three intervals, one after the other."""
    told = iter(range(10, 50, 10))
    ticks = ticks_of(lambda: totals(next(told)), line_s=30.0)
    began_s = time.monotonic()
    with caplog.at_level(logging.INFO, "forebay.meter"):
        ticks._begin_line()
        for number in (1, 2, 3):
            ticks._write_line(began_s + 30.0 * number)
    return [record.getMessage() for record in caplog.records]


def test_a_line_is_of_its_own_interval(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Not of what the sidecar had fetched before this process began; where it did not answer once, the next line is of both intervals."""
    answers: list[int | None] = [10**12, 10**12 + 30 * 10**6, None, 10**12 + 90 * 10**6]

    def node(client: MeterClient, job: str) -> NodeSums | None:
        fetched = answers.pop(0)
        return None if fetched is None else NodeSums({}, SidecarSums("ab", origin_bytes=fetched))

    monkeypatch.setattr(MeterClient, "node", node)
    said = [line.partition(" | ")[2] for line in three_lines(caplog)]
    assert ["origin 1.0 MB/s" in line for line in said] == [True, False, True]
    assert "no sidecar answers" in said[1]


def test_ranks_without_batches_lead_the_line_and_warn_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The warning is the waiting rank's alone: once for each step in which it stands."""
    step = replace(totals(), loader=0, loader_passes=1, loader_steps=10, step_s=30.0)
    ticks = ticks_of(lambda: step, line_s=30.0, watchdog_s=60.0)
    found = NodeSums({}, SidecarSums(), unequal={_name(): "rank 1 has had no more batches for 31 s"})
    nodes = [NodeSums({}, unequal={"job/5/main/7.0": "rank 1 has"}), None, found, found, found]
    swapped(monkeypatch, MeterClient, tell=lambda client, name, body: True, node=lambda client, job: nodes.pop(0))
    for _ in range(4):
        ticks._tell_at_s = 0.0
        ticks.look()
    assert [record.getMessage() for record in caplog.records] == ["forebay: rank 1 has had no more batches for 31 s"]
    with caplog.at_level(logging.INFO, "forebay.meter"):
        ticks._write_line(time.monotonic() + 30.0)
    assert caplog.records[-1].getMessage().startswith("forebay: rank 1 has had no more batches for 31 s | stall ")


def test_the_page_names_each_variable() -> None:
    """docs/loader.md, with what holds without it."""
    page = (Path(__file__).parents[4] / "docs" / "loader.md").read_text(encoding="utf-8")
    rows = (
        "| `FOREBAY_METER=0` |",
        "| `FOREBAY_METER_LINE_S` | seconds between two lines, 30;",
        "| `FOREBAY_WATCHDOG_S` | seconds without a",
    )
    assert [row for row in rows if row not in page] == []


def test_what_was_said_holds(caplog: pytest.LogCaptureFixture) -> None:
    """0 turns each off; without a word there is a line every half minute, a word after a minute without a batch. Of nonsense that is said,
    once a process."""
    assert (line_s({}), watchdog_s({})) == (30.0, 60.0)
    assert line_s({"FOREBAY_METER_LINE_S": "2.5"}) == 2.5
    assert watchdog_s({"FOREBAY_WATCHDOG_S": "0"}) == 0
    with caplog.at_level(logging.WARNING, "forebay_loader"):
        assert {line_s({"FOREBAY_METER_LINE_S": text}) for text in ("soon", "soon", "-1", "nan", "inf")} == {30.0}
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "FOREBAY_METER_LINE_S='soon' is not a number of seconds; using 30"
    assert said.count(said[0]) == 1
