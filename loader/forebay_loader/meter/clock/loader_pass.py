"""What the meter knows about one iterator of torch's ``DataLoader``: which batch is due, which worker makes it, and the running ``next``
call.

It reads private attributes of torch, which have had the same names since torch 1.2. If one is missing, nothing fails: the stall is then not
attributed to a worker.
"""

from __future__ import annotations

import sys
import time
from copy import copy
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple

from forebay_loader.meter.clock.books import BriefSums, SeenPage, StallBooks
from forebay_loader.meter.page import PageView, SharedPages
from forebay_loader.meter.process_page import process_page

__all__ = ["Left", "LoaderCall", "LoaderPass", "TrainerWait", "kept_alone"]

Left = Deque[Tuple[Any, int]]  # passes and calls whose iterators are gone, and when that was noticed (ns)


@dataclass(frozen=True)
class TrainerWait:
    """The trainer is inside ``next(loader)`` since ``since_ns`` (``CLOCK_MONOTONIC``), and waits for the batch of ``worker``.

    ``worker`` is -1 if this process makes its batches itself, or if no batch is due. ``pid`` is the worker's process, 0 if unknown.
    ``page`` is that worker's page, None if it has none.
    """

    since_ns: int
    worker: int
    pid: int = 0
    page: Optional[PageView] = None


class LoaderPass:
    """One pass over an iterator. ``books`` are those of the process and of the loader.

    These describe the running or last call of ``next``: ``called_ns`` is its start. ``start_ns`` is the start of its time that is not
    booked yet; after the call, its end. ``worker`` makes the batch that is due (-1: unknown, or this process). ``brief`` sums calls that
    need no attribution.
    """

    def __init__(self, iterator: Any, books: Tuple[StallBooks, ...]) -> None:
        self.books = books
        self.batched = bool(getattr(iterator, "_auto_collation", True))
        self.workers = int(getattr(iterator, "_num_workers", 0))  # 0: this process makes its batches itself
        self.is_open = False
        self.called_ns = self.start_ns = 0
        self.worker = -1
        self.brief = BriefSums()
        self._in_order = bool(getattr(iterator, "_in_order", True))
        self._asked: Mapping[int, int] = {}  # batch -> worker, if batches may come in any order
        self._pids: Tuple[int, ...] = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        self._shared: Optional[SharedPages] = getattr(getattr(iterator, "_collate_fn", None), "pages", None)
        self._pages: Dict[int, SeenPage] = {}
        for worker in range(len(self._pids)):  # now: the sums may be asked for after all workers have ended
            self.page_of(worker)

    def close(self, now_ns: int) -> None:
        """The pass has ended: no further batch is requested."""
        self.is_open = False
        for book in self.books:
            book.closed(self, now_ns)

    def find_due(self, iterator: Any) -> None:
        """``next`` was called: find the worker whose batch is due."""
        try:
            tasks = iterator._task_info
            task = tasks.get(iterator._rcvd_idx)
            status = iterator._workers_status
            if task is None or (len(task) == 1 and not status[task[0]]):
                task = _next_due(tasks, iterator._rcvd_idx, status)
            self.worker = task[0]
            if not self._in_order:
                self._asked = {number: one[0] for number, one in tasks.items()}
        except (AttributeError, IndexError, TypeError):  # another version of torch
            self.worker = -1

    def given_by(self, iterator: Any) -> int:
        """The worker whose batch ``next`` has returned."""
        if not self._asked:
            return self.worker
        left = getattr(iterator, "_task_info", {})
        return next((worker for number, worker in self._asked.items() if number not in left), self.worker)

    def pid_of(self, worker: int) -> int:
        return self._pids[worker] if 0 <= worker < len(self._pids) else 0

    def page_of(self, worker: int) -> Optional[SeenPage]:
        """The page of a worker, or of this process if there are no workers. Its process may not have started it yet."""
        found = self._pages.get(worker)
        if found is not None:
            return found
        pid, page = self.pid_of(worker), None
        if not self.workers:
            pid, page = process_page.pid, process_page.page
        elif pid and self._shared is not None:
            page = self._shared.page(worker)
        if page is None:
            return None
        found = self._pages[worker] = SeenPage(pid, page)
        for book in self.books:
            book.seen(found)
        return found


