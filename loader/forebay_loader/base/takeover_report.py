"""Reports of taken-over processes to ``forebay run``: that a process reads through the sidecar, or why it does not.

Each report is one line of JSON, appended in one write to the file in ``FOREBAY_TAKEOVER_REPORT``. ``forebay run`` creates that private
file. There is no thread, no connection and no open file, so a killed process has already reported. Reasons contain no URL, since a URL may
hold a token.
"""

from __future__ import annotations

import json
import os
from typing import Optional

from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["REPORT", "VARIABLE", "Report"]

VARIABLE = "FOREBAY_TAKEOVER_REPORT"
MAX_REASONS = 16  # for each process; more would not make the summary clearer
MAX_REASON_CHARACTERS = 120


class Report:
    """What this process has already reported. A forked child reports again, since processes are counted."""

    def __init__(self) -> None:
        self._pid = 0
        self._said: set[str] = set()

    def taken(self) -> None:
        """Report that this process opens shards through the sidecar."""
        self._say("")

    def direct(self, why: str) -> None:
        """Report that this process opens shards without the sidecar, and why."""
        self._say(why[:MAX_REASON_CHARACTERS])

    def lost(self, why: str) -> None:
        """Report that a shard was opened without the sidecar after all. Written at once: an error there may end the process."""
        if self._pid == os.getpid() and "" in self._said:  # a process that reads in another way (``fb.WebDataset``) is not counted
            self.direct(why)

    def _say(self, why: str) -> None:
        if self._pid != os.getpid():
            self._pid, self._said = os.getpid(), set()
        if why in self._said or len(self._said) >= MAX_REASONS:
            return
        self._said.add(why)
        _append(os.environ.get(VARIABLE), {"process": f"{self._pid}.{process_start_time(self._pid)}", "direct": why})


def _append(path: Optional[str], said: dict[str, str]) -> None:
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:  # the run has ended
        return
    try:
        os.write(descriptor, json.dumps(said).encode() + b"\n")
    except OSError:
        pass  # a full disk must not end a training
    finally:
        os.close(descriptor)


REPORT = Report()
