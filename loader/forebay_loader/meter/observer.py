"""A thread that looks, six times a second, at what another thread of its process does, and books the time since in the process's page.

It books by what it finds at the end of each step. Code that keeps the interpreter's lock (a decoder in C) is met when it lets go, in the
frame that called it, however long that took: so all of its time is booked on it. Two moments are known exactly, and divide a step: when a
batch was made, and since when a wait lasts. Until a batch was made, work was done for whoever waits for it: where the thread was met idle
before, that is booked on the work that was met last. A wait whose cause is not known yet is booked when it is told, or after ``UNTOLD_S``.

It waits for nothing but time and holds no lock, so a process may fork or end at any moment: a fork's child has no such thread, and begins
its own where it reads; a daemon's end is its process's.
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

STEP_S = 0.16  # on average; a look takes the thread that is looked at about as much of a processor as it takes itself
FIRST_STEP_S = 0.04  # so that a short training has looks enough, too
FIRST_LOOKS = 150
BOOK_NS = 200_000_000  # whoever waits for the page asks four times a second
SUMS_NS = 1_000_000_000  # counts are for people, who look less often
UNTOLD_S = 4.0  # by then a reader has asked whether the sidecar turns at all (``Limits.look_s``)
STUCK_S = 10.0  # nothing was read or made for so long: the page tells the stack
_IDLE, _READ, _COLLATE, _OTHER = (CAUSE_INDEX[name] for name in ("transfer", "read", "collate", "other"))
_CALLS = {CAUSE_INDEX[name]: name for name in ("decode", "map", "collate")}  # what calls functions of others
_LOOKS = 64  # ten seconds of them
_MOST_KEPT = 4096  # spans that wait to be told: minutes of steps
_Kept = Tuple[int, int, int]  # end (ns), cause or UNTOLD, number of the untold wait


class MadeBatches:
    """How many batches this process has made, when the last ones, and when it began to collate the last one, in ns."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.batches = 0
        self.begun_ns = 0
        self.unseen: Deque[int] = deque(maxlen=64)  # the observer takes them out

    def add(self) -> None:
        self.unseen.append(time.monotonic_ns())
        self.batches += 1


MADE = MadeBatches()
os.register_at_fork(after_in_child=MADE.renew)


