"""forebay env: lines a shell can eval."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar

from forebay_proxy.cli.run.env import fresh_job, job_variables, rewrite_variables, traps
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.wire.commands.gopen_rules import rewritten
from forebay_proxy.wire.protocol.plan import ReaderName

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


BASE = "http://127.0.0.1:7071"


def test_a_persons_own_rules_stay_in_front() -> None:
    """The first rule that matches wins, and theirs is the first."""
    rules = rewrite_variables(BASE, {"GOPEN_REWRITE": "s3://mine/=/nas/mine/"})["GOPEN_REWRITE"]
    assert rewritten(rules, "s3://mine/a.tar") == "/nas/mine/a.tar"
    assert rewritten(rules, "s3://b/a.tar") == f"{BASE}/s3/b/a.tar"


def test_asking_twice_changes_nothing_and_a_new_address_replaces_the_old() -> None:
    """Rules of an earlier eval never shadow the living sidecar."""
    first = rewrite_variables(BASE, {"GOPEN_REWRITE": "a=b"})
    assert rewrite_variables(BASE, first) == first
    moved = rewrite_variables("http://127.0.0.1:7072", first)
    assert "7071" not in moved["GOPEN_REWRITE"]


@pytest.mark.parametrize(
    ("environ", "upper", "lower"),
    [
        ({}, "127.0.0.1,localhost,::1", "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": ".corp"}, ".corp,127.0.0.1,localhost,::1", ".corp,127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "a", "no_proxy": "localhost, b"}, "a,127.0.0.1,localhost,::1", "localhost,b,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*", "*"),
    ],
)
def test_no_proxy_grows_in_both_spellings(environ: dict[str, str], upper: str, lower: str) -> None:
    """Programs read one or the other; what was there stays; the host of a sidecar elsewhere joins the list."""
    found = rewrite_variables(BASE, environ)
    assert (found["NO_PROXY"], found["no_proxy"]) == (upper, lower)
    assert rewrite_variables("http://node7:7070", {})["NO_PROXY"].endswith(",node7")


def test_an_address_no_rule_can_hold_is_one_line() -> None:
    """Colons and brackets of IPv6 do not fit a rewrite rule."""
    with pytest.raises(ConfigError, match=r"\[::1\]"):
        rewrite_variables("http://[::1]:7070", {})


def test_each_run_is_a_job_of_its_own() -> None:
    """Two runs never share a name, and the name fits a reader's."""
    first, second = (fresh_job({}, "node/7 ü", 42) for _ in range(2))
    assert first != second
    assert ReaderName(first, "0", "0", "1.1")


def test_under_wds_secure_no_rule_is_set() -> None:
    """WebDataset would refuse to open anything with one; a taken-over process needs none."""
    assert "GOPEN_REWRITE" not in job_variables(BASE, {"WDS_SECURE": "1"}, "job-1")


def test_traps_are_named_with_their_mend() -> None:
    """Settings of WebDataset that work against a sidecar."""
    assert traps({}) == []
    assert traps({"WDS_SECURE": "0"}) == []
    assert ["WDS_SECURE" in found or "WDS_CACHE" in found for found in traps({"WDS_SECURE": "1", "WDS_CACHE": "/x"})] == [True, True]
