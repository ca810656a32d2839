"""What verbs write into files: whole or not at all, and one line says why not."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import environment, invoke
from support.disks import needs_mounts

from forebay_proxy.cli.output import write_whole


def test_rights_and_links_stay(tmp_path: Path) -> None:
    """What a link leads to is replaced, not the link; its rights are kept, and nothing lies beside it."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_whole({link: "new"}, "")
    assert (real.read_text(), real.stat().st_mode & 0o777, link.is_symlink()) == ("new", 0o640, True)
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sidecar of this machine's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FOREBAY_URL", raising=False)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("place", ["/dev/full", "/sys/bug.json", "/proc/none/bug.json", "/"])
def test_a_report_that_cannot_be_written(place: str) -> None:
    """A full disk, no right to write, no such folder, a folder: exit code 2 and a line; what was found is on the screen."""
    done = invoke("doctor", "--report", place)
    assert (done.exit_code, "no sidecar runs" in done.stdout) == (2, True)
    [line] = done.stderr.splitlines()
    assert line.startswith(f"forebay: cannot write {place}: ")
    assert line.endswith("; name another file with --report")


@pytest.mark.usefixtures("alone")
def test_a_report_replaces_nothing(tmp_path: Path) -> None:
    """It is said before an origin is asked for nine segments."""
    mine = tmp_path / "train.py"
    mine.write_text("mine")
    done = invoke("doctor", "--report", str(mine))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"forebay: {mine} exists already; name another file with --report\n"
    assert mine.read_text() == "mine"


@needs_mounts
@pytest.mark.parametrize(("then", "cause"), [(":", "No space left on device"), ("mount -o remount,ro .", "Read-only file system")])
def test_a_board_that_cannot_be_written(then: str, cause: str, tmp_path: Path) -> None:
    """On a disk that is full, or not to be written to: a line that names the file, exit code 2, and no file, also no half of one."""
    program = shlex.join([sys.executable, "-m", "forebay_proxy", "dashboard", "export", "to"])
    script = f"mount -t tmpfs -o size=64k none $0 && cd $0 && mkdir to && {then}; {program}; echo $?; find . -type f"
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, tmp_path],
        env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "2\n", done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("forebay: cannot write to/")
    assert line.endswith(f": {cause}; name another directory")
