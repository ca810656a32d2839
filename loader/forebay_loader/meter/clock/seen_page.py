"""A worker's page, as the process sees it that waits for the worker."""

from __future__ import annotations

from typing import List, NamedTuple, Optional

from forebay_loader.meter.page import BookedSpan, MeterPage, PageView
from forebay_loader.meter.page_files import PageName, open_page
from forebay_proxy.wire.protocol.meter import CAUSES
from forebay_proxy.wire.protocol.runfile import process_start_time

__all__ = ["PageAccount", "SeenPage"]


class PageAccount(NamedTuple):
    """What a page says of a stall: when the worker could first be seen (ns), and what it did, adjoining, in order."""

    begun_ns: int
    spans: List[BookedSpan]


class SeenPage:
    """The page of process ``pid``, mapped as soon as there is one; its sums outlive the worker."""

    def __init__(self, pid: int, page: Optional[MeterPage] = None) -> None:
        self.pid = pid
        self.waited_ns: List[int] = [0] * len(CAUSES)
        self.bytes = self.skipped = 0
        self.alive = True
        self._page = page
        self._own = page is not None
        self._name = PageName.of(pid)

    def __repr__(self) -> str:
        return f"<SeenPage of {self.pid}{'' if self._page else ', none yet'}>"

    @property
    def shard(self) -> str:
        return "" if self._page is None else self._page.shard

    def view(self) -> Optional[PageView]:
        """What it says now; None without a page."""
        return self._page.view() if self.found() and self._page is not None else None

    def found(self) -> bool:
        """Whether there is a page by now."""
        if self._page is None and self._name is not None:
            self._page = open_page(self._name)
        return self._page is not None

    def settled_ns(self) -> int:
        """Until when the worker's time is booked; 0 without a page."""
        return self._page.word("settled_ns") if self._page is not None else 0

    def told(self, start_ns: int, end_ns: int) -> Optional[PageAccount]:
        """What it says of that time; None without a page."""
        page = self._page
        return None if page is None else PageAccount(page.word("begun_ns"), page.spans(start_ns, end_ns))

    def look(self) -> bool:
        """Read its sums; whether its process lives, or else could not be asked before."""
        alive = self._own or (self._name is not None and process_start_time(self.pid) == self._name.start_time)
        if self.found() and self._page is not None:
            view = self._page.view()
            self.waited_ns = [view.waited_ns[cause] for cause in CAUSES]
            self.bytes, self.skipped = view.bytes, view.skipped
        self.alive = alive
        return alive
