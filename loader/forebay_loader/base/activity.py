"""What reading waits for now: a small record for each thread. The thread that waits for bytes writes it; the meter reads it from another.

A wait is two calls, which take a microsecond together, for each chunk or opening; a sample costs nothing. The cause may be known only after
the wait: before the headers of an answer arrive, nobody knows whether the sidecar or its origin takes the time. Such a wait begins as
``UNTOLD``. A later call says the cause of all such waits so far.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, List, Tuple

from forebay_proxy.wire.protocol.meter import CAUSE_INDEX, CAUSES

__all__ = ["DISK", "LEAST_WAIT_NS", "NOTHING", "ORIGIN", "PROXY", "UNTOLD", "Activities", "Activity", "activities", "here", "waited_ns"]

NOTHING, UNTOLD = -1, -2
ORIGIN, PROXY, DISK = (CAUSE_INDEX[name] for name in ("origin", "proxy", "disk"))
# Less is no wait: to copy a chunk of 256 KiB from the page cache, or from a socket's buffer, takes half as long.
LEAST_WAIT_NS = 100_000
_TOLD = 16  # known causes to keep for the meter, which samples a few times a second


class Activity:
    """What one thread waits for: a cause's index, ``NOTHING`` or ``UNTOLD``; since when (``CLOCK_MONOTONIC``, ns); and for which shard.

    ``at`` is the byte of the shard that it has reached. ``waited`` is reader wait in ns by cause. ``number`` counts the waits. ``told``
    holds pairs (number, cause): untold waits up to that number had that cause.
    """

    __slots__ = ("_untold_ns", "at", "cause", "number", "shard", "since_ns", "told", "waited")

    def __init__(self) -> None:
        self.cause = NOTHING
        self.since_ns = 0
        self.shard = ""
        self.at = 0
        self.number = 0
        self.waited: List[int] = [0] * len(CAUSES)
        self.told: Deque[Tuple[int, int]] = deque(maxlen=_TOLD)
        self._untold_ns = 0

    def wait(self, cause: int, shard: str, at: int) -> None:
        """A wait begins. It ends the previous one."""
        if self.cause != NOTHING:
            self.over()
        self.shard = shard
        self.at = at
        self.number += 1
        self.since_ns = time.monotonic_ns()
        self.cause = cause  # last, so that the meter sees a complete wait or none

    def over(self) -> None:
        """The wait is over, for any reason."""
        cause, self.cause = self.cause, NOTHING
        if cause == NOTHING:
            return
        waited_ns = time.monotonic_ns() - self.since_ns
        if cause == UNTOLD:
            self._untold_ns += waited_ns
        elif waited_ns >= LEAST_WAIT_NS and cause >= 0:
            self.waited[cause] += waited_ns

    def tell(self, cause: int) -> None:
        """Set the cause of the waits that began as ``UNTOLD``."""
        waited_ns, self._untold_ns = self._untold_ns, 0
        if waited_ns >= LEAST_WAIT_NS:
            self.waited[cause] += waited_ns
        self.told.append((self.number, cause))


class Activities:
    """The records of this process, by thread. If a new thread has the id of an ended one, it continues that record."""

    def __init__(self) -> None:
        self.by_thread: Dict[int, Activity] = {}
        self.on_first: List[Callable[[], None]] = []  # called when a thread of this process reads for the first time

    def __repr__(self) -> str:
        return f"<Activities of {len(self.by_thread)} threads>"

    def renew(self) -> None:
        """In a forked child: nothing was read yet."""
        self.by_thread = {}

    def first(self) -> Activity:
        """Create the record of this thread."""
        found = self.by_thread[threading.get_ident()] = Activity()
        for begun in tuple(self.on_first):
            begun()
        return found


activities = Activities()
os.register_at_fork(after_in_child=activities.renew)


def here(_thread: Callable[[], int] = threading.get_ident) -> Activity:
    """This thread's record."""
    return activities.by_thread.get(_thread()) or activities.first()


def waited_ns() -> List[int]:
    """Reader wait of this process in ns, by the causes' indexes."""
    records = tuple(activities.by_thread.values())
    return [sum(one.waited[cause] for one in records) for cause in range(len(CAUSES))]
