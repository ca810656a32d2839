"""Counting what processes said of themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from forebay_loader.base import takeover_report as loaders
from forebay_proxy.cli.run.takeover_report import VARIABLE, TakeoverReport
from forebay_proxy.node.runfile import process_start_time


def write(report: TakeoverReport, *said: tuple[int, str]) -> None:
    assert report.path is not None
    with report.path.open("a") as file:
        for process, why in said:
            file.write(json.dumps({"process": f"{process}.1", "direct": why}) + "\n")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            [(1, ""), (1, ""), (2, ""), (3, "local files"), (4, "local files"), (5, "own opener")],
            "2 processes taken over, 3 went direct: local files (2); own opener (1)",
        ),
        ([(1, ""), (1, "local files")], "1 process taken over, some shards went direct: local files (1)"),
        (
            [(1, ""), (1, "local files"), (2, "local files")],
            "1 process taken over, 1 went direct (shards of taken-over ones too): local files (2)",
        ),
        (
            [*((number, f"reason {number}") for number in range(7)), (9, "reason 3")],
            "0 processes taken over, 8 went direct: reason 3 (2); reason 0 (1); reason 1 (1); reason 2 (1); 3 reasons more",
        ),
    ],
    ids=["two kinds", "both kinds", "all kinds", "many reasons"],
)
def test_counts_processes(tmp_path: Path, said: list[tuple[int, str]], line: str) -> None:
    """Each process once for each thing it says; the most frequent reasons with the number of processes they hold for."""
    with TakeoverReport(tmp_path) as report:
        write(report, *said)
        assert report.line() == line


def test_nothing_said(tmp_path: Path) -> None:
    """Whoever expected webdataset to be taken over sees that it was not."""
    with TakeoverReport(tmp_path) as report:
        assert report.line().startswith("0 processes taken over: ")
        assert report.line(read=True).startswith("all of it was read by forebay_loader's own classes")


def test_torn_lines_are_passed_over(tmp_path: Path) -> None:
    """A process that was killed as it wrote, or somebody's nonsense."""
    with TakeoverReport(tmp_path) as report:
        assert report.path is not None
        report.path.write_bytes(b'[1]\n{"process": 3\n"x"\n\xff\n{"process": "1.1", "direct": ""}\n')
        assert report.line() == "1 process taken over, 0 went direct"


def test_private_and_gone_afterwards(tmp_path: Path) -> None:
    """0600 while the run lasts; then nothing is left."""
    with TakeoverReport(tmp_path) as report:
        assert report.path is not None
        assert report.path.stat().st_mode & 0o777 == 0o600
        assert report.variables() == {VARIABLE: str(report.path)}
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    """By the next one, also where another process has its number now; that of a run that lives stays."""
    pid = os.getppid()
    start = process_start_time(pid)
    assert start is not None
    gone, reused, living = (
        tmp_path / f"forebay-run-{name}-ab.takeover" for name in (f"4194399.{start}", f"{pid}.{start - 1}", f"{pid}.{start}")
    )
    for path in (gone, reused, living):
        path.touch()
    with TakeoverReport(tmp_path):
        assert [path.exists() for path in (gone, reused, living)] == [False, False, True]


@pytest.mark.parametrize("directory", [None, Path("/nonexistent")])
def test_no_place_for_it(directory: Path | None) -> None:
    """Then nothing is counted."""
    with TakeoverReport(directory) as report:
        assert (report.variables(), report.line()) == ({}, "")


def test_what_the_loader_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides agree on the variable and the lines; a thing is said once, and a file that has gone is no error."""
    assert loaders.VARIABLE == VARIABLE
    said = loaders.Report()
    with TakeoverReport(tmp_path) as report:
        monkeypatch.setenv(VARIABLE, report.variables()[VARIABLE])
        for _ in range(3):
            said.taken()
            said.direct("local files")
        assert report.path is not None
        assert len(report.path.read_text().splitlines()) == 2
        assert report.line() == "1 process taken over, some shards went direct: local files (1)"
    said.direct("another")


def test_a_process_says_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its shards are called, the file stays small."""
    said = loaders.Report()
    with TakeoverReport(tmp_path) as report:
        monkeypatch.setenv(VARIABLE, report.variables()[VARIABLE])
        for number in range(1000):
            said.direct(f"{number}" * 100)
        assert report.path is not None
        assert report.path.stat().st_size < 5000
