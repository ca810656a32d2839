"""The name of a process that no later one has: by pid namespace, pid and start time."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["PageName"]


class PageName(NamedTuple):
    """Of one process."""

    namespace: int
    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Optional[PageName]:
        """That of a process of this one's namespace; None where there is none, or no ``/proc``."""
        started = process_start_time(pid)
        return None if started is None else cls(_namespace(), pid, started)


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
