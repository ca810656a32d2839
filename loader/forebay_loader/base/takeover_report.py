"""What a taken-over process tells the ``forebay run`` above it: that it reads through the sidecar, or why it does not.

One line of JSON each, appended in one write to the file that ``FOREBAY_TAKEOVER_REPORT`` names; the file was made by ``run``, is private,
and is only ever appended to. No thread, no connection, nothing kept open: a process that is killed has said what it said. Reasons hold no
URL: that may hold a token.
"""

from __future__ import annotations

import json
import os
from typing import Optional

from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["REPORT", "VARIABLE", "Report"]

VARIABLE = "FOREBAY_TAKEOVER_REPORT"
MAX_REASONS = 16  # a process; more would not make the summary clearer
MAX_REASON_CHARACTERS = 120


class Report:
    """What this process has said already; a forked child says it anew, since each process is counted."""

    def __init__(self) -> None:
        self._pid = 0
        self._said: set[str] = set()

    def taken(self) -> None:
        """This process opens shards through the sidecar."""
        self._say("")

    def direct(self, why: str) -> None:
        """This process opens shards past the sidecar."""
        self._say(why[:MAX_REASON_CHARACTERS])

    def lost(self, why: str) -> None:
        """A shard was opened past the sidecar after all. Told as it happens: an error there may be the end of the process."""
        if self._pid == os.getpid() and "" in self._said:  # one that reads otherwise (``fb.WebDataset``) is not counted at all
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
    except OSError:  # the run that asked has ended
        return
    try:
        os.write(descriptor, json.dumps(said).encode() + b"\n")
    except OSError:
        pass  # a full disk must not end a training
    finally:
        os.close(descriptor)


REPORT = Report()
