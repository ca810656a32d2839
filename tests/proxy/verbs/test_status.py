"""forebay status: the verdict first, plain where nobody watches, JSON for programs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import environment, invoke
from support.fake_sidecar import FakeSidecar

READER = {"reader": "job/0/1/7.1", "shard": "s3://b/a.tar", "position_bytes": 5 * 10**6, "length_bytes": 10**9, "waited_s": 0.25}
PLAN = {"reader": "job/0/1/7.1", "epoch": None, "set": "s3://b/{0..9}.tar", "position": 3, "length": 10}
PLAN |= {"rate": 0.5, "lead_bytes": 2 * 10**9, "lead_s": 14.0, "waiting": True}


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        counted = {"sent": 4 * 10**9, "hit": 3 * 10**9, "origin": 10**9, "optimal": 996 * 10**6, "saved": 3 * 10**9}
        fake.status = {**fake.status, "bytes": counted, "readers": [READER], "plans": [PLAN], "notices": ["the disk is full"]}
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def test_it_reads_at_three_in_the_morning(sidecar: FakeSidecar) -> None:
    """State, room, hits, waits, errors, readers and plans, aligned and without decoration."""
    lines = invoke("status").stdout.splitlines()
    assert lines[0].startswith(f"sidecar   ready, up 3 h 12 min, {sidecar.url}, pid {os.getpid()}")
    assert lines[1] == "cache     4.0 GB of 8.0 GB (50 %), 2 segments in flight, 200 MB leased; asked for 10.0 GB, but the disk has no more"
    assert lines[3] == "read      4.0 GB, 3.0 GB hit (75 %), 1.0 GB from origins, 3.0 GB saved"
    assert lines[4] == "regret    origin bytes 1.004 x the least possible, what is read ahead included"
    assert lines[8] == "notice    the disk is full"
    assert lines[11].split() == ["job/0/1/7.1", "s3://b/a.tar", "5.0", "MB", "of", "1.0", "GB", "0.2", "s"]
    assert lines[14].split() == ["job/0/1/7.1", "s3://b/{0..9}.tar", "-", "3/10", "0.5/s", "2.0", "GB,", "14", "s", "waiting"]


def test_a_declared_set_is_shown(sidecar: FakeSidecar) -> None:
    """Whether it comes, and how far each job is."""
    sets = [{"set": "s3://b/{0..9}.tar", "shards": 10, "state": "waits for room", "opened": {"": 3}}]
    sidecar.status = {**sidecar.status, "sets": sets}
    lines = invoke("status").stdout.splitlines()
    assert "set       s3://b/{0..9}.tar, 10 shards, waits for room, readers without a name: 3 opened in this epoch" in lines
    sidecar.status["sets"] = [sets[0] | {"complete": 4, "stored_bytes": 5_000_000}]
    assert any("10 shards, 4 of them here (5.0 MB), waits for room" in line for line in invoke("status").stdout.splitlines())


def test_an_idle_one_says_no_more_than_it_knows() -> None:
    """No readers, no plans, nothing served: no empty tables, no division."""
    with FakeSidecar() as fake:
        assert len(invoke("status", "--url", fake.url).stdout.splitlines()) == 7


def test_json_is_the_sidecars_own(sidecar: FakeSidecar) -> None:
    """Nothing added, nothing lost."""
    assert json.loads(invoke("status", "--json").stdout) == sidecar.status


def test_a_dead_one_is_one_line_and_exit_2() -> None:
    """Cause and next step."""
    result = invoke("status", "--url", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "forebay: no sidecar answers at http://127.0.0.1:1: connection refused; start one with 'forebay serve'\n"


def test_watch_shows_it_again_until_ctrl_c(sidecar: FakeSidecar, tmp_path: Path) -> None:
    """One JSON line an interval; SIGINT ends it without a traceback."""
    argv = [sys.executable, "-m", "forebay_proxy.cli", "status", "--watch", "--json", "--interval", "0.1"]
    environ = environment(tmp_path, PYTHONUNBUFFERED="1")
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())["state"] == "ready"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr.strip() == ""


def test_on_a_terminal_it_has_colour_and_the_same_words(sidecar: FakeSidecar, tmp_path: Path) -> None:
    """A person at a real terminal sees the same facts."""
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "forebay_proxy.cli", "status"]
    environ = environment(tmp_path, TERM="xterm", COLUMNS="200")
    environ.pop("NO_COLOR", None)
    with subprocess.Popen(argv, env=environ, stdout=slave, stdin=slave) as process:
        os.close(slave)
        screen = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            screen += chunk
    os.close(master)
    assert process.returncode == 0
    assert b"\x1b[" in screen
    assert b"3.0 GB hit (75 %)" in screen
    assert b"job/0/1/7.1" in screen
