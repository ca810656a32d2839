"""Sidecars and other verbs without their imports: a process that has imported everything forks one for each test.

Of the processor time of a start and its end nine tenths are imports and what is collected of them, and a run of the tests has hundreds of
starts. What is forked here runs the same ``main`` as a program of its own would: its arguments, environment, directory and standard streams
are its own, no other file is open in it, and it is a child of the process that asked, which therefore waits for it, signals it and learns
its exit code as of any other.

What the fork has from its parent is what importing leaves behind. So it stands in only for a start whose environment differs in variables
that are read later (``_LATE``), and three things tell it: its command line and its environment in /proc, and a seed of hashes
that it shares with the others. A test of those, or of the start itself, starts the program (``support.sidecar.start(real=True)``).
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Zygote", "allow_zygotes", "close_zygotes", "zygote"]

_LATE = (  # what these begin with is read when the sidecar runs, not by its imports, nor by libraries when they are loaded
    "FOREBAY_", "AWS_", "HF_", "HUGGING_FACE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR", "NO_GCE_CHECK", "GOPEN_", "WDS_", "SLURM_",
    "TORCHELASTIC_", "XDG_RUNTIME_DIR", "HOME", "TMPDIR", "PYTEST_",
)  # fmt: skip
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PR_SET_CHILD_SUBREAPER = 36
_MOST = 1 << 17  # bytes of what is sent in one piece: an environment
_KEPT = 2  # parents at a time: one of the usual segments, one of those a test has made small
_ASK_S = 120.0


# What every test finds: tests/conftest.py takes the rest away, support.sidecar the last.
_USUAL = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT_") and name != "PYTHONDONTWRITEBYTECODE"}


def _is_late(name: str) -> bool:
    return name.startswith(_LATE) or name.lower() in _PROXIES


def _standing() -> tuple[Any, ...]:
    """What a program has from the process that starts it, and its environment does not tell: namespaces, users, umask, limits."""
    names = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    with open("/proc/thread-self/status", encoding="utf-8") as status:
        rights = tuple(
            line for line in status if line.startswith(("Uid:", "Gid:", "Groups:", "Umask:", "CapEff:", "CapBnd:", "NoNewPrivs:"))
        )
    limits = [resource.getrlimit(number) for number in range(resource.RLIMIT_NICE)]  # message queues are among them: the run's own mark
    return (*(os.readlink(f"/proc/thread-self/ns/{name}") for name in names), rights, *limits)


class Zygote:
    """The parent, which has imported the sidecar with segments of ``segment_bytes``. It ends when nobody holds its socket any more."""

    def __init__(self, segment_bytes: int | None, environ: Mapping[str, str]) -> None:
        # Not what one test adds: others come after it. HOME: an import that began to look there would be found out.
        self._environ = {**_USUAL, "PYTHONPATH": environ["PYTHONPATH"], "HOME": "/nonexistent"}
        self._stands = _standing()
        self._lock = threading.Lock()  # one fork at a time: who asks adopts
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ASK_S)
        with theirs:
            told = [str(theirs.fileno()), *([] if segment_bytes is None else [str(segment_bytes)])]
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, *told], env=self._environ, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def imported_for(self, environ: Mapping[str, str]) -> bool:
        """Whether a program with ``environ``, started here and now, would have imported the same and stand in the same place."""
        if self._stands != _standing():
            return False
        # Tests add folders of theirs to the one as they are collected; the other says what is written, not what is imported.
        names = (environ.keys() | self._environ.keys()) - {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
        return all(environ.get(name) == self._environ.get(name) for name in names if not _is_late(name))

    def start(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        directory: Path,
        *,
        stdin: int = subprocess.DEVNULL,
        stderr: Any,
        program: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """``forebay ARGUMENTS``, its stdout a pipe, as a child of this process; ``program`` is what it would start as a sidecar."""
        return _Forked(self, [[*arguments], [*program]], environ, directory, stdin, stderr)

    def fork(self, words: Sequence[Sequence[str]], environ: Mapping[str, str], directory: str, streams: Sequence[int]) -> int:
        """The process id of a new child of ours."""
        told = json.dumps([*words, dict(environ), directory]).encode()
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [told], list(streams))
                answer = self._socket.recv(64)
            finally:
                _adopt_orphans(False)
        assert answer, f"what forks sidecars has ended with {self._process.wait(_ASK_S)}"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(_ASK_S)


_zygotes: dict[int | None, Zygote] = {}
_allowed = False


def allow_zygotes() -> None:
    """In a run of tests, from now on; a benchmark measures the program itself."""
    global _allowed  # noqa: PLW0603
    _allowed = True


def zygote(segment_bytes: int | None, environ: Mapping[str, str]) -> Zygote | None:
    """One that may stand in for a start with ``environ``, or None."""
    if not _allowed:
        return None
    found = _zygotes.pop(segment_bytes, None) or Zygote(segment_bytes, environ)
    _zygotes[segment_bytes] = found
    while len(_zygotes) > _KEPT:
        _zygotes.pop(next(iter(_zygotes))).close()
    return found if found.imported_for(environ) else None


def close_zygotes() -> None:
    """Before anybody asks which processes are left."""
    while _zygotes:
        _zygotes.popitem()[1].close()


class _Forked(subprocess.Popen[bytes]):
    """A child that another process made for us, and all that a ``Popen`` can do with it."""

    def __init__(
        self, parent: Zygote, words: Sequence[Sequence[str]], environ: Mapping[str, str], directory: Path, stdin: int, stderr: Any
    ) -> None:
        self._parent, self._words = parent, words
        super().__init__(words[0], env=environ, cwd=directory, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)

    def _execute_child(self, *given: Any) -> None:
        _, _, _, _, _, directory, environ, _, _, _, *pipes = given
        stdin, _, _, stdout, _, stderr = pipes[:6]
        self.pid = self._parent.fork(self._words, environ, str(directory), [stdin, stdout, stderr])
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])


def _adopt_orphans(adopt: bool) -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0


# In the parent


def _wait_for_orders(orders: socket.socket) -> list[str]:
    """Fork for each order; return only in what was forked, as what was ordered: the program it starts as a sidecar, [] for its own."""
    while True:
        told, streams, *_ = socket.recv_fds(orders, _MOST, 3)
        if not told:
            os._exit(0)
        assert len(os.listdir("/proc/self/task")) == 1, "a thread would not be forked"
        child = _fork_orphan()
        if child is None:
            break
        orders.send(b"%d" % child)
        for each in streams:
            os.close(each)
    arguments, program, environ, directory = json.loads(told)
    for number, each in enumerate(streams):
        os.dup2(each, number)
    orders.detach()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[1:] = arguments
    return list(program)


def _fork_orphan() -> int | None:
    """The id of a grandchild whose parent has ended; None in the grandchild, once it has its new one."""
    read, write = os.pipe()
    between = os.fork()
    if between:
        os.close(write)
        with open(read, "rb") as said:
            child = int(said.read())
        os.waitpid(between, 0)
        return child
    between = os.getpid()
    child = os.fork()
    if child:
        os.write(write, b"%d" % child)
        os._exit(0)
    os.close(write)
    os.close(read)
    while os.getppid() == between:
        time.sleep(0.0005)
    return None


def _main() -> None:
    orders, *segment_bytes = map(int, sys.argv[1:])
    import forebay_proxy.core.segments  # noqa: PLC0415 -- others copy the size when they are imported

    if segment_bytes:
        (forebay_proxy.core.segments.SEGMENT_BYTES,) = segment_bytes
    import forebay_proxy.app.service  # noqa: PLC0415
    from forebay_proxy.cli.main import cli, main  # noqa: PLC0415
    from forebay_proxy.cli.seams import Seams  # noqa: PLC0415

    gc.collect()
    gc.freeze()  # a collection in a child would visit, and so copy, all that was imported
    try:
        program = _wait_for_orders(socket.socket(fileno=orders))
    except KeyboardInterrupt:  # which reaches the whole group; who asked is told by the end of the socket
        os._exit(0)
    try:
        if program:
            cli(obj=Seams(program=tuple(program)), prog_name="forebay")
        main()
    except SystemExit as ended:
        _end(int(ended.code or 0))


def _end(code: int) -> None:
    """As a program ends, threads and files in order, but for taking every module apart: so end those that multiprocessing forks."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