class Observer:
    """Looks at the thread ``target()`` (None: at nothing, while the process does nothing for a loader) and writes ``page``."""

    def __init__(self, page: PageWriter, target: Callable[[], Optional[int]], *, now_ns: int) -> None:
        self._page = page
        self._target = target
        self._last_ns = now_ns
        self._cause = self._worked = _OTHER
        self._since_ns = now_ns
        self._kept: Deque[_Kept] = deque()
        self._functions: Deque[Tuple[str, str]] = deque(maxlen=_LOOKS)  # cause, and what it called
        self._moved: Tuple[int, ...] = ()
        self._moved_ns = now_ns
        self._summed_ns = now_ns - SUMS_NS
        self._booked_ns = now_ns
        self._ended = False

    def start(self) -> None:
        """Raises ``RuntimeError`` where no thread can be started any more."""
        threading.Thread(target=self._run, args=(os.getpid(),), name="forebay-meter", daemon=True).start()

    def end(self) -> None:
        """It looks no more; what was counted until now is told."""
        self._ended = True
        now_ns = time.monotonic_ns()
        self._book(None, now_ns)
        self.sum_up(None, now_ns)

    def _run(self, pid: int) -> None:
        chance = random.Random(pid)  # noqa: S311  # steps of one length would meet batches of nearly that length always at the same place
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
            del frame  # it would keep what the function holds until the next look

    def _rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def look(self, frame: Optional[FrameType], activity: Optional[Activity], now_ns: int, due_ns: int = 0) -> None:
        """Note what the time until ``now_ns`` went for: ``frame`` is where the thread is, ``activity`` what its reading waits for.

        ``due_ns``: when the look was due; it is late where the thread kept the interpreter's lock.
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
        """What it does now, and since when where that is known exactly (else 0)."""
        cause = _OTHER if frame is None else cause_of(frame)
        if cause is None:
            return _OTHER, 0
        if cause >= 0:
            # A collation that has begun since the look was due let go of the lock, and did not keep it.
            return (self._worked if cause == _COLLATE and self._worked != _OTHER and MADE.begun_ns > due_ns else cause), 0
        asking = cause == ASKING
        waits = NOTHING if activity is None else activity.cause
        if activity is None or waits == NOTHING:
            return (PROXY if asking else _READ), 0
        if waits != UNTOLD and now_ns - activity.since_ns < LEAST_WAIT_NS:
            # A copy of what is here. It lets go of the lock: where that was kept when the look was due, it was for what came before.
            return (_READ if activity.since_ns <= due_ns or self._worked == _OTHER else self._worked), 0
        return waits, activity.since_ns

    def _keep(self, end_ns: int, cause: int, number: int) -> None:
        if end_ns > self._last_ns:
            self._kept.append((end_ns, cause, number))
            self._last_ns = end_ns

    def _book(self, activity: Optional[Activity], now_ns: int) -> None:
        """What is told by now goes into the page, in order."""
        told = tuple(activity.told) if activity is not None else ()
        spans = []
        while self._kept:
            end_ns, cause, number = self._kept[0]
            if cause == UNTOLD:
                found = next((cause for upto, cause in told if upto >= number), None)  # the first answer since
                if found is None and now_ns - end_ns < UNTOLD_S * 1e9 and len(self._kept) < _MOST_KEPT:
                    break
                cause = found if found is not None else PROXY if HUNG.for_s else ORIGIN
            spans.append((end_ns, cause))
            self._kept.popleft()
        self._page.book(spans, now_ns, ORIGIN if self._cause == UNTOLD else self._cause, self._since_ns)
        if now_ns - self._summed_ns >= SUMS_NS:
            self.sum_up(activity, now_ns)

    def sum_up(self, activity: Optional[Activity], now_ns: int) -> None:
        """Write the counts and sums too; again at the process's end, so that none is lost."""
        self._summed_ns = now_ns
        counts = COUNTS.snapshot()
        self._page.sums(
            waited_ns(),
            bytes=counts["bytes_proxy"] + counts["bytes_direct"],
            skipped=sum(map(counts.__getitem__, SKIPPED)),
            position=0 if activity is None else activity.at,
        )

    def _tell(self, frame: Optional[FrameType], activity: Optional[Activity], now_ns: int) -> None:
        """The texts: the shard that is read, and where the thread stands if nothing has moved for long."""
        shard = "" if activity is None else activity.shard
        moved = (MADE.batches, 0 if activity is None else activity.number)
        if moved != self._moved or self._cause == _IDLE:
            self._moved, self._moved_ns = moved, now_ns
        stuck = frame is not None and now_ns - self._moved_ns >= STUCK_S * 1e9
        function = Counter(self._functions).most_common(1)
        self._page.tell(shard, stack_of(frame) if stuck else "", "\t".join(function[0][0]) if function else "")


_COLLECTS_WITHIN = sys.version_info < (3, 11, 9)


def frame_of(thread: int) -> Optional[FrameType]:
    """Where ``thread`` is; None where it has ended.

    Before Python 3.11.9 the list of frames is made while the interpreter's list of threads is locked, and the garbage collector may run
    within: a finaliser that starts a thread, as that of torchdata's loader does, then waits for that lock for ever, and the whole process
    with it (python/cpython#106883). So nothing is collected meanwhile.
    """
    if not _COLLECTS_WITHIN or not gc.isenabled():
        return sys._current_frames().get(thread)
    frames: Dict[int, FrameType] = uncollected(sys._current_frames)
    return frames.get(thread)
