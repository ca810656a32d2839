"""A sampling profiler: a thread that looks about six times a second at what another thread of its process does.

The time since the last sample is booked on the cause it finds, in the process's page. Code that holds the interpreter's lock (a decoder in
C) delays the sample until it releases the lock. The sample then shows the frame that called it, so all of that time is booked on it.

Two moments are known exactly, and split the time between two samples: when a batch was made, and when a wait began. If the thread was idle
at the last sample but has made a batch since, that time is booked on the last known work. A wait whose cause is not known yet is booked
when its cause is known, or after ``UNTOLD_S``.

The thread only sleeps and holds no lock, so a process may fork or end at any moment. A forked child has no such thread, and starts its own
when it reads. The thread is a daemon, so it ends with the process.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections import Counter, deque
from itertools import count
from types import FrameType
from typing import Callable, Deque, Dict, Optional, Tuple

from forebay_loader.base.activity import LEAST_WAIT_NS, NOTHING, ORIGIN, PROXY, UNTOLD, Activity, activities, waited_ns
from forebay_loader.base.counters import COUNTS, SKIPPED
from forebay_loader.meter.frame_causes import ASKING, cause_of, function_of, stack_of, uncollected
from forebay_loader.meter.page import PageWriter
from forebay_loader.transport.hung_sidecar import HUNG
from forebay_proxy.wire.protocol.meter import CAUSE_INDEX

__all__ = ["MADE", "STEP_S", "Observer", "frame_of"]

STEP_S = 0.16  # on average; a sample costs the sampled thread about as much CPU time as this one
FIRST_STEP_S = 0.04  # so that a short training has enough samples too
FIRST_LOOKS = 150
BOOK_NS = 200_000_000  # the page is read a few times a second at most
SUMS_NS = 1_000_000_000  # counts are for people, who read them less often
UNTOLD_S = 4.0  # by then a reader has asked whether the sidecar is alive (``Limits.look_s``)
STUCK_S = 10.0  # after so long without a read or a batch, the page has the stack
_IDLE, _READ, _COLLATE, _OTHER = (CAUSE_INDEX[name] for name in ("transfer", "read", "collate", "other"))
_CALLS = {CAUSE_INDEX[name]: name for name in ("decode", "map", "collate")}  # stages that call the user's functions
_LOOKS = 64  # ten seconds of samples
_MOST_KEPT = 4096  # spans whose cause is not known yet: minutes of samples
_Kept = Tuple[int, int, int]  # end (ns), cause or UNTOLD, number of the wait


class MadeBatches:
    """How many batches this process has made, when the latest were made, and when it began to collate the last one, in ns."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.batches = 0
        self.begun_ns = 0
        self.unseen: Deque[int] = deque(maxlen=64)  # times of batches that the observer has not booked yet

    def add(self) -> None:
        self.unseen.append(time.monotonic_ns())
        self.batches += 1


MADE = MadeBatches()
os.register_at_fork(after_in_child=MADE.renew)


