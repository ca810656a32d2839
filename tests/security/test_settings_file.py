"""A settings file that was planted by another user, or cloned. All three ways in, the real sidecar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.sidecar import FOREBAY, environment, wait_until

from forebay_proxy.node.runfile import RunDirectory, process_start_time

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")

LOOK = """
import json, os, urllib.request as r
print(json.dumps(json.load(r.urlopen(os.environ["FOREBAY_URL"] + "/v1/status"))["notices"]))
"""
IN_CODE = f"""
import forebay_loader as fb
with fb.sidecar(cache_size="64MiB", port=0):
{"".join(f"    {line}{chr(10)}" for line in LOOK.strip().splitlines())}
"""
WAYS = {
    "serve": (*FOREBAY, "serve", "--json"),
    "run": (*FOREBAY, "run", "--required", "--", sys.executable, "-c", LOOK),
    "code": (sys.executable, "-c", IN_CODE),
}


class Workplace:
    """A working directory, and a user with a run directory and a cache of their own."""

    def __init__(self, path: Path) -> None:
        self.here, self.run = path / "here", path / "run"
        self.here.mkdir(mode=0o755)
        self.run.mkdir(mode=0o700)
        self.file = path / "config/forebay/forebay.toml"
        self.file.parent.mkdir(mode=0o755, parents=True)
        mine = {"XDG_CONFIG_HOME": str(path / "config"), "XDG_RUNTIME_DIR": str(self.run), "HOME": str(path)}
        settings = {"FOREBAY_CACHE_DIR": str(path / "cache"), "FOREBAY_CACHE_SIZE": "64MiB", "FOREBAY_PORT": "0"}
        settings |= {"FOREBAY_IDLE_EXIT_S": "1"}
        self.environ = {**environment(path), **mine, **settings}

    def enter(self, way: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; a ``serve`` that begins ends by itself, as nobody holds it."""
        done = subprocess.run(WAYS[way], cwd=self.here, env=self.environ, capture_output=True, text=True, timeout=240, check=False)
        for record in RunDirectory(self.run).live():
            wait_until(lambda pid=record.pid, start=record.start_time: process_start_time(pid) != start)  # type: ignore[misc]
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_another_users_file_opens_nothing_and_stops_nothing(workplace: Workplace, way: str) -> None:
    """Not read, and said: neither its doors nor its nonsense counts."""
    workplace.file.write_text('allow_uid = [65534]\nfile_root = ["/etc"]\nnonsense = = \n')
    os.chown(workplace.file, NOBODY, NOBODY)
    code, out, errors = workplace.enter(way)
    assert code == 0, errors
    assert f"settings file {workplace.file} is not read: {workplace.file} belongs to uid {NOBODY}, not to you" in errors
    assert errors.count("is not read") == 1
    if way != "serve":
        assert "is not read" in json.loads(out)[0]


@pytest.mark.parametrize("way", WAYS)
def test_one_in_the_working_directory_does_not_count(workplace: Workplace, way: str) -> None:
    """It may have been cloned: not read, and said."""
    path = workplace.here / "forebay.toml"
    path.write_text("allow_uid = [65534]\nnonsense = = \n")
    code, _, errors = workplace.enter(way)
    assert code == 0, errors
    assert errors.count(f"{path} is not read: name it by --config") == 1


@pytest.mark.parametrize("way", WAYS)
def test_the_file_that_was_read_is_named(workplace: Workplace, way: str) -> None:
    """In one line."""
    workplace.file.write_text('log_level = "warning"\n')
    code, _, errors = workplace.enter(way)
    assert code == 0, errors
    assert errors.count(f"settings read from {workplace.file}") == 1
