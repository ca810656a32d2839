"""This process's own page, and the observer that writes it: begun where a loader's worker reads or makes its first batch, and in a process
that makes its batches itself. A fork's child has none."""

from __future__ import annotations

import os
import sys
import threading
import time
from multiprocessing import util
from typing import Callable, Optional

from forebay_loader.base.notices import notice_once
from forebay_loader.meter.observer import Observer
from forebay_loader.meter.page import MAIN, MeterPage, PageWriter
from forebay_loader.meter.page_files import PageName, create_page, remove_page

__all__ = ["ProcessPage", "begin_in_worker", "process_page"]


class ProcessPage:
    """The page of this process, or none yet."""

    def __init__(self) -> None:
        self.pid = 0
        self.page: Optional[MeterPage] = None
        self._name: Optional[PageName] = None
        self._observer: Optional[Observer] = None

    def __repr__(self) -> str:
        return f"<ProcessPage of {self.pid}{'' if self.page else ', none'}>"

    @property
    def is_begun(self) -> bool:
        """Whether it was, or could not be. A fork's child is at 0 again."""
        return self.pid != 0

    def begin(self, target: Callable[[], Optional[int]], worker: int = MAIN) -> None:
        """Once; where no page can be made, or no thread, one notice: what this process does is not told then."""
        if self.is_begun:
            return
        self.pid = os.getpid()
        try:
            self._begin(target, worker)
        except (OSError, RuntimeError) as error:
            notice_once("meter-page", f"the meter cannot see what this process does: {type(error).__name__}: {error}")

    def end(self) -> None:
        """Look no more."""
        if self._observer is not None:
            self._observer.end()
        if self._name is not None and self.is_begun:
            remove_page(self._name)
        self.page, self._observer, self.pid = None, None, 0

    def forked(self) -> None:
        """In a child: the page is its parent's."""
        page, self.page, self._observer, self.pid = self.page, None, None, 0
        if page is not None:
            page.close()

    def _begin(self, target: Callable[[], Optional[int]], worker: int) -> None:
        name = PageName.of(self.pid)
        if name is None:
            raise OSError("/proc does not tell when it started")
        page = create_page(name)
        now_ns = time.monotonic_ns()
        writer = PageWriter(page, pid=self.pid, start_time=name.start_time, worker=worker, now_ns=now_ns)
        observer = Observer(writer, target, now_ns=now_ns)
        observer.start()
        util.Finalize(None, self.end, exitpriority=0)  # workers end without atexit
        self.page, self._name, self._observer = page, name, observer


process_page = ProcessPage()
os.register_at_fork(after_in_child=process_page.forked)


def begin_in_worker() -> None:
    """Begin this process's page if it is a loader's worker. Cheap where it was begun."""
    if process_page.is_begun:
        return
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    if info is None:
        return
    thread = threading.main_thread().ident
    process_page.begin(lambda: thread, int(info.id))
