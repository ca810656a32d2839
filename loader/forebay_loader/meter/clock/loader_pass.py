"""One iterator of torch's ``DataLoader``, as far as the meter has to know it: which batch is due, and which worker makes it.

It looks at what torch keeps under names of its own, the same ones since torch 1.2. Where one is missing nothing fails: the stall is then
of no worker.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

from forebay_loader.meter.clock.books import StallBooks
from forebay_loader.meter.clock.seen_page import SeenPage
from forebay_loader.meter.process_page import process_page

__all__ = ["LoaderPass", "NextCall"]

NO_BATCH = -1


class NextCall(NamedTuple):
    """``next(loader)`` was called at ``called_ns``: the batches that were asked for, each with its worker, and the one that is due.

    ``start_ns``: from when on its time is still to be booked.
    """

    start_ns: int
    asked: Dict[int, int]
    due: int
    called_ns: int


class LoaderPass:
    """``books`` are those of the process and of the loader."""

    def __init__(self, iterator: Any, books: Tuple[StallBooks, ...], now_ns: int) -> None:
        self.books = books
        self.began_ns = now_ns
        self.alone = getattr(iterator, "_num_workers", 0) == 0  # this process makes its batches itself
        self.batched = bool(getattr(iterator, "_auto_collation", True))
        self.workers = int(getattr(iterator, "_num_workers", 0))
        self._pids: Tuple[int, ...] = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        self._pages: Dict[int, SeenPage] = {}

    def enter(self, iterator: Any, now_ns: int) -> NextCall:
        """``next`` is called."""
        if self.alone:
            return NextCall(now_ns, {}, NO_BATCH, now_ns)
        tasks = getattr(iterator, "_task_info", {})
        status = getattr(iterator, "_workers_status", ())
        first = getattr(iterator, "_rcvd_idx", 0)
        asked = {number: task[0] for number, task in tasks.items()}
        owed = (number for number, task in tasks.items() if number >= first and (len(task) > 1 or _works(status, task[0])))
        return NextCall(now_ns, asked, min(owed, default=NO_BATCH), now_ns)

    def given(self, iterator: Any, entry: NextCall) -> int:
        """The number of the batch that ``next`` has given."""
        if self.alone:
            return NO_BATCH
        if getattr(iterator, "_in_order", True):
            return int(getattr(iterator, "_rcvd_idx", 0)) - 1
        left = getattr(iterator, "_task_info", {})
        return next((number for number in entry.asked if number not in left), NO_BATCH)

    def worker_of(self, entry: NextCall, number: int) -> int:
        """The worker that made, or makes, that batch; else the one that was due; -1 where nobody knows, or this process does."""
        return entry.asked.get(number, entry.asked.get(entry.due, -1))

    def pid_of(self, worker: int) -> int:
        return self._pids[worker] if 0 <= worker < len(self._pids) else 0

    def page_of(self, worker: int) -> Optional[SeenPage]:
        """The page of a worker, or of this process where it is alone. Whether it is there already, it says itself."""
        found = self._pages.get(worker)
        if found is not None:
            return found
        if self.alone:
            if process_page.page is None:
                return None
            found = SeenPage(process_page.pid, process_page.page)
        elif pid := self.pid_of(worker):
            found = SeenPage(pid)
        if found is not None:
            self._pages[worker] = found
            for book in self.books:
                book.seen(found)
        return found

    def meet(self) -> None:
        """Look for the pages of all workers, whether they were waited for or not."""
        for worker in range(len(self._pids)):
            self.page_of(worker)


def _works(status: Any, worker: int) -> bool:
    return bool(status[worker]) if 0 <= worker < len(status) else True
