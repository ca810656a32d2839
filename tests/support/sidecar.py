"""The real sidecar as a process of its own: started on a port the kernel picks, asked, killed, started again.

    with running(directory, "--cache-size", "200MB", allow=[origin.url]) as sidecar:
        sidecar.proxied("http://127.0.0.1:9/a.tar") ... sidecar.status() ... sidecar.kill()

Everything it writes lies under ``directory``: ``cache``, ``run`` (its run file) and ``sidecar.log``. Never a fixed port, never a sleep:
the one line it prints when it is ready is waited for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from support.verbs import FOREBAY, verb
from support.zygote import zygote

from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["FOREBAY", "Sidecar", "environment", "forebay", "running", "small_segments", "spawn", "start", "wait_until"]

T = TypeVar("T")

_FORKED: dict[Sequence[str], int | None] = {FOREBAY: None}  # the programs that need not be started, and the segments they have
STOP_S, ASK_S = 120, 120
SELDOM_S = 0.05  # between two questions, each of which is a request or more
DRAIN_S = "2"  # the default would wait for every reader a test leaves standing


def small_segments(size: int) -> tuple[str, ...]:
    """The same program with segments of ``size`` bytes: shards of many segments then cost nothing."""
    program = (sys.executable, "-P", "-c", f"from support.small_segments import main; main({size})")
    _FORKED[program] = size
    return program


_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Sidecar:
    """A running ``forebay serve``. ``ready`` is the line of JSON it printed; ``log`` holds its stderr."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    directory: Path
    log: Path

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def cache_dir(self) -> Path:
        return Path(self.ready["cache_dir"])

    def proxied(self, origin_url: str) -> str:
        """Where this sidecar serves what ``origin_url`` names."""
        return self.url + parse_origin_url(origin_url).proxy_path()

    def ask(self, path: str, body: bytes | None = None, method: str | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=body, method=method)
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            return bytes(answer.read())

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("/v1/status"))
        return found

    def shards(self) -> dict[str, dict[str, Any]]:
        """What is stored, by origin URL."""
        return {shard["shard"]: shard for shard in json.loads(self.ask("/v1/shards"))["shards"]}

    def wait_complete(self, count: int) -> None:
        """Until so many versions are here whole: a clean end keeps them. (``stored_bytes`` would count blocks of the disk, and what a
        reader was given may still be on its way there.)
        """
        wait_until(lambda: sum(shard["complete"] for shard in json.loads(self.ask("/v1/shards"))["shards"]) >= count)

    def plan(self, reader: str, shards: Sequence[str]) -> None:
        self.ask(f"/v1/plans/{reader}", json.dumps({"shards": list(shards)}).encode(), "PUT")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of ``name`` whose labels have these values."""
        total = 0.0
        for found in map(_SAMPLE.match, self.ask("/metrics").decode().splitlines()):
            if found and found[1] == name and labels.items() <= dict(_LABEL.findall(found[2] or "")).items():
                total += float(found[3])
        return total

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def terminate(self) -> int:
        """SIGTERM, and how it ended."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL: nothing of it runs any more, not even a ``finally``."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


def environment(directory: Path, **variables: str) -> dict[str, str]:
    """This environment with our sources importable, and home and run directory under ``directory``."""
    run = directory / "run"
    run.mkdir(mode=0o700, exist_ok=True)
    path = os.pathsep.join(path for path in sys.path if path)
    # Whoever wants no bytecode written would have every program here compile the whole sidecar again.
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, "PYTHONPATH": path, "XDG_RUNTIME_DIR": str(run), "HOME": str(directory), **variables}


def spawn(
    directory: Path,
    *flags: str,
    allow: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    cache: str = "cache",
    default_port: bool = False,
    program: Sequence[str] = FOREBAY,
    real: bool = False,
) -> subprocess.Popen[bytes]:
    """The process alone, which has not said yet that it is ready; ``start`` says what the arguments are."""
    words = ["serve", "--json", "--cache-dir", str(directory / cache), "--socket", "off", *(() if default_port else ("--port", "0"))]
    for origin in allow:
        words += ["--allow-origin", origin]
    words += flags
    variables = environment(directory, FOREBAY_DRAIN_TIMEOUT_S=DRAIN_S, **(environ or {}))
    real = real or bool(wrapper) or program not in _FORKED or "PYTHONPATH" in (environ or {})
    parent = None if real else zygote(variables)
    with (directory / "sidecar.log").open("ab") as errors:
        if parent is not None:
            return parent.start(
                words, variables, directory, segment_bytes=_FORKED[program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        return subprocess.Popen(
            [*wrapper, *program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=directory, env=variables
        )


def start(directory: Path, *flags: str, **how: Any) -> Sidecar:
    """Start one and wait until it is ready; AssertionError with its last words when it never is.

    A default of 64 GB is no size for a test, so name one in ``flags``. ``allow`` are loopback origins it may visit, ``environ`` is added to
    its environment, ``wrapper`` stands before its command line, ``cache`` is the cache directory below ``directory``. ``default_port``: not
    one the kernel picks. ``program``: another way to start it (``small_segments``). ``real``: a program of its own, never forked from one
    that has imported it (``support.zygote``); a test of what a start is says so.
    """
    process = spawn(directory, *flags, **how)
    assert process.stdout is not None
    line = process.stdout.readline()
    sidecar = Sidecar(process, json.loads(line) if line else {}, directory, directory / "sidecar.log")
    if not line:
        raise AssertionError(f"the sidecar ended with {sidecar.terminate()}: {sidecar.log_text()[-2000:]}")
    return sidecar


@contextmanager
def running(directory: Path, *flags: str, **how: Any) -> Iterator[Sidecar]:
    """``start`` for the length of a ``with``; afterwards it must have ended in good order, unless the test ended it itself."""
    sidecar = start(directory, *flags, **how)
    try:
        yield sidecar
    except BaseException:
        print(sidecar.log_text()[-4000:])
        sidecar.kill()
        raise
    if sidecar.process.poll() is None:
        code = sidecar.terminate()
        assert code == 0, (code, sidecar.log_text()[-2000:])
    else:
        sidecar.terminate()


def forebay(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``forebay ARGUMENTS`` to its end, in ``environment(directory)``."""
    done = verb(environment(directory, **variables), *arguments, directory=directory)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def wait_until(fact: Callable[[], T | None], within_s: float = 120, every_s: float = 0.01) -> T:
    """Ask until ``fact`` is true, for what no event of another process tells; its value. What takes long is asked less and less often."""
    end = time.monotonic() + within_s
    while not (found := fact()):
        assert time.monotonic() < end, f"not within {within_s:g} s: {fact}"
        time.sleep(every_s)
        every_s = max(every_s, min(1.2 * every_s, SELDOM_S))
    return found
