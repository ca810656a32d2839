"""How many bytes a cache directory takes, looked at every 50 ms by a process of its own.

Counted are the allocated bytes of everything under the directory and of files that are unlinked but still open in the sidecar; each inode
once. A walk is not atomic (a file may leave behind it while another one arrives before it), so a sample is the least of three walks.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Sampled", "sampling"]

EVERY_S = 0.05
_WALKS = 3


@dataclass
class Sampled:
    """What the sampler saw; filled in when it has ended."""

    samples: int = 0
    peak_bytes: int = 0
    longest_gap_s: float = 0.0
    unlinked_bytes: int = 0  # the most that was unlinked but open at any one time
    least_free_bytes: int = 2**63  # of its file system


@contextmanager
def sampling(directory: Path, pid: int) -> Iterator[Sampled]:
    """Sample ``directory`` and the open files of ``pid`` for the length of the ``with``; at least two samples, its first and its last."""
    seen = Sampled()
    command = [sys.executable, "-S", __file__, str(directory), str(pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sampling\n"
        yield seen
        output, _ = process.communicate(timeout=240)
    vars(seen).update(json.loads(output))


def used_bytes(directory: str, pid: int) -> tuple[int, int]:
    """(allocated bytes in one walk, those of them that are unlinked but open)."""
    found: dict[tuple[int, int], int] = {}
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                state = os.lstat(os.path.join(folder, name))
                found[state.st_dev, state.st_ino] = state.st_blocks * 512
    unlinked = {inode: count for inode, count in _unlinked(directory, pid) if inode not in found}
    return sum(found.values()) + sum(unlinked.values()), sum(unlinked.values())


def _unlinked(directory: str, pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    with suppress(FileNotFoundError):
        device = os.stat(directory).st_dev
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                link = f"/proc/{pid}/fd/{name}"
                target = os.readlink(link)
                if target.endswith(" (deleted)") and os.stat(link).st_dev == device:  # its path may be another in its namespace
                    state = os.stat(link)
                    yield (state.st_dev, state.st_ino), state.st_blocks * 512


def _run(directory: str, pid: int) -> None:
    seen, ended, before = Sampled(), False, time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while not ended:
            ended = bool(selector.select(max(0.0, EVERY_S - (time.monotonic() - before)) if seen.samples else 0.0))
            now = time.monotonic()
            seen.longest_gap_s, before = max(seen.longest_gap_s, now - before), now
            total, unlinked = used_bytes(directory, pid)
            if total > seen.peak_bytes:
                total, unlinked = min((total, unlinked), *(used_bytes(directory, pid) for _ in range(_WALKS - 1)))
            with suppress(FileNotFoundError):  # a test may remove it
                disk = os.statvfs(directory)
                seen.least_free_bytes = min(seen.least_free_bytes, disk.f_bavail * disk.f_frsize)
            seen.samples += 1
            seen.peak_bytes = max(seen.peak_bytes, total)
            seen.unlinked_bytes = max(seen.unlinked_bytes, unlinked)
            if seen.samples == 1:
                print("sampling", flush=True)
    print(json.dumps(vars(seen)))


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]))
