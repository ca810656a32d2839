"""Clips that wait to be kept: files in the folder ``spool``, one a clip, of bounded size together; and what is told between processes.

    times tried 1 | a line of JSON: what is to be done, and how many bytes follow | the clip's bytes, or none where the line has its URL

A file gets its name when it is whole. A power loss may tear it all the same: then the clip's bytes have another digest.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

__all__ = ["FillerLock", "Spool", "Waiting", "add_counts", "done", "held_bytes", "stopped", "take_counts", "tell_stopped"]

_ENDS = ".clip"
_MOST_TRIES = 3  # a clip that ends the process that decodes it is not given to another one for ever
_COUNTS = struct.Struct("=2q")
_PART_S = 60.0
_STOPPED_S = 600.0  # then it is tried again: somebody may have made room


class Waiting(NamedTuple):
    """A clip that waits. ``told``: what its line says."""

    path: str
    told: Dict[str, Any]
    data: bytes


class Spool:
    """Of the store in ``folder``; at most ``most_bytes`` wait."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self._folder = os.path.join(folder, "spool")
        self._most = most_bytes
        os.makedirs(self._folder, mode=0o700, exist_ok=True)

    def has(self, key: bytes) -> bool:
        """Whether the clip of ``key`` waits."""
        return os.path.exists(self._path(key))

    def waits(self) -> bool:
        """Whether any clip does."""
        return any(path.endswith(_ENDS) for _, path, _ in self._files())

    def offer(self, key: bytes, told: Dict[str, Any], data: Any) -> bool:
        """Let the clip wait; whether there was room, and nobody else was just there. Waits some ms at most. Raises ``OSError``."""
        head = b"0" + json.dumps({**told, "bytes": len(data)}).encode() + b"\n"
        path = self._path(key)
        with _locked(f"{self._folder}.lock") as mine:
            if not mine:
                return False
            there = sum(size for _, _, size in self._files())
            if there + len(head) + len(data) > self._most:
                return False
            part = f"{path}.part"
            try:
                with open(part, "wb") as file:
                    file.write(head)
                    file.write(data)
                os.rename(part, path)
            except OSError:
                with suppress(OSError):
                    os.unlink(part)
                raise
        return True

    def next(self) -> Tuple[Optional[Waiting], int]:
        """The oldest that waits, and how many were dropped on the way to it: torn ones, and those that were tried too often."""
        dropped = 0
        for written_ns, path, _ in sorted(self._files()):
            if not path.endswith(_ENDS):
                if time.time() - written_ns / 1e9 > _PART_S:
                    done(path)  # its writer was killed
                continue
            found = _read(path)
            if found is not None:
                return found, dropped
            dropped += 1
            done(path)
        return None, dropped

    def clear(self) -> int:
        """Drop all that waits; how many these were."""
        paths = [path for _, path, _ in self._files() if path.endswith(_ENDS)]
        for path in paths:
            done(path)
        return len(paths)

    def _path(self, key: bytes) -> str:
        return os.path.join(self._folder, f"{key.hex()}{_ENDS}")

    def _files(self) -> Iterator[Tuple[int, str, int]]:
        """Of each: when it was written, its path, its bytes. Parts of killed writers count too, until they are written anew."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    state = entry.stat()
                    yield state.st_mtime_ns, entry.path, state.st_size


def held_bytes(folder: str) -> int:
    """What the folder takes on the disk, with what waits in it. Raises ``OSError`` where it is not there."""
    found = 0
    for path in (folder, os.path.join(folder, "spool")):
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found += 512 * entry.stat(follow_symlinks=False).st_blocks
    return found


def _read(path: str) -> Optional[Waiting]:
    """None for a file that is torn, or was tried too often; it counts that it is tried."""
    with open(path, "r+b") as file:
        tries = file.read(1)
        line, data = file.readline(), file.read()
        if not tries.isdigit() or int(tries) >= _MOST_TRIES:
            return None
        try:
            told = json.loads(line)
            whole = len(data) == told["bytes"]
        except (ValueError, TypeError, KeyError):
            return None
        if not whole:
            return None
        state = os.fstat(file.fileno())
        os.pwrite(file.fileno(), b"%d" % (int(tries) + 1), 0)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # its place in the queue
    return Waiting(path, told, data)


def done(path: str) -> None:
    """It waits no longer."""
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def _locked(path: str, tries: int = 5) -> Iterator[bool]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        mine = False
        for left in reversed(range(tries)):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
                break
            if left:
                time.sleep(0.001)
        yield mine
    finally:
        os.close(file)


class FillerLock:
    """Who fills holds ``filler.lock``. It goes to the process that is started as an open file, so there is no moment without an owner."""

    def __init__(self, folder: str) -> None:
        self.file = os.open(os.path.join(folder, "filler.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def taken(self) -> bool:
        """Whether it is ours now."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self.file)


# What the process that fills has to say, and no pipe leads from it to all who train: clips kept and dropped that nobody has counted yet.
def add_counts(folder: str, kept: int, dropped: int) -> None:
    """By the process that fills. Raises ``OSError``."""
    if kept or dropped:
        with _locked(os.path.join(folder, "counts"), 1000) as mine, open(os.path.join(folder, "counts"), "r+b", 0) as file:
            if mine:
                before = _counts_in(file.read())
                os.pwrite(file.fileno(), _COUNTS.pack(before[0] + kept, before[1] + dropped), 0)


def take_counts(folder: str) -> Tuple[int, int]:
    """By one process that trains: what it takes, no other gets. Raises ``OSError``."""
    path = os.path.join(folder, "counts")
    if not os.path.exists(path):
        return 0, 0
    with _locked(path, 1) as mine, open(path, "r+b", 0) as file:
        found = _counts_in(file.read()) if mine else (0, 0)
        if any(found):
            os.pwrite(file.fileno(), _COUNTS.pack(0, 0), 0)
    return found


def _counts_in(data: bytes) -> Tuple[int, int]:
    kept, dropped = _COUNTS.unpack(data) if len(data) == _COUNTS.size else (0, 0)
    return kept, dropped


def tell_stopped(folder: str, why: str) -> None:
    """For some minutes nothing is to be queued. Raises ``OSError``."""
    path = os.path.join(folder, "stopped")
    with suppress(OSError), open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(why)  # on a full disk an empty file says it, too
    os.rename(f"{path}.part", path)


def stopped(folder: str) -> str:
    """Why nothing is queued now; "" where it is."""
    path = os.path.join(folder, "stopped")
    try:
        if time.time() - os.stat(path).st_mtime > _STOPPED_S:
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read() or "cannot be written, perhaps since its disk is full: nothing is added"
    except OSError:
        return ""
