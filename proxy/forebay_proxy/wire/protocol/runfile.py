"""Where a node's sidecar says it lives: the run file, found and judged. Both sides read it; stdlib only.

The run file is 0600 in a directory of our own: ``$XDG_RUNTIME_DIR``, else ``/tmp/forebay-<uid>`` (0700). It is a hint, never an
authority: one whose process is gone, whose start time differs (the pid was used again), or which somebody else could have written
is treated as absent. An ``XDG_RUNTIME_DIR`` that is not ours alone (left over from ``sudo -E``) counts as unset.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, List, Mapping, Optional

__all__ = [
    "RUN_FILE_NAME", "is_private", "is_stopped", "own_bytes", "private_directory", "process_start_time", "read_run_file",
    "runtime_directory",
]  # fmt: skip

RUN_FILE_NAME = "forebay.json"
MAX_RUN_FILE_BYTES = 64 * 1024  # a few hundred bytes are normal; more is not ours


def runtime_directory(environ: Optional[Mapping[str, str]] = None) -> str:
    """The directory of the run file and the default sockets; it may not exist yet."""
    named = (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR", "")
    return named if os.path.isabs(named) else f"/tmp/forebay-{os.getuid()}"  # noqa: S108  # owner and mode are checked before use


def private_directory(environ: Optional[Mapping[str, str]] = None) -> Optional[str]:
    """The run directory if it exists, is ours and nobody else may write to it; None otherwise."""
    return next(filter(is_private, (runtime_directory(environ), runtime_directory({}))), None)


def is_private(directory: str) -> bool:
    """Whether it is there, ours, and nobody else may write to it."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def read_run_file(environ: Optional[Mapping[str, str]] = None) -> Optional[dict[str, Any]]:
    """What a live sidecar of this user wrote, or None. Never raises."""
    directory = private_directory(environ)
    try:
        described = json.loads(own_bytes(os.path.join(directory, RUN_FILE_NAME))) if directory else None
    except (OSError, ValueError):
        return None
    if not isinstance(described, dict):
        return None
    pid, start = described.get("pid"), described.get("start_time")
    return described if isinstance(pid, int) and pid > 0 and start is not None and process_start_time(pid) == start else None


def process_start_time(pid: int) -> Optional[int]:
    """Start of a process in clock ticks since boot (field 22 of ``/proc/<pid>/stat``); None when there is no such process.

    One that has ended and was not waited for is none: a container's first process often waits for nobody.
    """
    try:
        fields = _process_fields(pid)
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    try:
        return _process_fields(pid)[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def _process_fields(pid: int) -> List[bytes]:
    """What follows the name of the command, which stands in parentheses and may itself hold spaces and parentheses."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def own_bytes(path: str) -> bytes:
    """The content of a regular 0600 file of ours, or b"" for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        return file.read(MAX_RUN_FILE_BYTES) if private else b""
