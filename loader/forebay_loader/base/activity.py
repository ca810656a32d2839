"""What reading does now: one small record for each thread, written by whoever waits for bytes, looked at by the meter from another thread.

A wait is two calls, a microsecond together, at each chunk or opening; nothing is done for a sample. Whose a wait was may be known only when
it is over: before an answer's headers nobody can tell whether the sidecar took its time or its origin did. Then it begins as ``UNTOLD``,
and a later call says what all such waits so far were.
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
# Less is no wait: a chunk of 256 KiB is copied out of the page cache, or out of a socket's buffer, in half of it.
LEAST_WAIT_NS = 100_000
_TOLD = 16  # answers that are kept for the meter, which looks a few times a second


class Activity:
    """What one thread waits for: the place of a cause, ``NOTHING`` or ``UNTOLD``; since when (``CLOCK_MONOTONIC``, ns); of which shard.

    ``at`` is the byte of the shard where it stands. ``waited`` is reader wait, ns by cause. ``number`` counts the waits, ``told`` holds
    pairs (number, cause): untold waits up to that number were of that cause.
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
        """A wait begins; one that was on is over."""
        if self.cause != NOTHING:
            self.over()
        self.shard = shard
        self.at = at
        self.number += 1
        self.since_ns = time.monotonic_ns()
        self.cause = cause  # last: who looks meanwhile sees a whole wait or none

    def over(self) -> None:
        """It is over, for whatever reason."""
        cause, self.cause = self.cause, NOTHING
        if cause == NOTHING:
            return
        waited_ns = time.monotonic_ns() - self.since_ns
        if cause == UNTOLD:
            self._untold_ns += waited_ns
        elif waited_ns >= LEAST_WAIT_NS and cause >= 0:
            self.waited[cause] += waited_ns

    def tell(self, cause: int) -> None:
        """What the waits were that began as ``UNTOLD``."""
        waited_ns, self._untold_ns = self._untold_ns, 0
        if waited_ns >= LEAST_WAIT_NS:
            self.waited[cause] += waited_ns
        self.told.append((self.number, cause))


class Activities:
    """The records of this process, by thread; a thread that has the number of an ended one goes on with its record."""

    def __init__(self) -> None:
        self.by_thread: Dict[int, Activity] = {}
        self.on_first: List[Callable[[], None]] = []  # called when a thread of this process reads for the first time

    def __repr__(self) -> str:
        return f"<Activities of {len(self.by_thread)} threads>"

    def renew(self) -> None:
        """In a forked child: it has read nothing."""
        self.by_thread = {}

    def first(self) -> Activity:
        """The record of a thread that had none."""
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
    """Reader wait of this process, by the causes' places."""
    records = tuple(activities.by_thread.values())
    return [sum(one.waited[cause] for one in records) for cause in range(len(CAUSES))]
