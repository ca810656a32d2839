"""Programs without their imports: a process that has imported everything forks one for each test.

Of the processor time of a start and its end nine tenths are imports and what is collected of them, and a run of the tests has hundreds of
starts. What is forked here runs as a program of its own would: its arguments, environment, directory and standard streams are its own, no
other file is open in it, and it is a child of the process that asked, which therefore waits for it, signals it and learns its exit code as
of any other. There are parents of sidecars and other verbs (``zygote``) and of Python programs that import torch and webdataset
(``support.warm_python``); ``zygote_program.py`` is what runs in them.

A fork has the imported modules of its parent. So a fork stands in only for a start whose environment differs in variables that are read
later (``_LATE``), and three things tell the two apart: command line and environment in /proc, and the seed of hashes, which all
forks share. A test of those, or of the start itself, starts the program (``support.sidecar.start(real=True)``).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Zygote", "allow_zygotes", "close_zygotes", "fork_workers", "kept_zygote", "zygote"]

_LATE = (  # what these begin with is read when the sidecar runs, not by its imports, nor by libraries when they are loaded
    "FOREBAY_", "AWS_", "HF_", "HUGGING_FACE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR", "NO_GCE_CHECK", "GOPEN_", "WDS_", "SLURM_",
    "TORCHELASTIC_", "TORCHINDUCTOR_", "XDG_RUNTIME_DIR", "HOME", "TMPDIR", "PYTEST_", "COLUMNS",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "ACCELERATE_", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PR_SET_CHILD_SUBREAPER = 36
_PROGRAM = Path(__file__).with_name("zygote_program.py")
_KEPT = 2  # parents at a time: of sidecars, and of Python programs
_ASK_S = 600.0  # the first answer comes when all is imported, which may have to be compiled first


# What every test finds: tests/conftest.py takes the rest away, support.sidecar the last.
_USUAL: dict[str, str] = {}


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
    """The parent, which has imported what ``kind`` says (zygote_program.py). It ends when nobody holds its socket any more."""

    def __init__(self, kind: Sequence[str], **environ: str) -> None:
        # Not what one test adds: others come after it. HOME: an import that began to look there would be found out.
        self._environ = {**_USUAL, "HOME": "/nonexistent", **environ}
        self._stands, self._asker = _standing(), os.getpid()
        self._lock = threading.Lock()  # one fork at a time: who asks adopts
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ASK_S)
        with theirs:
            # a worker of tests hands its interpreter's flags on to the processes that it spawns, which are started without this one
            flags = [] if kind[0] == "tests" else ["-P"]
            command = [sys.executable, *flags, str(_PROGRAM), str(theirs.fileno()), *kind]
            self._process = subprocess.Popen(
                command, env=self._environ, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def imported_for(self, environ: Mapping[str, str]) -> bool:
        """Whether a program with ``environ``, started here and now, would have imported the same and stand in the same place."""
        if self._asker != os.getpid() or self._stands != _standing():
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
        program: Sequence[str] = (),
        segment_bytes: int | None = None,
        **streams: Any,
    ) -> subprocess.Popen[Any]:
        """A program with ``arguments``, as a child of this process. ``streams``: stdin, stdout, stderr and text of a ``Popen``.

        ``program``: of ``forebay``, what it would start as a sidecar, if not itself; ``segment_bytes``: what it cuts shards into, if not
        what the product does.
        """
        size = [] if segment_bytes is None else [str(segment_bytes)]
        return _Forked(self, [[*arguments], [*program], size], env=environ, cwd=directory, **streams)

    def fork(self, words: Sequence[Sequence[str]], environ: Mapping[str, str], directory: str, files: Mapping[int, int]) -> int:
        """The process id of a new child of ours, in which descriptor ``n`` is ``files[n]`` of this process, and no other is open."""
        told = json.dumps([*words, dict(environ), directory, list(files)]).encode()
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [told], list(files.values()))
                answer = self._socket.recv(1024)
            except ConnectionError:  # it ended before it had read that
                answer = b""
            finally:
                _adopt_orphans(False)
        assert answer, f"what forks programs has ended with {self._process.wait(_ASK_S)}"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(_ASK_S)


_zygotes: dict[tuple[str, ...], Zygote] = {}
_keeping = threading.Lock()  # tests start sidecars in threads
_allowed = False


def allow_zygotes() -> None:
    """In a run of tests, from now on, with the environment as it is; a benchmark measures the program itself."""
    global _allowed  # noqa: PLW0603
    _allowed = True
    _USUAL.clear()  # of the process that has imported this, and forked a worker of tests
    _USUAL.update(os.environ)
    for name in [name for name in _USUAL if name.startswith("SSL_CERT_") or name == "PYTHONDONTWRITEBYTECODE"]:
        del _USUAL[name]


def zygote(environ: Mapping[str, str]) -> Zygote | None:
    """One that may stand in for the start of a sidecar with ``environ``, or None."""
    if not _allowed:
        return None
    found = kept_zygote("forebay", PYTHONPATH=environ["PYTHONPATH"])
    return found if found.imported_for(environ) else None


def kept_zygote(*kind: str, **environ: str) -> Zygote:
    """The one of this kind; of several kinds, those that were asked for last are kept."""
    with _keeping:
        found = _zygotes.pop(kind, None) or Zygote(kind, **environ)
        _zygotes[kind] = found
        while len(_zygotes) > _KEPT:
            _zygotes.pop(next(iter(_zygotes))).close()
        return found


def close_zygotes() -> None:
    """Before anybody asks which processes are left."""
    while _zygotes:
        _zygotes.popitem()[1].close()


def fork_workers(config: pytest.Config) -> None:
    """Workers of xdist are forked from now on, from a process that has collected: imports would take each 8 s of a processor."""
    from execnet import gateway_io  # noqa: PLC0415 -- xdist's own, which other Pythons lack

    folder = config.invocation_params.dir
    kind = ("tests", str(folder), *config.args)
    home = {"HOME": os.environ["HOME"]} if "HOME" in os.environ else {}  # others of ours would find none there

    class Forked(gateway_io.Popen2IOMaster):
        def __init__(self, args: list[str], execmodel: Any) -> None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.popen = kept_zygote(*kind, **home).start(["-c", args[-1]], os.environ, Path(folder), **pipes)
            gateway_io.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    gateway_io.Popen2IOMaster = Forked


class _Forked(subprocess.Popen[Any]):
    """A child that another process made for us, and all that a ``Popen`` can do with it."""

    def __init__(self, parent: Zygote, words: Sequence[Sequence[str]], **how: Any) -> None:
        self._parent, self._words = parent, words
        super().__init__(words[0], **how)

    def _execute_child(self, *given: Any) -> None:
        _, _, _, _, _, directory, environ, _, _, _, *pipes = given
        stdin, _, _, stdout, _, stderr = pipes[:6]
        streams = {number: number if each == -1 else each for number, each in enumerate((stdin, stdout, stderr))}
        self.pid = self._parent.fork(self._words, environ, str(directory), streams)
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])


def _adopt_orphans(adopt: bool) -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0
