"""How many files of skips stay: those of living trainings, and of ended ones the newest, within a bound.

They lie in memory as often as not (``/run/user``). A file says nothing of whether its job lives, and the workers that write it come and
go; so beside it stands a small one with the training processes that have written, by pid namespace, pid and start time. Whose process
cannot be looked up from here, or was never noted, counts as living for a day after the last line.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import Iterator, List, NamedTuple

from forebay_loader.base.shared_memory import training_pid
from forebay_loader.meter.page_files import PageName
from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["PREFIX", "SUFFIX", "note_writer", "sweep"]

PREFIX, SUFFIX = "forebay-skips-", ".jsonl"
WRITERS = ".writers"  # behind the name of a file
KEPT_FILES, KEPT_BYTES = 32, 64 << 20  # of ended trainings
UNKNOWN_S = 24 * 3600.0
_MOST_NOTED = 1 << 16  # bytes of processes
_MOST_SWEPT = 4096
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class _LeftFile(NamedTuple):
    path: str
    bytes: int
    changed_s: float


def note_writer(path: str) -> None:
    """The training of this process writes ``path``: it stays while that lives. Raises ``OSError``."""
    name = PageName.of(training_pid())
    if name is None:
        return
    noted = path + WRITERS
    line = f"{name.namespace} {name.pid} {name.start_time}\n".encode()
    descriptor = os.open(noted, _FLAGS, 0o600)
    try:
        if line not in _noted(noted) and os.fstat(descriptor).st_size < _MOST_NOTED:
            os.write(descriptor, line)
    finally:
        os.close(descriptor)


def sweep(directory: str, *, keep: str = "", kept_files: int = KEPT_FILES, kept_bytes: int = KEPT_BYTES) -> None:
    """Remove the files of ended trainings, the oldest first, until the rest is within the bound; ``keep`` stays.

    Never raises ``OSError``.
    """
    ended = sorted((file for file in _files(directory) if file.path != keep and _has_ended(file)), key=lambda file: -file.changed_s)
    files = held = 0
    for file in ended:
        files, held = files + 1, held + file.bytes
        if files > kept_files or held > kept_bytes:
            for path in (file.path, file.path + WRITERS):
                with suppress(OSError):
                    os.unlink(path)


def _files(directory: str) -> Iterator[_LeftFile]:
    """Of this user's."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in [each for each in names if each.startswith(PREFIX) and each.endswith(SUFFIX)][:_MOST_SWEPT]:
        path = os.path.join(directory, name)
        with suppress(OSError):
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
                yield _LeftFile(path, found.st_size, found.st_mtime)


def _has_ended(file: _LeftFile) -> bool:
    writers = [PageName(*map(int, line.split())) for line in _noted(file.path + WRITERS) if _is_whole(line)]
    here = _namespace()
    if any(one.namespace == here and process_start_time(one.pid) == one.start_time for one in writers):
        return False
    known = bool(writers) and all(one.namespace == here for one in writers)
    return known or time.time() - file.changed_s > UNKNOWN_S


def _noted(path: str) -> List[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    with open(descriptor, "rb") as file:
        return file.read(_MOST_NOTED).splitlines(keepends=True)


def _is_whole(line: bytes) -> bool:
    return line.endswith(b"\n") and len(line.split()) == 3 and all(part.isdigit() for part in line.split())


def _namespace() -> int:
    own = PageName.of(os.getpid())
    return -1 if own is None else own.namespace
