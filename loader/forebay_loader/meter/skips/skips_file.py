"""The file of skips: JSON lines of all processes of a run. ``FOREBAY_SKIPS_FILE`` names it; else it lies beside the run file.

A line is one ``write`` to a file that is only appended to, and shorter than a page, so that lines of several processes do not mix and a
process that is killed leaves none that is half. Nothing is kept open, and no thread is needed. The file is bounded: the first skips say
best what began to go wrong, so what comes once it is full is only counted. The file itself says so in its last line. Who begins one removes
the oldest of those that ended trainings have left.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import notice_once
from forebay_loader.base.shared_memory import training_pid
from forebay_loader.identity.reader_name import ensure_job
from forebay_loader.meter.page_files import PageName
from forebay_proxy.wire.protocol.runfile import private_directory, process_start_time, runtime_directory

__all__ = ["PREFIX", "SKIPS_FILE", "SUFFIX", "SkipsFile", "note_writer", "sweep"]

VARIABLE = "FOREBAY_SKIPS_FILE"
MOST_BYTES = 16 << 20  # some 50,000 skips
LINE_BYTES = 2048  # at most; below PIPE_BUF and below a page
_CUTS = (300, 100, 30)  # characters of a text in a line, tried in this order: those of one script take one byte each, of others six
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class SkipsFile:
    """The file of this process's run."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._full_pid = 0  # the process that said so in the file
        self._noted = 0, ""  # the process whose training is known to write which file

    @property
    def path(self) -> str:
        """Where it is, or would be."""
        named = os.environ.get(VARIABLE)
        return named or os.path.join(private_directory() or runtime_directory({}), f"{PREFIX}{ensure_job()}{SUFFIX}")

    def append(self, said: Mapping[str, Any]) -> bool:
        """Write one line; whether it was written. What is not is counted, and the first time said aloud. Never raises ``OSError``."""
        try:
            written = self._write(said)
        except OSError as error:
            notice_once("skips-file", f"{self.path} cannot be written ({error.strerror or error}): skips are counted, and not listed")
            written = False
        if not written:
            COUNTS.add("skips_unwritten")
        return written

    def _write(self, said: Mapping[str, Any]) -> bool:
        path, named = self.path, bool(os.environ.get(VARIABLE))
        if not named:
            with suppress(FileExistsError):  # another worker's first skip comes in the same moment
                os.mkdir(os.path.dirname(path), mode=0o700)
            self._note(path)
        descriptor = os.open(path, _FLAGS, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise PermissionError(f"{path} is no file")
            if not named and found.st_uid != os.getuid():
                raise PermissionError(f"{path} is another user's")
            if found.st_size + LINE_BYTES > self._most_bytes:
                self._say_full(descriptor, said)
                return False
            line = line_of(said)
            return os.write(descriptor, line) == len(line)
        finally:
            os.close(descriptor)

    def _note(self, path: str) -> None:
        """This training writes ``path``; if it is the first to do so, others may have to go."""
        if self._noted == (os.getpid(), path):
            return
        self._noted = os.getpid(), path
        note_writer(path)
        if not os.path.exists(path):
            sweep(os.path.dirname(path), keep=path)

    def _say_full(self, descriptor: int, said: Mapping[str, Any]) -> None:
        if self._full_pid == os.getpid():
            return
        self._full_pid = os.getpid()
        text = f"this file has {self._most_bytes >> 20} MiB, its bound: what process {self._full_pid} skips from here on is only counted"
        os.write(descriptor, line_of({"time": said.get("time"), "full": text}))
        notice_once("skips-file", f"{self.path}: {text}")


def line_of(said: Mapping[str, Any]) -> bytes:
    """One line of JSON, at most ``LINE_BYTES``: longer texts lose their middle."""
    line: Optional[bytes] = None
    for most in _CUTS:
        line = json.dumps({name: _cut(value, most) for name, value in said.items()}, separators=(", ", ": ")).encode() + b"\n"
        if len(line) <= LINE_BYTES:
            return line
    return json.dumps({"time": said.get("time"), "unsaid": "longer than a line"}).encode() + b"\n"


def _cut(value: Any, most: int) -> Any:
    """A shard is told from others by its end, an error by its beginning."""
    if not isinstance(value, str) or len(value) <= most:
        return value
    half = most // 2
    return f"{value[: most - half]}…{value[-half:]}"


SKIPS_FILE = SkipsFile()


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
