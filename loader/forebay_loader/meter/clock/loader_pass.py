"""One iterator of torch's ``DataLoader``, as far as the meter has to know it: which batch is due, which worker makes it, and the call of
``next`` that is on.

It looks at what torch keeps under names of its own, the same ones since torch 1.2. Where one is missing nothing fails: the stall is then
of no worker.
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

Left = Deque[Tuple[Any, int]]  # passes and calls whose iterators are gone, and since when (ns)


@dataclass(frozen=True)
class TrainerWait:
    """The trainer is inside ``next(loader)`` since ``since_ns`` (of ``CLOCK_MONOTONIC``), for the batch of ``worker``.

    ``worker`` is -1 where this process makes its batches itself, or none is due; ``pid`` is its process, 0 where not known; ``page`` what
    that worker says of itself, None where it says nothing.
    """

    since_ns: int
    worker: int
    pid: int = 0
    page: Optional[PageView] = None


class LoaderPass:
    """``books`` are those of the process and of the loader.

    Of the call of ``next`` that is on, or was last: ``called_ns``; ``start_ns``, from when on its time is still to be booked, or when it
    answered; ``worker``, who makes the batch that is due (-1: nobody knows, or this process does). ``brief`` is what calls took that need
    no attribution.
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
        self._asked: Mapping[int, int] = {}  # batches, each with its worker, where any of them may come
        self._pids: Tuple[int, ...] = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        self._shared: Optional[SharedPages] = getattr(getattr(iterator, "_collate_fn", None), "pages", None)
        self._pages: Dict[int, SeenPage] = {}
        for worker in range(len(self._pids)):  # at once: who asks for the sums may do so when all of them are gone
            self.page_of(worker)

    def close(self, now_ns: int) -> None:
        """No batch is asked for any more."""
        self.is_open = False
        for book in self.books:
            book.closed(self, now_ns)

    def find_due(self, iterator: Any) -> None:
        """``next`` is called: whose batch is due?"""
        try:
            tasks = iterator._task_info
            task = tasks.get(iterator._rcvd_idx)
            status = iterator._workers_status
            if task is None or (len(task) == 1 and not status[task[0]]):
                task = _next_due(tasks, iterator._rcvd_idx, status)
            self.worker = task[0]
            if not self._in_order:
                self._asked = {number: one[0] for number, one in tasks.items()}
        except (AttributeError, IndexError, TypeError):  # another torch's
            self.worker = -1

    def given_by(self, iterator: Any) -> int:
        """The worker whose batch ``next`` has given."""
        if not self._asked:
            return self.worker
        left = getattr(iterator, "_task_info", {})
        return next((worker for number, worker in self._asked.items() if number not in left), self.worker)

    def pid_of(self, worker: int) -> int:
        return self._pids[worker] if 0 <= worker < len(self._pids) else 0

    def page_of(self, worker: int) -> Optional[SeenPage]:
        """The page of a worker, or of this process where it has none. Whether that has begun it, it says itself."""
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
    """``next`` of a loader that is made around torch's: it may ask that several times, and do more behind it. One for each iteration of it.

    Called at ``start_ns`` (0: not now); ``inner_ns`` of its time is torch's loader's, and booked there. ``books`` are those of process and
    loader. The loader may give samples, so a call adds to sums, without a lock: only the thread that reads adds, and they never fall.
    What is new in them is booked when somebody asks. Time behind torch's loader is of ``cause()``. ``batched``: as of ``samples_in``.
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
        """Its iteration is. No lock is taken: the garbage collector may run anywhere, also within it."""
        self.start_ns = 0
        if self.is_open:
            self._left.append((self, time.monotonic_ns()))

    def end(self, now_ns: int) -> None:
        """It is, and was at ``now_ns``."""
        self.book()
        for book in self.books:
            book.closed(self, now_ns)

    def book(self) -> None:
        """Book what is new."""
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
        """What the call that is on, if any, has taken besides torch's loader, which is inside ``next`` for ``inside_ns``; 0 where brief."""
        start_ns = self.start_ns
        rest_ns = now_ns - start_ns - self.inner_ns - inside_ns
        return rest_ns if start_ns and rest_ns >= brief_ns else 0


class CallSums:
    """Of calls so far: what was given, the last batch's size, and the time of those that were ``brief``, of the ``long`` ones, and of those
    ``aside`` of another thread's wait, which is booked for the process."""

    def __init__(self) -> None:
        self.steps = self.samples = self.batch_size = 0
        self.brief_ns = self.long_ns = self.aside_ns = 0


def _next_due(tasks: Mapping[int, Any], first: int, status: Any) -> Any:
    """The first task from there on whose batch is here, or whose worker still makes some."""
    for number in sorted(tasks):
        task = tasks[number]
        if number >= first and (len(task) > 1 or not 0 <= task[0] < len(status) or status[task[0]]):
            return task
    return (-1,)


def kept_alone(loader: Any) -> bool:
    """Whether ``loader`` keeps an iterator that nobody else holds; a reference that a caller has is somebody's."""
    return getattr(loader, "_iterator", None) is not None and sys.getrefcount(loader._iterator) <= _ALONE


class _Keeper:
    """Keeps an object as torch's loaders do, in an attribute."""

    def __init__(self) -> None:
        self._iterator = object()


_KEEPER = _Keeper()
_ALONE = sys.getrefcount(_KEEPER._iterator)  # what this Python counts for the attribute and the question itself
