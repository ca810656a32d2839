"""Attributes the time of a stall to causes, by the page of the worker whose batch was due.

A page is up to one sample late. So a stall waits in a queue until its worker's time is booked to the end of the stall. The rest is
arithmetic. If the worker makes later batches while the due one is on its way, the trainer waits for that work: a faster transfer would not
bring the next batch sooner. So only time in which the worker is idle counts as "transfer".
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Tuple

from forebay_loader.meter.clock.books import PageAccount, SeenPage, StallBooks
from forebay_loader.meter.clock.loader_pass import LoaderPass

__all__ = ["Stall", "StallQueue", "attributed", "stretched"]

PATIENCE_NS = 30_000_000_000  # then a stall is booked even if its worker's page says nothing: the worker hangs, or holds the lock
LOOK_NS = 1_000_000_000  # then check whether the worker is alive
_MOST = 1024
_REST = "other"


class Stall(NamedTuple):
    """A wait for a batch of ``worker``: all time from ``start_ns`` to ``end_ns``, or ``stall_ns`` of it in several short waits.

    ``books``: the sums to add it to. The sums of the process get the time once, however many threads wait.
    """

    one: LoaderPass
    start_ns: int
    end_ns: int
    stall_ns: int
    worker: int
    books: Tuple[StallBooks, ...]
    ended: bool = False  # no batch came: the pass has ended


class StallQueue:
    """Stalls that are not attributed yet. Callers hold the clock's lock."""

    def __init__(self) -> None:
        self._waiting: Deque[Stall] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, stall: Stall) -> None:
        self._waiting.append(stall)

    def stall_ns(self, books: StallBooks) -> int:
        """The time of these books that is not attributed yet."""
        return sum(stall.stall_ns for stall in self._waiting if books in stall.books)

    def settle(self, now_ns: int) -> None:
        """Book the stalls that the pages can explain by now, the oldest first."""
        left: Deque[Stall] = deque()
        told: Dict[Optional[SeenPage], List[Stall]] = {}
        while self._waiting:
            stall = self._waiting.popleft()
            waits = now_ns - stall.end_ns < PATIENCE_NS and len(self._waiting) + len(left) < _MOST
            if waits and not _is_told(stall, now_ns):
                left.append(stall)
            else:
                told.setdefault(stall.one.page_of(stall.worker), []).append(stall)
        self._waiting = left
        for page, stalls in told.items():
            _book(page if page is not None and page.found() else None, stalls)


def _is_told(stall: Stall, now_ns: int) -> bool:
    """Whether its worker's page explains all of it, or will say no more."""
    page = stall.one.page_of(stall.worker)
    if page is None or page.settled_ns() >= stall.end_ns:
        return True
    return now_ns - stall.end_ns >= LOOK_NS and not page.look()


def _book(page: Optional[SeenPage], stalls: List[Stall]) -> None:
    """Attribute ``stalls`` of one page, which is read once."""
    told = None if page is None else page.told(min(stall.start_ns for stall in stalls), max(stall.end_ns for stall in stalls))
    shard, function = ("", "") if page is None else (page.shard, page.function)
    for stall in stalls:
        by_cause = attributed(stall.start_ns, stall.end_ns, told, ended=stall.ended)
        if stall.stall_ns < stall.end_ns - stall.start_ns:
            by_cause = stretched(by_cause, stall.stall_ns)
        for book in stall.books:
            book.stall(by_cause)
            if page is not None:
                book.waited_for(page.pid, stall.worker, stall.stall_ns, shard, function)


def attributed(start_ns: int, end_ns: int, told: Optional[PageAccount], *, ended: bool = False) -> Dict[str, int]:
    """Divide the time from ``start_ns`` to ``end_ns`` among causes, in ns. The sum is exactly that time.

    Time before the worker was first sampled is "start". Time without spans is divided as the rest, or is "other" if there are no spans.
    ``told`` is None if there was no page. ``ended``: no batch came, since the pass ended. Time after the last span then goes to the end of
    the workers, which counts as "start".
    """
    if end_ns <= start_ns:
        return {}
    if told is None:
        return {"start" if ended else _REST: end_ns - start_ns}
    found: Dict[str, int] = {}
    if ended:
        last_ns = min(max([start_ns, *(ends for _, ends, _ in told.spans)]), end_ns)
        _add(found, "start", end_ns - last_ns)
        end_ns = last_ns
    working_ns = min(max(told.begun_ns, start_ns), end_ns)
    _add(found, "start", working_ns - start_ns)
    covered: Dict[str, int] = {}
    for at in range(max(bisect(told.spans, (working_ns + 1,)) - 1, 0), len(told.spans)):  # from the span that contains working_ns
        begins, ends, cause = told.spans[at]
        if begins >= end_ns:
            break
        _add(covered, cause, min(ends, end_ns) - max(begins, working_ns))
    if sum(covered.values()) != end_ns - working_ns:
        covered = stretched(covered, end_ns - working_ns)
    for cause, nanoseconds in covered.items():
        _add(found, cause, nanoseconds)
    return found


def stretched(covered: Dict[str, int], whole: int) -> Dict[str, int]:
    """Scale the known causes of ``covered`` so that their sum is ``whole``."""
    known = {cause: nanoseconds for cause, nanoseconds in covered.items() if cause != _REST}
    total = sum(known.values())
    if not total:
        return {_REST: whole}
    found = {cause: nanoseconds * whole // total for cause, nanoseconds in known.items()}
    largest = max(found, key=lambda cause: found[cause])
    found[largest] += whole - sum(found.values())
    return found


def _add(to: Dict[str, int], cause: str, nanoseconds: int) -> None:
    if nanoseconds > 0:
        to[cause] = to.get(cause, 0) + nanoseconds
