"""forebay env: lines a shell can eval, and what becomes of a URL."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cli import invoke
from support.fake_sidecar import FakeSidecar

from forebay_proxy.cli.run.env import assignment

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
    """fish reads the same value that sh does."""
    script = f"{invoke('env', '--shell', 'fish').stdout}; printf %s $GOPEN_REWRITE"
    seen = subprocess.run(["fish", "-c", script], capture_output=True, text=True, check=True).stdout
    assert sidecar.url in seen


@given(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30))
def test_a_shell_reads_back_what_was_quoted(value: str) -> None:
    """No character of a value is seen by the shell."""
    script = f'{assignment("sh", "X", value)}\nprintf %s "$X"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == value


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


def test_check_is_honest_about_headers(sidecar: FakeSidecar) -> None:
    """No header travels by rewriting; in code it does; the secret shows nowhere."""
    result = invoke("env", "--check", "pipe:curl -s -H 'Authorization: Bearer hush-hush' https://h.example/a.tar")
    _, by_env, by_run, in_code = result.stdout.splitlines()
    assert "left to WebDataset" in by_env or "do not travel" in by_env
    assert "its headers travel" in in_code
    assert "its headers travel" in by_run  # webdataset is taken over there
    assert "hush" not in result.output


def test_check_tells_what_a_secured_webdataset_refuses(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewriting ends every opening there; what is set in a program's code no environment shows, so that is told always."""
    _, by_env, by_run, in_code = invoke("env", "--check", "s3://b/a.tar").stdout.splitlines()
    assert "enforce_security" in by_env
    assert "enforce_security" not in by_run + in_code
    monkeypatch.setenv("WDS_SECURE", "1")
    _, by_env, by_run, in_code = invoke("env", "--check", "s3://b/a.tar").stdout.splitlines()
    assert "refused by WebDataset: WDS_SECURE" in by_env
    assert all(f"through Forebay: {sidecar.url}/s3/b/a.tar" in row for row in (by_run, in_code))
    rows = invoke("env", "--check", "pipe:aws s3 cp s3://b/a.tar -").stdout.splitlines()[1:]
    assert all("refused by WebDataset" in row for row in rows)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("pipe:ais get x -", "left to WebDataset"),
        ("/nas/a.tar", "left to WebDataset"),
        ("file:///nas/a.tar", "read directly, past Forebay"),
        ("s3:///a.tar", "refused"),
    ],
)
def test_check_says_what_is_left_alone(sidecar: FakeSidecar, url: str, words: str) -> None:
    """Unknown commands, bare paths, schemes that wait, and URLs that are wrong."""
    assert words in invoke("env", "--check", url).stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("said", "path", "of"),
    [
        ("s3://b/k-{000..003}.tar", "/s3/b/k-000.tar", "the first of 4"),
        ("https://h.example/{a,b}/{0..1}.tar", "/https/h.example/a/0.tar", "the first of 4"),
        ("pipe:aws s3 cp s3://b/k-{000..003}.tar -", "/s3/b/k-000.tar", "the first of 4"),
        ("pipe:aws s3 cp s3://b/a.tar -", "/s3/b/a.tar", ""),
    ],
)
def test_check_shows_each_way_in(sidecar: FakeSidecar, said: str, path: str, of: str) -> None:
    """Where a URL or a command goes by rewriting and in code: WebDataset expands before it opens, and how many there are is said."""
    head, *rows = invoke("env", "--check", said).stdout.splitlines()
    assert (of in head, len(rows)) == (True, 3)
    assert all(f"through Forebay: {sidecar.url}{path}" in row for row in rows)


def test_check_knows_that_cat_goes_through(sidecar: FakeSidecar) -> None:
    """A NAS: the loader reads ``cat`` through the sidecar, where a root covers it."""
    *_, by_run, in_code = invoke("env", "--check", "pipe:cat /nas/a.tar").stdout.splitlines()
    assert all(f"through Forebay: {sidecar.url}/file/nas/a.tar; only below a --file-root" in row for row in (by_run, in_code))


@pytest.mark.parametrize(("pattern", "words"), [("s3://b/{0..3", "do not balance"), ("s3://b/{0..99999999}.tar", "more than")])
def test_check_of_a_wrong_pattern_is_refused(sidecar: FakeSidecar, pattern: str, words: str) -> None:
    """In every way in, with what is wrong."""
    rows = invoke("env", "--check", pattern).stdout.splitlines()[1:]
    assert all("refused by WebDataset" in row and words in row for row in rows)
