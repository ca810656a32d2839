"""A thread of the training process that runs once a second: it reports to the sidecar, writes the log line, and runs the watchdog.

It starts with the first batch that is requested, and ends with the process. A forked child has none: a worker needs none, and a rank starts
its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from dataclasses import replace
from typing import Callable, Mapping, Optional, Tuple

from forebay_loader.base.notices import notice_once
from forebay_loader.identity.reader_name import ensure_job, rank_of
from forebay_loader.identity.world import in_worker
from forebay_loader.meter.clock.loader_pass import TrainerWait
from forebay_loader.meter.clock.stall_clock import CLOCK
from forebay_loader.meter.report.cores import CoreLooks
from forebay_loader.meter.report.line import log_line
from forebay_loader.meter.report.meter_client import MeterClient
from forebay_loader.meter.report.node_view import NodeSums
from forebay_loader.meter.report.own_totals import SLOWEST_S, Window, own_totals
from forebay_loader.meter.report.watchdog import Watchdog
from forebay_proxy.wire.protocol.meter import MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["LINE_S", "LOG", "THREAD", "WATCHDOG_S", "MeterThread", "MeterTicks", "line_s", "say", "watchdog_s"]

LOG = logging.getLogger("forebay.meter")
TICK_S = 1.0
END_S = 0.5
TELL_S = 10.0  # sums lose nothing between two reports; Prometheus scrapes every 15 to 60 s


class MeterTicks:
    """The work of the thread. ``totals`` and ``waiting`` are called at each tick. 0 for ``line_s`` or ``watchdog_s`` means never."""

    def __init__(
        self, totals: Callable[[], MeterBody], waiting: Callable[[], Optional[TrainerWait]], *, line_s: float, watchdog_s: float
    ) -> None:
        self._totals, self._waiting = totals, waiting
        self._line_s, self._tell_s = line_s, min(TELL_S, line_s or TELL_S)  # rank 0's line must have recent sums of other ranks
        self._watchdog = Watchdog(watchdog_s) if watchdog_s else None
        self._client, self._cores, self._cores_to_tell = MeterClient(), CoreLooks(), CoreLooks()
        self.idle_cores: Optional[float] = None  # in the last ten seconds
        self._told: Optional[MeterBody] = None
        self._warned: Tuple[Optional[int], Optional[int]] = None, None  # loader and step of the last warning
        self._tell_at_s = time.monotonic()
        self._line_at_s = time.monotonic() + line_s
        self._before = NodeSums({}), time.monotonic()  # sums and time of the previous line
        self._ended = threading.Event()

    def run(self) -> None:
        """Run until ``end``, then send the last totals."""
        self._cores.look()
        self._cores_to_tell.look()
        self._safely(self._begin_line)
        while not self._ended.wait(TICK_S):
            self._safely(self.look)
        self._safely(self.tell)
        if self._told is not None:
            self._safely(lambda: self._client.end(_name()))
        self._client.close()

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # an error in the meter must not end the training
            notice_once("meter", f"the meter failed ({type(error).__name__}: {error}); training is not touched by it")

    def look(self) -> None:
        """Do what is due now."""
        now_s, waiting = time.monotonic(), self._waiting()
        if self._watchdog is not None:
            said = self._watchdog.look(waiting, rank_of(os.environ))
            if said:
                say(logging.WARNING, said)
        if now_s >= self._tell_at_s:
            self._tell_at_s = now_s + self._tell_s
            self.tell(waits=waiting is not None)
            self._warn_of_ranks()
        if self._line_s and now_s >= self._line_at_s:
            self._line_at_s = now_s + self._line_s
            if rank_of(os.environ) == 0:
                self._write_line(now_s)

    def tell(self, *, waits: bool = False) -> None:
        """Send the totals to the sidecar if they have changed, or if the trainer waits for a batch: otherwise it
        would seem to have ended.
        """
        totals = self._totals()
        if totals != self._told or waits:
            cores = self._cores_to_tell.look()
            self.idle_cores = self.idle_cores if cores is None else cores.idle * cores.count
            totals = totals if cores is None else replace(totals, idle_cores=self.idle_cores)
            self._client.tell(_name(), totals)
            self._told = totals

    def _warn_of_ranks(self) -> None:
        """Warn if the sidecar says that this rank waits for one without further batches. Once for each step."""
        told = self._told
        if self._watchdog is None or told is None or (told.step_s or 0.0) < TELL_S or self._warned == (told.loader, told.loader_steps):
            return
        node = self._client.node(ensure_job())
        text = node.unequal.get(_name()) if node is not None else None
        if text:
            self._warned = told.loader, told.loader_steps
            say(logging.WARNING, text)

    def end(self) -> None:
        """Make ``run`` return soon."""
        self._ended.set()

    def _begin_line(self) -> None:
        """The first line must not include what the sidecar did before this process started."""
        if self._line_s and rank_of(os.environ) == 0:
            self._before = self._client.node(ensure_job()) or NodeSums({}), time.monotonic()

    def _write_line(self, now_s: float) -> None:
        cores, (before, before_s) = self._cores.look(), self._before
        node = self._sums().after(before)
        line = log_line(node.since(before, now_s - before_s), cores)
        if node.sidecar is not None or before.sidecar is None:
            self._before = node, now_s
        else:  # the next line includes this interval, of all ranks
            self._before = replace(before, skipped=node.skipped), before_s
        if line:
            say(logging.INFO, line)

    def _sums(self) -> NodeSums:
        """The sums of all ranks of the node, with this one's up to date. Only this rank's if no sidecar answers."""
        found, own = self._client.node(ensure_job()), {_name(): self._totals()}
        return NodeSums(own) if found is None else replace(found, ranks={**found.ranks, **own})


def say(level: int, text: str) -> None:
    """Log ``text``. If the program has set up no logging, write it to stderr: Python would drop messages below warning."""
    if LOG.hasHandlers():
        LOG.log(level, "forebay: %s", text)
    elif LOG.isEnabledFor(level) or LOG.level == logging.NOTSET:
        sys.stderr.write(f"forebay: {text}\n")


class MeterThread:
    """Starts the thread once in each process. ``make`` returns its work, or None for no thread."""

    def __init__(self, make: Callable[[], Optional[MeterTicks]]) -> None:
        self._make = make
        self._ticks: Optional[MeterTicks] = None
        self._thread: Optional[threading.Thread] = None
        self._pid = 0

    def begin(self) -> None:
        """Start the thread, unless it runs in this process. Called at each step."""
        if self._pid:
            return
        self._pid = os.getpid()
        self._ticks = ticks = self._make()
        if ticks is None:
            return
        self._thread = threading.Thread(target=ticks.run, name="forebay-meter-ticks", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads can be started
            self._thread = None
            notice_once("meter-thread", f"neither the log line nor the watchdog runs: {error}")
        else:
            atexit.register(self.end)

    def forked(self) -> None:
        """In a forked child: it starts a thread of its own, and knows nothing of its parent's."""
        self._pid = 0

    @property
    def idle_cores(self) -> Optional[float]:
        """How many cores that this process may use were idle in the last ten seconds; None if not measured."""
        return None if self._ticks is None else self._ticks.idle_cores

    def stop(self) -> None:
        """Stop without waiting: later reports would be wrong."""
        if self._ticks is not None and self._pid == os.getpid():
            self._ticks.end()

    def end(self) -> None:
        """Let the thread send the last totals. Waits as long as a live sidecar needs for that."""
        if self._ticks is not None and self._thread is not None and self._pid == os.getpid():
            self._ticks.end()
            self._thread.join(END_S)


