"""A program that was forked is one that was started: tests that use it test the program."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
from support.sidecar import Sidecar, environment, running
from support.verbs import verb
from support.warm_python import python_program, warm_workers
from support.zygote import zygote

from forebay_proxy.wire.protocol.version import VERSION

FACTS = ("PPid", "Uid", "Gid", "Groups", "Umask", "NSpid", "SigBlk", "SigIgn", "SigCgt", "CapEff", "CapBnd", "NoNewPrivs")


def is_forked(sidecar: Sidecar) -> bool:
    return b"/zygote_program.py\0" in Path(f"/proc/{sidecar.process.pid}/cmdline").read_bytes()


def facts(sidecar: Sidecar) -> dict[str, object]:
    """What the kernel says of it, but for numbers of its own."""
    proc = Path(f"/proc/{sidecar.process.pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines() if ":\t" in line)
    group_and_session = (proc / "stat").read_text().rpartition(")")[2].split()[2:4]
    files = sorted(re.sub(r"\d+", "N", f"{each.readlink()}") for each in (proc / "fd").iterdir())
    return {
        **{name: status[name].replace(str(sidecar.process.pid), "its own") for name in FACTS},
        "group and session": group_and_session,
        "limits": (proc / "limits").read_text(),
        "directory": (proc / "cwd").readlink() == sidecar.directory,
        "files": [each.replace(re.sub(r"\d+", "N", str(sidecar.directory)), "") for each in files],
        "scheduling": [(proc / name).read_text() for name in ("oom_score_adj", "cgroup")],
    }


def log_of(sidecar: Sidecar) -> str:
    return re.sub(r"[0-9a-f]{16}|[\d.:,-]+", "N", sidecar.log_text().replace(str(sidecar.directory), ""))


def test_the_kernel_sees_no_difference(tmp_path: Path) -> None:
    """Parent, group, signals, limits, open files: all of it as in a program of its own; so is what it logs until its end."""
    seen, said = [], []
    for real in (True, False):
        place = tmp_path / str(real)
        place.mkdir()
        with running(place, "--cache-size", "100MB", real=real) as sidecar:
            assert is_forked(sidecar) is not real
            seen.append(facts(sidecar))
            assert sidecar.status()["pid"] == sidecar.ready["pid"] == sidecar.process.pid
            assert sidecar.status()["forebay"] == VERSION
        said.append(log_of(sidecar))
    assert seen[0] == seen[1]
    assert seen[0]["PPid"] == str(os.getpid())
    assert said[0] == said[1]


def test_each_has_its_own_environment(tmp_path: Path) -> None:
    """What an earlier one was given is not there any more."""
    for environ, host in (({"FOREBAY_CACHE_SIZE": "70MB", "FOREBAY_HOST": "127.0.0.2"}, "127.0.0.2"), ({}, "127.0.0.1")):
        with running(tmp_path, environ={"FOREBAY_CACHE_SIZE": "90MB", **environ}, cache=host) as sidecar:
            assert is_forked(sidecar)
            assert host in sidecar.url
            assert sidecar.status()["cache"]["capacity_bytes"] == (70_000_000 if environ else 90_000_000)


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "SSL_CERT_FILE", "LC_ALL", "AIOHTTP_NOSENDFILE"])
def test_what_imports_and_libraries_read_takes_a_start(tmp_path: Path, name: str) -> None:
    """Where such a variable differs, what was imported without it cannot stand in."""
    usual = environment(tmp_path)
    assert zygote(usual) is not None
    assert zygote({**usual, name: "another"}) is None
    assert zygote(usual) is not None, "the next one is forked again"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("status", "--url", "http://127.0.0.1:1"), 2),
        (("--version",), 0),
        (("env", "--no-such-flag"), 2),
        (("run", "--", "sh", "-c", "cat; echo $0 $FOREBAY_URL >&2; pwd; exit 7"), 7),
        (("run", "--", "sh", "-c", "kill -TERM $$"), 128 + signal.SIGTERM),
    ],
    ids=lambda value: "" if isinstance(value, int) else value[0],
)
def test_a_verb_says_and_does_what_the_program_does(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    """Its words, its exit code, its stdin, its directory; a forked one has no other sidecar to start than the program."""
    environ = {**environment(tmp_path), "FOREBAY_URL": "http://127.0.0.1:1"}
    done = [verb(environ, *arguments, directory=tmp_path, said=b"read", real=real) for real in (True, False)]
    assert done[0].returncode == done[1].returncode == code
    assert done[0].stdout == done[1].stdout
    assert done[0].stderr == done[1].stderr


_TOLD = """
import atexit, json, os, sys
atexit.register(print, "over")
print(json.dumps([__name__, sys.argv, sys.path[:3], sorted(os.listdir("/proc/self/fd"))[:3], os.getppid(), os.environ["FOREBAY_X"]]))
print(sorted(name for name in sys.modules if name.startswith("forebay")), "torch" in sys.modules, os.getcwd())
print(sys.stdin.readline(), file=sys.stderr)
sys.exit(EXIT)
"""


@pytest.mark.parametrize("ending", ["7", "'in words'", "None", "1 / 0"])
@pytest.mark.parametrize("kind", ["code", "script"])
def test_a_python_program(tmp_path: Path, kind: str, ending: str) -> None:
    """Arguments, path, directory, standard streams and exit code as of one that was started; nothing of ours imported, but torch."""
    script = tmp_path / "told.py"
    script.write_text(_TOLD.replace("EXIT", ending))
    arguments = [*(["-c", script.read_text()] if kind == "code" else [str(script)]), "a", "-b"]
    environ = {**os.environ, "FOREBAY_X": "y", "PYTHONPATH": f"{tmp_path}/one:{tmp_path}/two"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    found = []
    for program in (
        subprocess.Popen([sys.executable, *arguments], env=environ, cwd=tmp_path, text=True, **pipes),
        python_program(arguments, environ, tmp_path, text=True, **pipes),
    ):
        said, errors = program.communicate("word\n", timeout=240)
        found.append([program.returncode, said.replace("True", "False"), errors.splitlines()[:1], errors.splitlines()[-1:]])
    assert found[0] == found[1]
    assert json.loads(said.splitlines()[0])[4] == os.getpid()
    assert "[] True" in said


def _seen() -> list[Any]:
    return ["webdataset" in sys.modules, "forebay_loader" in sys.modules, os.environ.get("FOREBAY_X")]


@pytest.mark.parametrize(("flags", "is_warm"), [([], True), (["-Wignore::ImportWarning", "-B"], True), (["-O"], False)], ids=str)
def test_a_warm_worker(monkeypatch: pytest.MonkeyPatch, flags: list[str], is_warm: bool) -> None:
    """A worker that multiprocessing spawns finds webdataset imported, nothing of the loader, and this very environment.

    Whatever the interpreter that asks was told to warn of and to write; told anything else, it gets what it asks for.
    """
    monkeypatch.setenv("FOREBAY_X", "y")
    monkeypatch.setattr(util, "_args_from_interpreter_flags", lambda: flags)
    with warm_workers(), multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_seen) == [is_warm, False, "y"]


def test_what_cannot_be_imported_fails_a_pool(tmp_path: Path) -> None:
    """Its workers are forked from a process that has tried to import it: half of it must not pass for a file without tests."""
    broken = tmp_path / "test_broken.py"
    broken.write_text("import nowhere\n\ndef test_nothing() -> None: ...\n")
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests/test_wiring.py", str(broken)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stdout
    assert "No module named 'nowhere'" in done.stdout
