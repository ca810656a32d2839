"""The demo's processes, each ended by its own id: the origin, the sidecar, a trainer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["OriginProcess", "PartFailed", "Sidecar", "fetch_json", "run_trainer"]

START_S = 30.0  # a sidecar is up in about a second; thirty covers a machine that is busy with something else

# DataLoader workers hand tensors over through sockets that multiprocessing names itself, below TMPDIR. Where such a path is longer than an
# address of a Unix socket may be (108 bytes with its end, unix(7)), the worker prints so, its batch is lost, and its trainer waits.
SOCKET_PATH_BYTES = 107
SOCKET_NAME_BYTES = len("/pymp-12345678/listener-12345678")
SHORT_DIRECTORY = "/tmp"


class PartFailed(Exception):
    """A process of the demo did not start or did not answer; the message carries its last words."""


def fetch_json(url: str, timeout_s: float = 10.0) -> Any:
    # a handler without proxies: loopback must be reached directly whatever the environment says
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout_s) as answer:
        return json.load(answer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class OriginProcess:
    """``demo.serve_origin`` over a directory. It ends with its stdin, so it cannot outlive us."""

    def __init__(self, directory: Path, *, latency_ms: float, rate_mb: float) -> None:
        self.latency_ms, self.rate_mb = latency_ms, rate_mb
        command = [sys.executable, "-m", "demo.serve_origin", str(directory), "--with-parent"]
        command += ["--latency-ms", str(latency_ms), "--rate-mb", str(rate_mb)]
        beside = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])  # an example is run from any directory
        environ = {**os.environ, "PYTHONPATH": beside}
        self._process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> OriginProcess:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PartFailed("the simulated origin did not start")
        self.base: str = json.loads(line)["url"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def url(self, name: str) -> str:
        return f"{self.base}/{name}"

    def counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = fetch_json(f"{self.base}/-/counts")
        return counts

    def reset(self) -> None:
        fetch_json(f"{self.base}/-/reset")

    def cut_once(self, name: str, offset: int) -> None:
        fetch_json(f"{self.base}/-/cut?path={name}&offset={offset}")


def temporary(directory: Path) -> str:
    """Where a trainer puts its temporary files: the directory, or a short one where the names of its workers' sockets would not fit."""
    return str(directory) if len(os.fsencode(directory)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES else SHORT_DIRECTORY


@dataclass
class Sidecar:
    """A sidecar of the demo's own: fixed port, so that it can be killed and come back; its directory is the caller's to remove."""

    directory: Path
    cache_bytes: int
    allow_origins: Sequence[str] = ()
    file_roots: Sequence[Path] = ()
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sidecar:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--cache-dir", str(self.directory / "cache"), "--cache-size", str(self.cache_bytes)]
        options += [part for origin in self.allow_origins for part in ("--allow-origin", origin)]
        options += [part for root in self.file_roots for part in ("--file-root", str(root))]
        return [sys.executable, "-m", "forebay_proxy", "serve", *options]

    def environment(self) -> dict[str, str]:
        """For a trainer: our environment, pointed at this sidecar. Run files, and temporary files where they can, stay in our directory."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_") and name != "GOPEN_REWRITE"}
        return kept | {"FOREBAY_URL": self.url, "XDG_RUNTIME_DIR": str(self.directory), "TMPDIR": temporary(self.directory)}

    def start(self) -> None:
        """Start and wait until ``/readyz`` says so. Raises ``PartFailed`` with what the sidecar printed last."""
        environment = {name: value for name, value in self.environment().items() if name != "FOREBAY_URL"}
        with (self.directory / "sidecar.log").open("ab") as log:
            self._process = subprocess.Popen(self.command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise PartFailed(f"the sidecar did not start: {self._last_words()}")
            time.sleep(0.05)

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                return b" 200 " in probe.recv(64)
        except OSError:
            return False

    def _last_words(self) -> str:
        lines = (self.directory / "sidecar.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def kill(self) -> int:
        """``kill -9``: returns the process id it had."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGKILL)
        self._process.wait()
        return pid

    def stop(self) -> int | None:
        """Its exit code; None where it was never started."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = fetch_json(f"{self.url}/v1/status")
        return status


def run_trainer(
    urls: Sequence[str], *options: str, environment: Mapping[str, str], told: Callable[[dict[str, Any]], None] = lambda facts: None
) -> dict[str, Any]:
    """Run ``demo.train`` to its end and return its epoch; ``told`` hears its progress.

    Raises ``PartFailed`` when it ends without a result, with its last words.
    """
    command = [sys.executable, "-m", "demo.train", *options, "--", *urls]
    epoch: dict[str, Any] | None = None
    with (
        tempfile.TemporaryFile("w+") as noise,  # not a pipe: nobody would empty it while the results are read
        subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, stderr=noise, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                facts = json.loads(line)
                epoch = facts.get("epoch", epoch)
                told(facts)
        except BaseException:
            process.kill()  # interrupted: the trainer must not go on without us
            raise
        if epoch is None:
            noise.seek(0)
            raise PartFailed(f"the trainer ended without a result: {(noise.read().strip() or 'no words').splitlines()[-1]}")
    return epoch
