"""The unit: read by systemd's own tools, and its settings in a real sidecar under the memory rule that the unit sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.deployed import DEPLOY, unit_values
from support.sidecar import FOREBAY, running

UNIT = DEPLOY / "systemd/forebay.service"
PROGRAM = "/opt/forebay/bin/forebay"
MOST_EXPOSED = 30  # tenths; 100 is open
# MemoryDenyWriteExecute= as the kernel knows it from 6.3 on. The sidecar uses ctypes, whose callbacks want such memory.
WRITE_OR_EXECUTE = (
    "import ctypes, os, sys; sys.exit(77) if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) else os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """With a program that is there: systemd looks."""
    program = tmp_path / "forebay"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = UNIT.read_text("utf-8")
    assert text.count(f"ExecStart={PROGRAM} serve\n") == 1
    (tmp_path / UNIT.name).write_text(text.replace(f"ExecStart={PROGRAM}", f"ExecStart={program}"))
    return tmp_path / UNIT.name


@pytest.mark.needs("systemd-analyze")
def test_systemd_finds_nothing_wrong(unit: Path) -> None:
    """No unknown key, no bad value, no warning."""
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    # It looks at all units that this one wants, and warns of what is amiss with those of the machine.
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr


@pytest.mark.needs("systemd-analyze")
def test_it_is_hardened(unit: Path) -> None:
    """Its exposure is at most 3 of 10 by systemd's count."""
    asked = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", str(unit)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze is older than 250: it reads no unit that is not loaded")
    assert done.returncode == 0, done.stdout[-2000:]


def test_its_settings_start_a_sidecar_without_writable_code(tmp_path: Path) -> None:
    """MemoryDenyWriteExecute= costs nothing: a shard is stored and read under it. systemd's system call filter is not tried here."""
    shard = tmp_path / "0.tar"
    shard.write_bytes(bytes(10240))
    environ = dict(value.split("=", 1) for value in unit_values("Environment")) | {"XDG_RUNTIME_DIR": str(tmp_path)}
    probe = subprocess.run([sys.executable, "-c", WRITE_OR_EXECUTE, "/bin/true"], check=False, timeout=60)
    if probe.returncode == 77:
        pytest.skip("this kernel is older than 6.3: it cannot forbid such memory")
    wrapper = (sys.executable, "-c", WRITE_OR_EXECUTE)
    with running(
        tmp_path, "--cache-size", "50MB", "--file-root", str(tmp_path), environ=environ, wrapper=wrapper, program=FOREBAY
    ) as sidecar:
        assert sidecar.ask(f"/file{shard}") == bytes(10240)
