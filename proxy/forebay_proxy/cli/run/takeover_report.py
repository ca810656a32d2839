"""Reads the reports of the processes of a ``forebay run``: how many read through the sidecar, how many without it, and why.

Each process appends lines to one private file in the run directory; ``forebay_loader.base.takeover_report`` writes them. The command may
write anything there. So the file is read up to a limit, and only counts and short texts are used. The end of the run removes the file; if
the run was killed, a later run does.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections import Counter
from pathlib import Path

from forebay_proxy.node.runfile import process_start_time

__all__ = ["VARIABLE", "TakeoverReport"]

VARIABLE = "FOREBAY_TAKEOVER_REPORT"
_PREFIX, _SUFFIX = "forebay-run-", ".takeover"
_MAX_BYTES = 4 << 20  # some 40,000 lines; beyond that, processes are not counted
_MAX_REASONS = 4  # the most frequent; a summary is one line
_MAX_REASON_CHARACTERS = 120


class TakeoverReport:
    """The report file of one run, from ``__enter__`` to ``__exit__``. If it cannot be created, nothing is counted and training goes on."""

    def __init__(self, directory: Path | None) -> None:
        self.path = directory and directory / f"{_PREFIX}{_process(os.getpid())}-{secrets.token_hex(4)}{_SUFFIX}"

    def __enter__(self) -> TakeoverReport:
        if self.path is not None:
            _sweep(self.path.parent)
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            except OSError:
                self.path = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()

    def variables(self) -> dict[str, str]:
        """The environment variable that tells the command's processes where to write."""
        return {VARIABLE: str(self.path)} if self.path is not None else {}

    def line(self, *, read: bool = False) -> str:
        """The summary in one line; "" if nothing could be counted. ``read``: the command has read something through the sidecar."""
        if self.path is None:
            return ""
        taken, direct, reasons = self._counted(self.path)
        if not taken and not direct:
            if read:
                return "all of it was read by forebay_loader's own classes, or from the sidecar's URLs: nothing had to be taken over"
            return f"{_processes(0)} taken over: none opened a shard by webdataset's openers"
        text = f"{_processes(taken)} taken over, {direct} went direct"
        if not reasons:
            return text
        often = [f"{reason} ({count})" for reason, count in reasons.most_common(_MAX_REASONS)]
        more = f"; {len(reasons) - _MAX_REASONS} reasons more" if len(reasons) > _MAX_REASONS else ""
        if not direct:
            text = f"{_processes(taken)} taken over, some shards went direct"
        elif sum(reasons.values()) > direct:
            text += " (shards of taken-over ones too)"
        return f"{text}: {'; '.join(often)}{more}"

    def _counted(self, path: Path) -> tuple[int, int, Counter[str]]:
        """Return (processes that read through the sidecar, processes that only read without it, reason -> number of processes)."""
        taken, direct, reasons, content = set[str](), set[str](), Counter[str](), b""
        with contextlib.suppress(OSError), open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            content = file.read(_MAX_BYTES)
        for line in content.splitlines():
            try:
                said = json.loads(line)
                process, why = str(said["process"]), " ".join(str(said["direct"]).split())[:_MAX_REASON_CHARACTERS]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # a process that was killed while it wrote
            (direct if why else taken).add(process)
            reasons.update([why] if why else [])
        return len(taken), len(direct - taken), reasons


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def _process(pid: int) -> str:
    """A name for a process that no later process has: its number and start time. Empty if there is no such process."""
    start = process_start_time(pid)
    return "" if start is None else f"{pid}.{start}"


def _sweep(directory: Path) -> None:
    """Remove the files of runs that were killed, even if another process now has their number."""
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        process = path.name[len(_PREFIX) :].partition("-")[0]
        pid = process.partition(".")[0]
        if pid.isascii() and pid.isdigit() and _process(int(pid)) != process:
            with contextlib.suppress(OSError):
                path.unlink()
