"""The file of skips: JSON lines of all processes of a run. ``FOREBAY_SKIPS_FILE`` names it; by default it is beside the run file.

A line is one ``write`` in append mode, shorter than a page. So lines of several processes do not mix, and a killed process leaves no half
line. There is no open file and no thread. The size is limited: the first skips show best what went wrong. Later ones are only counted, and
the last line says so. The process that creates a file removes old ones.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import time
from contextlib import suppress
from typing import Any, Mapping, Optional

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.notices import notice_once
from forebay_loader.identity.reader_name import ensure_job
from forebay_proxy.wire.protocol.runfile import private_directory, runtime_directory

__all__ = ["SKIPS_FILE", "SkipsFile", "sweep"]

VARIABLE = "FOREBAY_SKIPS_FILE"
MOST_BYTES = 16 << 20  # some 50,000 skips
LINE_BYTES = 2048  # at most; below PIPE_BUF and below a page
PREFIX, SUFFIX = "forebay-skips-", ".jsonl"
KEPT_FILES, KEPT_BYTES, KEPT_S = 32, 64 << 20, 24 * 3600.0
_CUTS = (300, 100, 30)  # characters kept of a text, tried in this order: a character takes one to six bytes
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class SkipsFile:
    """The file of this process's run."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._full_pid = 0  # the process that has written that the file is full

    @property
    def path(self) -> str:
        """Where the file is, or would be."""
        named = os.environ.get(VARIABLE)
        return named or os.path.join(private_directory() or runtime_directory({}), f"{PREFIX}{ensure_job()}{SUFFIX}")

    def append(self, said: Mapping[str, Any]) -> bool:
        """Write one line. Returns whether it was written; if not, it is counted, and the first time logged. Never raises ``OSError``."""
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
            with suppress(FileExistsError):  # another worker has its first skip at the same moment
                os.mkdir(os.path.dirname(path), mode=0o700)
            if not os.path.exists(path):
                sweep(os.path.dirname(path), keep=path)
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

    def _say_full(self, descriptor: int, said: Mapping[str, Any]) -> None:
        if self._full_pid == os.getpid():
            return
        self._full_pid = os.getpid()
        text = f"this file has {self._most_bytes >> 20} MiB, its bound: what process {self._full_pid} skips from here on is only counted"
        os.write(descriptor, line_of({"time": said.get("time"), "full": text}))
        notice_once("skips-file", f"{self.path}: {text}")


def line_of(said: Mapping[str, Any]) -> bytes:
    """One line of JSON, at most ``LINE_BYTES``: long texts lose their middle."""
    line: Optional[bytes] = None
    for most in _CUTS:
        line = json.dumps({name: _cut(value, most) for name, value in said.items()}, separators=(", ", ": ")).encode() + b"\n"
        if len(line) <= LINE_BYTES:
            return line
    return json.dumps({"time": said.get("time"), "unsaid": "longer than a line"}).encode() + b"\n"


def _cut(value: Any, most: int) -> Any:
    """Cut the middle: shards differ at their end, and errors at their beginning."""
    if not isinstance(value, str) or len(value) <= most:
        return value
    half = most // 2
    return f"{value[: most - half]}…{value[-half:]}"


def sweep(directory: str, *, keep: str = "") -> None:
    """Remove files that no run has written to for a day, the oldest first, until the rest is within the limits. ``keep`` stays.

    Never raises ``OSError``.
    """
    found = []
    for path in glob.glob(os.path.join(glob.escape(directory), f"{PREFIX}*{SUFFIX}")):
        with suppress(OSError):
            state = os.lstat(path)
            if stat.S_ISREG(state.st_mode) and state.st_uid == os.getuid():
                found.append((state.st_mtime, state.st_size, path))
    files = held = 0
    for written_s, size, path in sorted(found, reverse=True):
        files, held = files + 1, held + size
        if (files > KEPT_FILES or held > KEPT_BYTES) and path != keep and time.time() - written_s > KEPT_S:
            with suppress(OSError):
                os.unlink(path)


SKIPS_FILE = SkipsFile()