class LoaderCall:
    """One iteration of a loader that wraps torch's. A call of its ``next`` may call torch's several times, and do more work after it.

    The call began at ``start_ns`` (0: no call is running). ``inner_ns`` of its time was in torch's loader, and is booked there. The rest is
    a stall of ``cause()``. ``books`` are those of process and loader. ``batched``: as in ``samples_in``.

    The loader may yield single samples, so a call only adds to sums, without a lock: one thread adds, and sums never shrink. The difference
    since the last booking is booked when somebody asks.
    """

    def __init__(self, books: Tuple[StallBooks, ...], cause: Callable[[], str], left: Left, *, batched: bool) -> None:
        self.books = books
        self.batched = batched
        self.is_open = False
        self.start_ns = self.inner_ns = self.answered_ns = 0
        self.sums = CallSums()
        self._cause, self._left = cause, left
        self._booked = CallSums()

    def over(self) -> None:
        """The iteration has ended. Takes no lock: the garbage collector may call this anywhere, even while the lock is held."""
        self.start_ns = 0
        if self.is_open:
            self._left.append((self, time.monotonic_ns()))

    def end(self, now_ns: int) -> None:
        """Book the rest: the iteration ended at ``now_ns``."""
        self.book()
        for book in self.books:
            book.closed(self, now_ns)

    def book(self) -> None:
        """Book what was added to the sums since the last booking."""
        told, self._booked = self._booked, copy(self.sums)
        now = self._booked
        for book in self.books:
            if now.steps > told.steps:
                book.given(now.steps - told.steps, now.samples - told.samples, now.batch_size)
            if now.brief_ns > told.brief_ns:
                book.stall({"transfer": now.brief_ns - told.brief_ns})
            if now.long_ns > told.long_ns:
                book.stall({self._cause(): now.long_ns - told.long_ns})
        if now.aside_ns > told.aside_ns:
            for book in self.books[1:]:
                book.stall({self._cause(): now.aside_ns - told.aside_ns})

    def long_ns(self, now_ns: int, brief_ns: int, inside_ns: int) -> int:
        """How long the running call has taken apart from torch's loader, which is inside ``next`` for ``inside_ns``; 0 if that is brief."""
        start_ns = self.start_ns
        rest_ns = now_ns - start_ns - self.inner_ns - inside_ns
        return rest_ns if start_ns and rest_ns >= brief_ns else 0


class CallSums:
    """Sums over calls: what was yielded, the size of the last batch, and their time.

    ``brief_ns`` is of short calls, ``long_ns`` of long ones. ``aside_ns`` is of calls while another thread waited: for the process, that
    time is booked there.
    """

    def __init__(self) -> None:
        self.steps = self.samples = self.batch_size = 0
        self.brief_ns = self.long_ns = self.aside_ns = 0


def _next_due(tasks: Mapping[int, Any], first: int, status: Any) -> Any:
    """The first task from number ``first`` on whose batch has arrived, or whose worker is still active."""
    for number in sorted(tasks):
        task = tasks[number]
        if number >= first and (len(task) > 1 or not 0 <= task[0] < len(status) or status[task[0]]):
            return task
    return (-1,)


def kept_alone(loader: Any) -> bool:
    """Whether ``loader`` holds the only reference to its iterator. A reference of the caller counts as another."""
    return getattr(loader, "_iterator", None) is not None and sys.getrefcount(loader._iterator) <= _ALONE


class _Keeper:
    """Holds an object in an attribute, as torch's loaders do."""

    def __init__(self) -> None:
        self._iterator = object()


_KEEPER = _Keeper()
_ALONE = sys.getrefcount(_KEEPER._iterator)  # references that this Python counts for the attribute and the call
