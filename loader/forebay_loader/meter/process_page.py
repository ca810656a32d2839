"""This process's own page, and the observer that writes it.

It starts when a loader's worker first reads or makes a batch, or in a process that makes its batches itself. A forked child starts without.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from multiprocessing import context, util
from typing import Any, Callable, Optional, Tuple

from forebay_loader.base.notices import notice_once
from forebay_loader.meter.observer import MADE, Observer
from forebay_loader.meter.page import MAIN, PAGE_BYTES, MeterPage, PageWriter, SharedPages
from forebay_loader.meter.profile_ranges import profiled
from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["BatchMark", "ProcessPage", "begin_in_worker", "process_page"]

_MAKING = threading.local()  # ``pages``: of the iterator that this thread has just created, before it forks the workers


class ProcessPage:
    """The page of this process, if it has one. ``pages``: those of all workers of a loader, which the trainer created."""

    def __init__(self) -> None:
        self.pid = 0
        self.page: Optional[MeterPage] = None
        self.pages: Optional[SharedPages] = None
        self._observer: Optional[Observer] = None

    def __repr__(self) -> str:
        return f"<ProcessPage of {self.pid}{'' if self.page else ', none'}>"

    @property
    def is_begun(self) -> bool:
        """Whether a start was tried in this process. A forked child starts again."""
        return self.pid != 0

    def begin(self, target: Callable[[], Optional[int]], page: Optional[MeterPage] = None, worker: int = MAIN) -> None:
        """Start once, in ``page`` or in private memory. If no thread can be started, log that once: nothing is measured then."""
        if self.is_begun:
            return
        self.pid = os.getpid()
        try:
            self._begin(target, page or MeterPage(bytearray(PAGE_BYTES)), worker)
        except (OSError, RuntimeError) as error:
            notice_once("meter-page", f"the meter cannot see what this process does: {type(error).__name__}: {error}")

    def end(self) -> None:
        """Stop sampling."""
        if self._observer is not None:
            self._observer.end()
        self.page, self._observer, self.pid = None, None, 0

    def forked(self) -> None:
        """In a forked child: the old page belongs to the parent. A worker's page is among those that its trainer has just created."""
        self.page, self._observer, self.pid = None, None, 0
        made = getattr(_MAKING, "pages", None)
        self.pages = made if made is not None and made.trainer == os.getppid() else None

    def _begin(self, target: Callable[[], Optional[int]], page: MeterPage, worker: int) -> None:
        now_ns = time.monotonic_ns()
        writer = PageWriter(page, pid=self.pid, start_time=process_start_time(self.pid) or 0, worker=worker, now_ns=now_ns)
        observer = Observer(writer, target, now_ns=now_ns)
        observer.start()
        util.Finalize(None, self.end, exitpriority=0)  # workers end without atexit
        self.page, self._observer = page, observer


process_page = ProcessPage()
os.register_at_fork(after_in_child=process_page.forked)


def begin_in_worker() -> None:
    """Start this process's page if it is a loader's worker. Cheap if it has started."""
    if process_page.is_begun or process_page.pages is None:
        return
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is None:
        return
    thread = threading.main_thread().ident
    process_page.begin(lambda: thread, process_page.pages.page(info.id), int(info.id))


class BatchMark:
    """The ``collate`` of a metered loader with ``workers`` workers: it also records when a batch was made.

    It owns the workers' pages. Pickled for a spawned worker, it passes them on.
    """

    def __init__(self, collate: Callable[[Any], Any], workers: int) -> None:
        self._collate = collate
        self.pages = _MAKING.pages = SharedPages(workers) if workers else None

    def __repr__(self) -> str:
        return f"<BatchMark of {self._collate!r}>"

    def __getstate__(self) -> Tuple[Callable[[Any], Any], Optional[SharedPages]]:
        return self._collate, None if context.get_spawning_popen() is None else self.pages

    def __setstate__(self, state: Tuple[Callable[[Any], Any], Optional[SharedPages]]) -> None:
        self._collate, self.pages = state
        process_page.pages = self.pages

    def __call__(self, data: Any) -> Any:
        begin_in_worker()
        MADE.begun_ns = time.monotonic_ns()
        with profiled("forebay.collate"):
            batch = self._collate(data)
        MADE.add()
        return batch
