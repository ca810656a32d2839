"""The sums of stall, of one loader or of the whole process, and the workers' pages, which have the reader wait.

Times are ns of ``CLOCK_MONOTONIC``. Callers hold the clock's lock.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from forebay_loader.meter.page import BookedSpan, MeterPage, PageView
from forebay_loader.meter.totals import StallTotals, WorkerStall
from forebay_proxy.wire.protocol.meter import CAUSE_INDEX, CAUSES
from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["BriefSums", "PageAccount", "SeenPage", "StallBooks"]

_MOST_WORKERS = 512  # workers that are listed: without persistent workers, each epoch has new ones


class BriefSums:
    """Sums of calls of ``next`` that need no attribution to a cause: ``stall_ns`` between ``start_ns`` and ``end_ns``."""

    __slots__ = ("batch_size", "end_ns", "samples", "stall_ns", "start_ns", "steps")

    def __init__(self) -> None:
        self.steps = self.samples = self.batch_size = 0
        self.stall_ns = self.start_ns = self.end_ns = 0


class StallBooks:
    """The sums of one loader or of the process. ``totals`` returns them as values."""

    def __init__(self) -> None:
        self._wall_ns = 0
        self._open: Set[object] = set()  # the running passes
        self._open_ns = 0  # start of the running time that is not counted yet
        self._counted_ns = 0  # end of the time that is counted
        self._stall_ns: Dict[str, int] = {}
        self._steps = self._samples = self._bytes = self._skipped = 0
        self._batch_size: Optional[int] = None
        self._workers: OrderedDict[int, WorkerStall] = OrderedDict()
        self._pages: Dict[Tuple[int, Optional[int]], SeenPage] = {}  # by pid and start time: a pid may be used again
        self._waited_ns: List[int] = [0] * len(CAUSES)  # sums of workers that have ended
        self.number = self.passes = 0  # of a loader: its number in the order of first passes; passes begun

    @property
    def steps(self) -> int:
        return self._steps

    def opened(self, one: object, now_ns: int) -> None:
        """A pass over a loader is running since ``now_ns``, which may be earlier than the start of a pass reported before."""
        since_ns = max(now_ns, self._counted_ns)
        self._open_ns = min(self._open_ns, since_ns) if self._open else since_ns
        self._open.add(one)

    def closed(self, one: object, now_ns: int) -> None:
        """The pass has ended at ``now_ns``. Time that was already counted stays counted."""
        if one in self._open:
            self._walled(now_ns)
            self._open.remove(one)

    def _walled(self, now_ns: int) -> None:
        if self._open and now_ns > self._open_ns:
            self._wall_ns += now_ns - self._open_ns
            self._open_ns = self._counted_ns = now_ns

    def given(self, steps: int, samples: int, batch_size: int) -> None:
        """Add batches; the last one had ``batch_size`` samples."""
        self._steps += steps
        self._samples += samples
        self._batch_size = batch_size

    def stall(self, by_cause: Mapping[str, int]) -> None:
        """Add time that the trainer waited, by cause."""
        for cause, nanoseconds in by_cause.items():
            self._stall_ns[cause] = self._stall_ns.get(cause, 0) + nanoseconds

    def waited_for(self, pid: int, worker: int, nanoseconds: int, shard: str, function: str) -> None:
        """Add time that the trainer waited for a batch of ``worker``.

        ``shard`` is what the worker reads, ``function`` what it runs; "" if not known.
        """
        known = self._workers.get(pid) or WorkerStall(pid, worker, 0.0)
        self._workers[pid] = WorkerStall(pid, worker, known.stall_s + nanoseconds / 1e9, shard or known.shard, function or known.function)
        if len(self._workers) > _MOST_WORKERS:
            self._workers.popitem(last=False)

    def seen(self, page: SeenPage) -> None:
        """Add a worker's page, to count its reader wait."""
        self._pages.setdefault((page.pid, page.start_time), page)

    def totals(self, now_ns: int, pending_ns: int) -> StallTotals:
        """The sums until now. ``pending_ns``: stall that is not attributed yet."""
        self.retire()
        pages = tuple(self._pages.values())
        waited_ns = {name: self._waited_ns[at] + sum(page.waited_ns[at] for page in pages) for name, at in CAUSE_INDEX.items()}
        self._walled(now_ns)
        return StallTotals(
            wall_s=self._wall_ns / 1e9,
            stall_s=_seconds(self._stall_ns),
            pending_s=pending_ns / 1e9,
            reader_wait_s=_seconds(waited_ns),
            steps=self._steps,
            samples=self._samples,
            batch_size=self._batch_size,
            bytes=self._bytes + sum(page.bytes for page in pages),
            skipped=self._skipped + sum(page.skipped for page in pages),
            workers=tuple(self._workers.values()),
        )

    def retire(self) -> None:
        """Keep the sums of workers that have ended, and release their pages."""
        for key, page in tuple(self._pages.items()):
            if not page.look():
                self._waited_ns = [before + page.waited_ns[at] for at, before in enumerate(self._waited_ns)]
                self._bytes += page.bytes
                self._skipped += page.skipped
                del self._pages[key]


def _seconds(nanoseconds: Mapping[str, int]) -> Dict[str, float]:
    return {cause: found / 1e9 for cause, found in nanoseconds.items() if found}


class PageAccount(NamedTuple):
    """A page's record of a stall: when the worker was first sampled (ns), and its spans, in order and without gaps."""

    begun_ns: int
    spans: List[BookedSpan]


class SeenPage:
    """The page of process ``pid``. Its sums stay after the process has ended."""

    def __init__(self, pid: int, page: MeterPage) -> None:
        self.pid = pid
        self.waited_ns: List[int] = [0] * len(CAUSES)
        self.bytes = self.skipped = 0
        self._page = page
        self.start_time = process_start_time(pid)

    def __repr__(self) -> str:
        return f"<SeenPage of {self.pid}{'' if self.found() else ', none yet'}>"

    @property
    def shard(self) -> str:
        return self._page.shard

    @property
    def function(self) -> str:
        return self._page.function

    def view(self) -> Optional[PageView]:
        """The content of the page; None before its process has started it."""
        return self._page.view() if self.found() else None

    def found(self) -> bool:
        """Whether its process has started the page."""
        return self._page.word("begun_ns") != 0

    def settled_ns(self) -> int:
        """Until when the worker's time is booked; 0 if the page was not started."""
        return self._page.word("settled_ns")

    def told(self, start_ns: int, end_ns: int) -> PageAccount:
        """The page's record of that time."""
        return PageAccount(self._page.word("begun_ns"), self._page.spans(start_ns, end_ns))

    def look(self) -> bool:
        """Read the sums, and return whether the process is alive."""
        alive = self.pid == os.getpid() or (self.start_time is not None and process_start_time(self.pid) == self.start_time)
        view = self._page.view()
        self.waited_ns = [view.waited_ns[cause] for cause in CAUSES]
        self.bytes, self.skipped = view.bytes, view.skipped
        return alive
