"""forebay env: lines a shell can eval."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar

pytestmark = pytest.mark.another_python

NAMES = ["GOPEN_REWRITE", "NO_PROXY", "no_proxy"]


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def test_stdout_is_for_eval_and_nothing_else(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notices go to stderr; a real shell takes the rest."""
    monkeypatch.setenv("WDS_CACHE", "/x")
    result = invoke("env")
    assert [line.split("=")[0] for line in result.stdout.splitlines()] == [f"export {name}" for name in NAMES]
    assert "WDS_CACHE" in result.stderr
    script = f'{result.stdout}printf %s "$GOPEN_REWRITE"'
    seen = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert sidecar.url in seen
    assert seen.count(";") > 3


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_takes_it_too(sidecar: FakeSidecar) -> None:
    """fish reads the same lines that sh does."""
    script = f"{invoke('env').stdout}; printf %s $GOPEN_REWRITE"
    seen = subprocess.run(["fish", "-c", script], capture_output=True, text=True, check=True).stdout
    assert sidecar.url in seen


def test_without_a_sidecar_it_is_exit_2_and_an_empty_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """eval "$(forebay env)" must not half work."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    result = invoke("env")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "forebay serve" in result.stderr


def test_a_sidecar_that_drains_is_none(sidecar: FakeSidecar) -> None:
    """Ready means it will serve."""
    sidecar.ready = False
    assert invoke("env").exit_code == 2