def _made() -> Optional[MeterTicks]:
    if in_worker():  # the trainer's thread reports for its workers
        return None
    window = Window(SLOWEST_S)
    return MeterTicks(lambda: own_totals(CLOCK, window), CLOCK.waiting, line_s=line_s(), watchdog_s=watchdog_s())


THREAD = MeterThread(_made)
os.register_at_fork(after_in_child=THREAD.forked)


def _name() -> str:
    return str(ReaderName(ensure_job(), str(rank_of(os.environ)), "main", f"{os.getpid()}.0"))


LINE_S = 30.0  # a screen of lines shows the last twenty minutes
WATCHDOG_S = 60.0  # longer than a shard that is not cached takes, and long before NCCL's watchdog ends the job


def line_s(environ: Optional[Mapping[str, str]] = None) -> float:
    """Seconds between two log lines; 0 for none."""
    return _seconds("FOREBAY_METER_LINE_S", LINE_S, environ)


def watchdog_s(environ: Optional[Mapping[str, str]] = None) -> float:
    """Seconds without a batch after which the watchdog reports; 0 for never."""
    return _seconds("FOREBAY_WATCHDOG_S", WATCHDOG_S, environ)


def _seconds(name: str, usual: float, environ: Optional[Mapping[str, str]]) -> float:
    text = (os.environ if environ is None else environ).get(name, "")
    if not text:
        return usual
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds < float("inf"):
        return seconds
    notice_once(name, f"{name}={text!r} is not a number of seconds; using {usual:g}")
    return usual
