"""What scripts/test promises: the Python it names, and stages that end; and what scripts/release refuses."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.sidecar import wait_until

from forebay_proxy.wire.protocol.runfile import process_start_time

ROOT = Path(__file__).parents[1]
COMMAND, LIB = ("bash", "-euo", "pipefail", "-c"), ROOT / "scripts" / "lib.sh"


def bash(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it beside the scripts' library."""
    command = [*COMMAND, f". {LIB}; {script}"]
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=240, check=False)


def test_a_stage_that_hangs_is_cut_and_named() -> None:
    """With whatever it has started; the next stages run, and the end says it all."""
    done = bash('stage ends true; stage hangs bash -c "sleep 60 & wait"; stage fails false; report_stages', FOREBAY_STAGE_S="1")
    assert done.returncode == 1
    assert re.search(r"^  ends +\d+ s  ok$", done.stderr, re.MULTILINE)
    assert re.search(r"^  hangs +\d+ s  CUT: it had not ended after 1 s", done.stderr, re.MULTILINE)
    assert re.search(r"^  fails +\d+ s  FAILED \(1\)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything(tmp_path: Path, number: int) -> None:
    """The stage, what runs beside it, and what those have started."""
    script = f"stage_beside beside bash -c 'sleep 601 & echo $! >{tmp_path}/beside; wait'"
    script += f"; stage now bash -c 'sleep 602 & echo $! >{tmp_path}/now; wait'"
    with subprocess.Popen([*COMMAND, f". {LIB}; {script}"], stderr=subprocess.DEVNULL) as running:
        files = [tmp_path / "beside", tmp_path / "now"]
        wait_until(lambda: all(file.exists() and file.read_text().strip() for file in files))
        running.send_signal(number)
        assert running.wait(60) == 128 + number
    wait_until(lambda: all(process_start_time(int(file.read_text())) is None for file in files))


def test_an_environment_of_another_python_is_made_anew(tmp_path: Path) -> None:
    """One interpreter's packages are never run under another's name."""
    made = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    script = f'[[ "$(identity_of {made}/bin/python)" == "$(identity_of {sys.executable})" ]] && echo same'
    assert bash(script).stdout == "same\n"
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.12.9 /elsewhere\n")
    other.chmod(0o755)
    assert bash(f'[[ "$(identity_of {made}/bin/python)" == "$(identity_of {other})" ]] || echo other').stdout == "other\n"


def pool_of(tmp_path: Path, test: str, *pool: str) -> subprocess.CompletedProcess[str]:
    """Run a test under our conftest, which waits for nobody."""
    conftest = (Path(__file__).parent / "conftest.py").read_text()
    for patience in ("GONE_S", "THREAD_S"):
        assert f"\n{patience} = 30.0" in conftest
        conftest = conftest.replace(f"\n{patience} = 30.0", f"\n{patience} = 0.0")
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path), *pool]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)


LEAVES = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, env={}, stdout=-3).pid)"
LEAVING = f"""
import os, pathlib, signal, subprocess, sys

def test_leaves():
    pathlib.Path(__file__).with_name("left").write_bytes(subprocess.check_output([sys.executable, '-c', {LEAVES!r}]))
"""


needs_pool = pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="needs pytest-xdist: scripts/test installs it")


DYING = LEAVING + "    os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.parametrize(("test", "pool"), [(LEAVING, ()), pytest.param(DYING, ("-n", "2"), marks=needs_pool)], ids=["alone", "died"])
def test_what_a_test_leaves_running_is_told_and_ended(tmp_path: Path, test: str, pool: tuple[str, ...]) -> None:
    """Even in a session of its own and without a parent; it is named and killed, and the run ends. So it is where a worker of it died."""
    done = pool_of(tmp_path, test, *pool)
    assert done.returncode == len(pool) // 2, done.stdout
    assert not pool or "crashed while running 'test_it.py::test_leaves" in done.stdout
    left = int((tmp_path / "left").read_text())
    assert f"processes left behind, now killed: {left} (sleep 600)" in done.stderr
    wait_until(lambda: process_start_time(left) is None)


@needs_pool
def test_a_thread_that_stays_costs_a_worker_no_result(tmp_path: Path) -> None:
    """What failed is told, with its reason; the worker does not wait for the thread."""
    stays = "import threading, time\n\ndef test_stays():\n    threading.Thread(target=time.sleep, args=(600,)).start()\n"
    stays += "\n\ndef test_wrong():\n    assert 1 == 2, 'the reason'\n"
    done = pool_of(tmp_path, stays, "-n", "1", "--dist", "loadgroup")
    assert done.returncode == 1
    assert "the reason" in done.stdout
    assert re.search("^1 failed, 1 passed, 1 error|1 error", done.stdout, re.MULTILINE), done.stdout


# Nobody's git settings, and no Python to build with.
NOBODY = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHON": "/nonexistent", "FOREBAY_APT": "0"}


def checkout(folder: Path, *, changelog: str, tags: tuple[str, ...] = (), changed: bool = False) -> Path:
    """A small one of the scripts beside a version and a changelog."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## [Unreleased]\n\n{changelog}")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "All"), *(("tag", tag) for tag in tags)):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], cwd=folder, env=NOBODY, check=True, capture_output=True
        )
    if changed:
        (folder / "new").touch()
    return folder / "scripts" / "release"


def release(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """To its end, which comes where it wants a Python."""
    return subprocess.run([script, *arguments], env=NOBODY, capture_output=True, text=True, timeout=240, check=False)


SECTION = "## [1.2.3] - 2026-01-01\n\n- New.\n"
NOT_RELEASED = {
    "changes are not committed": {"changelog": SECTION, "changed": True},
    "has a tag already, v1.2.3": {"changelog": SECTION, "tags": ("v1.2.3",)},
    "has no section '## [1.2.3]' with an entry": {"changelog": "- New.\n\n## [1.2.3] - 2026-01-01\n\n## [1.2.30]\n\n- Old.\n"},
}


@pytest.mark.needs("git")
@pytest.mark.parametrize("reason", NOT_RELEASED)
def test_what_cannot_be_released_is_refused(tmp_path: Path, reason: str) -> None:
    """Before anything is built, with what to do; a dry run says it and goes on."""
    script = checkout(tmp_path / "checkout", **NOT_RELEASED[reason])  # type: ignore[arg-type]
    done = release(script)
    assert done.returncode == 2
    assert len(re.findall("^forebay: refused: ", done.stderr, re.MULTILINE)) == 1
    assert reason in done.stderr
    assert "nothing was built" in done.stderr
    dry = release(script, "--dry-run")
    assert "forebay: would be refused: " in dry.stderr
    assert reason in dry.stderr
    assert "needs Python 3.11, 3.12 or 3.13" in dry.stderr  # the next thing it does


@pytest.mark.needs("git")
def test_what_can_be_released_is_not_refused(tmp_path: Path) -> None:
    """A clean tree, a new version, a section of it; the tag of another version is none of this one."""
    done = release(checkout(tmp_path / "checkout", changelog=SECTION, tags=("v1.2.2", "v1.2.30")))
    assert "refused" not in done.stderr
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