class Observer:
    """Samples the thread ``target()`` and writes ``page``. ``target()`` is None while the process does nothing for a loader."""

    def __init__(self, page: PageWriter, target: Callable[[], Optional[int]], *, now_ns: int) -> None:
        self._page = page
        self._target = target
        self._last_ns = now_ns
        self._cause = self._worked = _OTHER
        self._since_ns = now_ns
        self._kept: Deque[_Kept] = deque()
        self._functions: Deque[Tuple[str, str]] = deque(maxlen=_LOOKS)  # cause, and the function it called
        self._moved: Tuple[int, ...] = ()
        self._moved_ns = now_ns
        self._summed_ns = now_ns - SUMS_NS
        self._booked_ns = now_ns
        self._ended = False

    def start(self) -> None:
        """Start the thread. Raises ``RuntimeError`` if no thread can be started."""
        threading.Thread(target=self._run, args=(os.getpid(),), name="forebay-meter", daemon=True).start()

    def end(self) -> None:
        """Stop sampling, and write what was counted so far."""
        self._ended = True
        now_ns = time.monotonic_ns()
        self._book(None, now_ns)
        self.sum_up(None, now_ns)

    def _run(self, pid: int) -> None:
        chance = random.Random(pid)  # noqa: S311  # equal steps could meet batches of about that length always at the same point
        for number in count():
            step_s = (STEP_S if number >= FIRST_LOOKS else FIRST_STEP_S) * chance.uniform(0.5, 1.5)
            due_ns = time.monotonic_ns() + int(step_s * 1e9)
            self._rest(step_s)
            if self._ended:
                return
            thread = self._target()
            frame = None if thread is None else frame_of(thread)
            activity, now_ns = None if thread is None else activities.by_thread.get(thread), time.monotonic_ns()
            self.look(frame, activity, now_ns, due_ns)
            if now_ns - self._booked_ns >= BOOK_NS:
                self.book(frame, activity, now_ns)
            del frame  # otherwise the function's variables would live until the next sample

    def _rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def look(self, frame: Optional[FrameType], activity: Optional[Activity], now_ns: int, due_ns: int = 0) -> None:
        """Record the cause of the time until ``now_ns``. ``frame`` is where the thread is; ``activity`` is what its reading waits for.

        ``due_ns`` is when the sample was due. It is late if the thread held the interpreter's lock.
        """
        cause, since_ns = self._found(frame, activity, now_ns, due_ns or now_ns)
        number = activity.number if activity is not None else 0
        while MADE.unseen:
            self._keep(MADE.unseen.popleft(), self._worked if self._cause == _IDLE else self._cause, number)
        if since_ns > self._last_ns:
            self._keep(since_ns, self._cause, number)
        if cause != self._cause:
            self._cause, self._since_ns = cause, max(since_ns, self._last_ns)
        self._keep(now_ns, cause, number)
        if cause not in (_IDLE, UNTOLD):
            self._worked = cause
        if cause in _CALLS:
            self._functions.append((_CALLS[cause], function_of(frame)))

    def book(self, frame: Optional[FrameType], activity: Optional[Activity], now_ns: int) -> None:
        """Write the page."""
        self._booked_ns = now_ns
        self._book(activity, now_ns)
        self._tell(frame, activity, now_ns)

    def _found(self, frame: Optional[FrameType], activity: Optional[Activity], now_ns: int, due_ns: int) -> "tuple[int, int]":
        """The present cause, and since when in ns; 0 if the start is not known exactly."""
        cause = _OTHER if frame is None else cause_of(frame)
        if cause is None:
            return _OTHER, 0
        if cause >= 0:
            # A collation that began after the sample was due did not delay it: the work before it did.
            return (self._worked if cause == _COLLATE and self._worked != _OTHER and MADE.begun_ns > due_ns else cause), 0
        asking = cause == ASKING
        waits = NOTHING if activity is None else activity.cause
        if activity is None or waits == NOTHING:
            return (PROXY if asking else _READ), 0
        if waits != UNTOLD and now_ns - activity.since_ns < LEAST_WAIT_NS:
            # Bytes are copied from memory, which releases the lock. If the sample was late, the work before the copy held the lock.
            return (_READ if activity.since_ns <= due_ns or self._worked == _OTHER else self._worked), 0
        return waits, activity.since_ns

    def _keep(self, end_ns: int, cause: int, number: int) -> None:
        if end_ns > self._last_ns:
            self._kept.append((end_ns, cause, number))
            self._last_ns = end_ns

    def _book(self, activity: Optional[Activity], now_ns: int) -> None:
        """Write what is known by now into the page, in order."""
        told = tuple(activity.told) if activity is not None else ()
        spans = []
        while self._kept:
            end_ns, cause, number = self._kept[0]
            if cause == UNTOLD:
                found = next((cause for upto, cause in told if upto >= number), None)  # the first known cause since
                if found is None and now_ns - end_ns < UNTOLD_S * 1e9 and len(self._kept) < _MOST_KEPT:
                    break
                cause = found if found is not None else PROXY if HUNG.for_s else ORIGIN
            spans.append((end_ns, cause))
            self._kept.popleft()
        self._page.book(spans, now_ns, ORIGIN if self._cause == UNTOLD else self._cause, self._since_ns)
        if now_ns - self._summed_ns >= SUMS_NS:
            self.sum_up(activity, now_ns)

    def sum_up(self, activity: Optional[Activity], now_ns: int) -> None:
        """Write the counts and sums as well. Done again when the process ends, so that nothing is lost."""
        self._summed_ns = now_ns
        counts = COUNTS.snapshot()
        self._page.sums(
            waited_ns(),
            bytes=counts["bytes_proxy"] + counts["bytes_direct"],
            skipped=sum(map(counts.__getitem__, SKIPPED)),
            position=0 if activity is None else activity.at,
        )

    def _tell(self, frame: Optional[FrameType], activity: Optional[Activity], now_ns: int) -> None:
        """Write the texts: the shard that is read, and the stack if nothing has happened for long."""
        shard = "" if activity is None else activity.shard
        moved = (MADE.batches, 0 if activity is None else activity.number)
        if moved != self._moved or self._cause == _IDLE:
            self._moved, self._moved_ns = moved, now_ns
        stuck = frame is not None and now_ns - self._moved_ns >= STUCK_S * 1e9
        function = Counter(self._functions).most_common(1)
        self._page.tell(shard, stack_of(frame) if stuck else "", "\t".join(function[0][0]) if function else "")


_COLLECTS_WITHIN = sys.version_info < (3, 11, 9)


def frame_of(thread: int) -> Optional[FrameType]:
    """The frame of ``thread``; None if it has ended.

    Before Python 3.11.9, the interpreter locks its list of threads while it builds the list of frames, and the garbage collector may run
    meanwhile. If a finaliser then starts a thread, as torchdata's loader does, the process hangs for ever (python/cpython#106883). So the
    collector is off during the call.
    """
    if not _COLLECTS_WITHIN or not gc.isenabled():
        return sys._current_frames().get(thread)
    frames: Dict[int, FrameType] = uncollected(sys._current_frames)
    return frames.get(thread)
