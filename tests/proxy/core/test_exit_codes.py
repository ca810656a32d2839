"""Exit codes: one table, and every verb keeps to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support.cli import invoke
from support.sidecar import FOREBAY, environment

from forebay_proxy.cli.options import Seams
from forebay_proxy.core.exit_codes import MEANINGS, ExitCode, by_signal

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"


def test_the_page_has_this_table() -> None:
    """Row by row."""
    section = PAGE.read_text(encoding="utf-8").partition("<!-- exit codes:")[2].partition("<!-- exit codes: end")[0]
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", section, re.MULTILINE))
    assert {int(code): meaning for code, meaning in rows.items()} == {int(code): meaning for code, meaning in MEANINGS.items()}


def test_a_fault_of_ours_is_3_and_shows_no_message() -> None:
    """Frames and types: a library's message may hold a URL, and a URL a secret."""

    def faulty(*_: object) -> int:
        raise ZeroDivisionError("".join(("https://host/?token=", "se", "cret")))  # a traceback shows this line

    result = invoke("serve", seams=Seams(serve=faulty))
    assert result.exit_code == ExitCode.FAULT
    assert "ZeroDivisionError" in result.stderr
    assert "please report it" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    "verb", [["status"], ["ls"], ["env"], ["evict", "--all", "--yes"], ["warm", "https://h/a.tar"], ["verify"]], ids=" ".join
)
def test_without_a_sidecar_each_verb_is_2(tmp_path: Path, verb: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to do."""
    if verb[0] not in invoke("--help").stdout:
        pytest.skip(f"there is no verb {verb[0]}")
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    result = invoke(*verb)
    assert (result.exit_code, result.stderr.count("\n")) == (ExitCode.CANNOT_BEGIN, 1)
    assert "forebay serve" in result.stderr


def test_nobody_reads_stdout_any_more(tmp_path: Path) -> None:
    """``forebay config show | head -1`` ends as any filter does, without a word."""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run([*FOREBAY, "config", "show"], stdout=writes, stderr=subprocess.PIPE, env=environment(tmp_path), check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (by_signal(signal.SIGPIPE), b"")
