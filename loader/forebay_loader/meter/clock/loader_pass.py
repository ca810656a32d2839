"""One iterator of torch's ``DataLoader``, as far as the meter has to know it: which batch is due, and which worker makes it.

It looks at what torch keeps under names of its own, the same ones since torch 1.2. Where one is missing nothing fails: the stall is then
of no worker.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from forebay_loader.meter.clock.books import StallBooks
from forebay_loader.meter.clock.seen_page import SeenPage
from forebay_loader.meter.process_page import process_page

__all__ = ["LoaderPass", "NextCall"]


class NextCall(NamedTuple):
    """``next(loader)`` was called at ``called_ns``; ``worker`` makes the batch that is due, -1: nobody knows, or this process does.

    ``start_ns``: from when on its time is still to be booked. ``asked``: the batches that were asked for, each with its worker, where any
    of them may come.
    """

    called_ns: int
    start_ns: int
    worker: int = -1
    asked: Mapping[int, int] = {}


class LoaderPass:
    """``books`` are those of the process and of the loader."""

    def __init__(self, iterator: Any, books: Tuple[StallBooks, ...]) -> None:
        self.books = books
        self.alone = getattr(iterator, "_num_workers", 0) == 0  # this process makes its batches itself
        self.batched = bool(getattr(iterator, "_auto_collation", True))
        self.workers = int(getattr(iterator, "_num_workers", 0))
        self.answered_ns = 0  # when it was last asked for a batch, and had answered
        self._pids: Tuple[int, ...] = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        self._pages: Dict[int, SeenPage] = {}

    def enter(self, iterator: Any, now_ns: int) -> NextCall:
        """``next`` is called."""
        if self.alone:
            return NextCall(now_ns, now_ns)
        tasks, first = getattr(iterator, "_task_info", {}), getattr(iterator, "_rcvd_idx", 0)
        due = tasks.get(first)
        status = getattr(iterator, "_workers_status", ())
        if due is None or not _gives(due, status):
            due = next((tasks[number] for number in sorted(tasks) if number > first and _gives(tasks[number], status)), (-1,))
        if getattr(iterator, "_in_order", True):
            return NextCall(now_ns, now_ns, due[0])
        return NextCall(now_ns, now_ns, due[0], {number: task[0] for number, task in tasks.items()})

    def given_by(self, iterator: Any, call: NextCall) -> int:
        """The worker whose batch ``next`` has given."""
        if not call.asked:
            return call.worker
        left = getattr(iterator, "_task_info", {})
        return next((worker for number, worker in call.asked.items() if number not in left), call.worker)

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


def _gives(task: Any, status: Any) -> bool:
    """Whether its batch is here, or its worker still makes some."""
    return len(task) > 1 or not 0 <= task[0] < len(status) or bool(status[task[0]])
