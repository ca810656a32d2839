"""A program that was forked is one that was started: tests that use it test the program."""

import contextlib
import json
import multiprocessing
import os
import platform
import re
import signal
import subprocess
import sys
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest
from support import zygote as zygotes
from support.lengths import ordinarily
from support.sidecar import Sidecar, environment, running, small_segments, start, wait_until
from support.verbs import verb
from support.warm_python import python_program, warm_workers
from support.zygote import Zygote, zygote

from forebay_proxy.wire.protocol.version import VERSION

STARTED = ordinarily(1, of=2, what="programs that forked ones are compared with, of each sort")
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


@pytest.mark.parametrize(
    ("number", "real"),
    [(number, False) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT)]
    + [(number, True) for number in (signal.SIGINT, signal.SIGQUIT)][:STARTED],
)
def test_it_ends_as_a_program_does(tmp_path: Path, number: signal.Signals, real: bool) -> None:
    """By each signal with the code of a program, and then it is gone."""
    sidecar = start(tmp_path, "--cache-size", "100MB", real=real)
    assert sidecar._end(number) == (0 if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) else -number)
    assert not Path(f"/proc/{sidecar.process.pid}").exists()


def test_it_fails_as_a_program_does(tmp_path: Path) -> None:
    """What it says of a setting it cannot begin with, and the code."""
    said = []
    for real in (True, False):
        (place := tmp_path / str(real)).mkdir()
        with pytest.raises(AssertionError, match="ended with 2") as caught:
            start(place, "--cache-size", "nonsense", real=real)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_each_has_its_own_environment(tmp_path: Path) -> None:
    """What an earlier one was given is not there any more."""
    for environ, host in (({"FOREBAY_CACHE_SIZE": "70MB", "FOREBAY_HOST": "127.0.0.2"}, "127.0.0.2"), ({}, "127.0.0.1")):
        with running(tmp_path, environ={"FOREBAY_CACHE_SIZE": "90MB", **environ}, cache=host) as sidecar:
            assert is_forked(sidecar)
            assert host in sidecar.url
            assert sidecar.status()["cache"]["capacity_bytes"] == (70_000_000 if environ else 90_000_000)


@pytest.mark.parametrize("real", [False, True][:STARTED])
def test_segments_are_as_small_as_was_asked(tmp_path: Path, real: bool) -> None:
    """A shard of 300 kB is five segments of 64 KiB."""
    (shard := tmp_path / "a.tar").write_bytes(b"x" * 300_000)
    flags = ("--cache-size", "100MB", "--file-root", str(tmp_path))
    with running(tmp_path, *flags, program=small_segments(1 << 16), real=real) as sidecar:
        assert is_forked(sidecar) is not real
        sidecar.ask(f"/file{shard}")
        wait_until(lambda: [shard["segments"] for shard in sidecar.shards().values()] == [5])  # the last may be on its way to disk


def test_forks_are_cheap(tmp_path: Path) -> None:
    """Their parent is of huge pages, where the kernel gathers them; and at their end nothing is done for what was imported."""
    (told := tmp_path / "told.py").write_text(
        "import weakref\nleft = [each for each in weakref.finalize._registry.values() if each.atexit]\nprint(len(left))"
    )
    program = python_program([str(told)], environment(tmp_path), tmp_path, stdout=subprocess.PIPE, text=True)
    assert program.communicate(timeout=60)[0] == "0\n"
    (parent,) = (each for kind, each in zygotes._zygotes.items() if kind[0] == "python")
    memory = dict(line.split(":") for line in Path(f"/proc/{parent._process.pid}/smaps_rollup").read_text().splitlines()[1:])
    if tuple(map(int, platform.release().split(".")[:2])) >= (6, 1):
        assert int(memory["AnonHugePages"].split()[0]) > int(memory["Anonymous"].split()[0]) / 4


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "SSL_CERT_FILE", "LC_ALL", "AIOHTTP_NOSENDFILE"])
def test_what_imports_and_libraries_read_takes_a_start(tmp_path: Path, name: str) -> None:
    """Where such a variable differs, what was imported without it cannot stand in."""
    usual = environment(tmp_path)
    assert zygote(usual) is not None
    assert zygote({**usual, name: "another"}) is None


@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "PYTHONPATH"][:STARTED])
def test_another_environment_starts_the_program(tmp_path: Path, name: str) -> None:
    """As ``start`` is used: nobody has to think of it. And the next one is forked again."""
    value = {"PYTHONHASHSEED": "1", "PYTHONPATH": environment(tmp_path)["PYTHONPATH"]}[name]
    with running(tmp_path, "--cache-size", "100MB", environ={name: value}) as sidecar:
        assert not is_forked(sidecar)
    with running(tmp_path, "--cache-size", "100MB") as sidecar:
        assert is_forked(sidecar)


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


@pytest.mark.parametrize(
    ("words", "environ", "files", "why"),
    [
        ([["--version"]], {}, [1], "its parts are .'list', 'dict', 'str', 'list'."),
        ([["--version"], [], []], {"X": "x" * 150_000}, [1], "longer than 131072 bytes"),
        ([["--version"], [], []], {}, [1] * 65, "more than 64 files"),
    ],
    ids=["parts", "length", "files"],
)
def test_a_malformed_order_is_told_where_it_was_given(
    tmp_path: Path, words: list[list[str]], environ: dict[str, str], files: list[int], why: str
) -> None:
    """Nothing is forked, and the parent takes the next one."""
    usual = environment(tmp_path)
    parent = zygote(usual)
    assert parent is not None
    before = children()
    with pytest.raises(AssertionError, match=f"malformed order: .*{why}"):
        parent.fork(words, environ, str(tmp_path), dict(enumerate(files)))
    assert children() == before
    assert verb(usual, "--version", directory=tmp_path).returncode == 0


def children() -> set[str]:
    """The processes that are ours, and the warm parents' too."""
    mine = f"{os.getpid()}"
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
    return {name for name, parent in found.items() if parent == mine or found.get(parent) == mine}


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


def test_no_worker_is_warm_behind_it() -> None:
    """A spawned one has imported nothing."""
    with warm_workers():
        pass
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_seen)[0] is False


def test_a_worker_of_a_pool_has_been_forked(request: pytest.FixtureRequest) -> None:
    """From a process that had collected before; it has the environment of the one that asked."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("not in a pool of workers (-n)")
    assert Path("/proc/self/cmdline").read_bytes().split(b"\0")[3] == b"tests"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_a_worker_says_nothing_of_what_was_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is still held where PYTHONUNBUFFERED is not set: the pool would take it for the worker's answer."""
    monkeypatch.delitem(zygotes._USUAL, "PYTHONUNBUFFERED", raising=False)
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    parent = Zygote(("tests", str(tmp_path), "."))
    with parent.start(["-c", "print(1)"], os.environ, tmp_path, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.communicate()[0] == "1\n"
    parent.close()


def test_tests_that_leave_a_file_open_when_they_are_imported_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Workers would all have it, and write into whatever gets its number."""
    (tmp_path / "test_a.py").write_text("import os\nos.memfd_create('left')\n")
    parent = Zygote(("tests", str(tmp_path), "."))
    with pytest.raises(AssertionError, match="ended with 1"):
        parent.start(["-c", "pass"], os.environ, tmp_path)
    assert re.search(r"leaves open what all their workers would share: \d+ \(/memfd:left", capfd.readouterr().err)
    parent.close()
