"""forebay ps and forebay stop: which sidecars there are, and their end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import FAKE_PROGRAM, environment, invoke

from forebay_proxy.cli.run.join import Joined, join
from forebay_proxy.node.runfile import RunDirectory

pytestmark = pytest.mark.another_python


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "run").mkdir(mode=0o700)
    found = environment(tmp_path / "run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", found["XDG_RUNTIME_DIR"])
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    return found


@pytest.fixture
def started(environ: dict[str, str]) -> Iterator[Joined]:
    joined = join(environ, FAKE_PROGRAM)
    try:
        yield joined
    finally:
        joined.__exit__()
        assert joined.process is not None
        joined.process.kill()
        joined.process.wait()


def test_ps_lists_what_runs(started: Joined) -> None:
    """Its address, its process, who started it; for programs too."""
    assert started.process is not None
    text = invoke("ps").stdout
    assert started.url in text
    assert str(started.process.pid) in text
    (row,) = json.loads(invoke("ps", "--json").stdout)
    assert (row["url"], row["pid"], row["answers"]) == (started.url, started.process.pid, True)


def test_stop_ends_the_only_one(started: Joined, environ: dict[str, str]) -> None:
    """It says which, and its run file counts no more."""
    result = invoke("stop")
    assert started.process is not None
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"the sidecar at {started.url} (pid {started.process.pid}) has ended\n"
    assert RunDirectory.of(environ).live() == []


def test_stop_of_one_that_is_not_there(started: Joined) -> None:
    """Nothing is guessed: exit 2, and the one that runs goes on."""
    result = invoke("stop", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "no sidecar of yours runs at http://127.0.0.1:1 on this node; 'forebay ps' lists those that do" in result.stderr
    assert started.process is not None
    assert started.process.poll() is None


def test_where_none_runs(environ: dict[str, str]) -> None:
    """ps has nothing to say, stop nothing to do."""
    assert (invoke("ps").exit_code, invoke("ps").stdout) == (0, "")
    assert invoke("stop").exit_code == 2
