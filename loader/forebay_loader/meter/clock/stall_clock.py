"""Times what the training process waits for its loaders, exactly, and books each wait once the worker's page tells what it went for.

A page tells of a moment up to a step of the observer later, so a stall waits to be booked (``pending``) until its worker's time is settled
to its end. Totals may be asked for at any time, from any thread, also while ``next`` is waiting: what has passed of that is a stall by
then.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Deque, Dict, NamedTuple, Optional

from forebay_loader.meter.clock.attribution import attributed, stretched
from forebay_loader.meter.clock.batch_samples import samples_in
from forebay_loader.meter.clock.books import StallBooks
from forebay_loader.meter.clock.kept_iterator import kept_alone
from forebay_loader.meter.clock.loader_call import LoaderCall
from forebay_loader.meter.clock.loader_pass import LoaderPass, NextCall
from forebay_loader.meter.clock.seen_page import SeenPage
from forebay_loader.meter.clock.trainer_wait import TrainerWait
from forebay_loader.meter.page_files import sweep_pages
from forebay_loader.meter.process_page import process_page
from forebay_loader.meter.totals import StallTotals

__all__ = ["CLOCK", "NO_BATCH", "StallClock"]

NO_BATCH = object()
BRIEF_NS = 500_000  # a stall that short is the handing over of a batch that was there
PATIENCE_NS = 30_000_000_000  # after that a stall is booked though its worker's page tells nothing: it hangs, or holds the lock
SETTLE_NS = 250_000_000  # and a quarter of a second is soon enough for those that the page tells of
LOOK_NS = 1_000_000_000  # after that it is asked whether the worker lives at all
_MOST_PENDING = 1024


class _Stall(NamedTuple):
    """A stall that is to be booked, or several brief ones of a process that makes its batches itself: ``stall_ns`` of the time between."""

    one: LoaderPass
    start_ns: int
    end_ns: int
    stall_ns: int
    worker: int
    ended: bool = False  # there was no batch: the pass has ended

    @property
    def brief(self) -> bool:
        return self.stall_ns < self.end_ns - self.start_ns


class StallClock:
    """The clock of one process. Any thread may call."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """As new: also in a forked child, whose parent's loaders are not its own."""
        self._lock = threading.Lock()
        self._books = StallBooks()
        self._of_loader: weakref.WeakKeyDictionary[Any, StallBooks] = weakref.WeakKeyDictionary()
        self._loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # of iterators, weakly
        self._passes: weakref.WeakKeyDictionary[Any, LoaderPass] = weakref.WeakKeyDictionary()
        self._now_in: Dict[int, "tuple[Any, LoaderPass, NextCall]"] = {}  # by thread: the iterator whose next it is in
        self._around: Dict[int, LoaderCall] = {}  # by thread: what called that, where a loader of ours did
        self._pending: Deque[_Stall] = deque()
        self._settled_ns = 0
        self._swept = False
        self.workers: Optional[int] = None  # of the loader that was asked last

    def __repr__(self) -> str:
        return f"<StallClock, {len(self._pending)} stalls pending>"

    def created(self, loader: Any, iterator: Any) -> None:
        """``iterator`` is being made for ``loader``; it has no workers yet."""
        if not self._swept:
            self._swept = True
            sweep_pages()
        with self._lock:
            self._loaders[iterator] = weakref.ref(loader)

    def begun(self, iterator: Any, start_ns: int) -> None:
        """``iter(loader)``, called at ``start_ns``, has returned ``iterator``: a new one, or one that begins again."""
        now_ns = time.monotonic_ns()
        with self._lock:
            self._leave_off(iterator)
            one = self._pass(iterator, start_ns)
            for book in one.books:
                book.stall({"start": now_ns - start_ns})
            around = self._around.get(threading.get_ident())
            if around is not None:
                around.inner_ns += now_ns - start_ns

    def enter(self, iterator: Any) -> bool:
        """``next(iterator)`` is called in this thread; False: within another such call, which is timed already."""
        thread = threading.get_ident()
        if thread in self._now_in:
            return False
        now_ns = time.monotonic_ns()
        with self._lock:
            one = self._pass(iterator, now_ns)
            self._now_in[thread] = iterator, one, one.enter(iterator, now_ns)
            self.workers = one.workers
        if one.alone and not process_page.is_begun:
            process_page.begin(self.thread)
        return True

    def left(self) -> None:
        """Whatever was entered in this thread is over, though nobody said so: it was interrupted on the way in or out."""
        self._now_in.pop(threading.get_ident(), None)

    def leave(self, iterator: Any, batch: Any, *, ended: bool = False) -> None:
        """It has returned ``batch``, or raised (``NO_BATCH``); ``ended``: ``StopIteration``."""
        now_ns = time.monotonic_ns()
        thread = threading.get_ident()
        with self._lock:
            _, one, call = self._now_in.pop(thread)
            now_ns = max(now_ns, call.start_ns)  # totals were asked for meanwhile
            worker = call.worker if batch is NO_BATCH else one.given_by(iterator, call)
            self._note(one, call.start_ns, now_ns, worker, ended)
            one.answered_ns = now_ns
            around = self._around.get(thread)
            if around is not None:
                around.inner_ns += now_ns - call.called_ns
            elif batch is not NO_BATCH:
                samples = samples_in(batch, batched=one.batched)
                for book in one.books:
                    book.batch(samples)
            if ended:
                self._close(id(iterator), one, now_ns)
            if now_ns - self._settled_ns > SETTLE_NS:
                self._settle(now_ns)

    def call(self, loader: Any) -> LoaderCall:
        """A loader of ours that is made around ``loader``, one of torch's, is asked for a batch. In this thread, until ``answered``."""
        now_ns = time.monotonic_ns()
        with self._lock:
            call = self._around[threading.get_ident()] = LoaderCall(self._books_of(loader), now_ns)
            for book in call.books:
                book.opened(id(call), now_ns)
        return call

    def answered(self, call: LoaderCall, cause: str, batch: Any, *, batched: bool) -> None:
        """It has given ``batch``, which is a step; or raised (``NO_BATCH``). Time that torch's loader did not take is of ``cause``."""
        now_ns = time.monotonic_ns()
        with self._lock:
            self._around.pop(threading.get_ident(), None)
            samples = 0 if batch is NO_BATCH else samples_in(batch, batched=batched)
            rest_ns = call.rest_ns(now_ns)
            for book in call.books:
                book.stall({cause if rest_ns >= BRIEF_NS else "transfer": rest_ns})
                book.closed(id(call), now_ns)
                if batch is not NO_BATCH:
                    book.batch(samples)

    def totals(self, loader: Any = None) -> StallTotals:
        """Of this process, or of one loader of torch's."""
        with self._lock:
            now_ns = time.monotonic_ns()  # here: wall time that went back would be a meter that began anew
            for thread, (iterator, one, call) in tuple(self._now_in.items()):
                self._note(one, call.start_ns, now_ns, call.worker)
                self._now_in[thread] = iterator, one, call._replace(start_ns=now_ns)
            for one in tuple(self._passes.values()):
                one.meet()
            for known in tuple(self._loaders.values()):
                if (keeper := known()) is not None and kept_alone(keeper):
                    self._leave_off(keeper._iterator)
            self._settle(now_ns)
            books = self._books if loader is None else self._of_loader.get(loader)
            if books is None:
                return StallTotals()
            pending_ns = sum(stall.stall_ns for stall in self._pending if books in stall.one.books)
            for thread, around in tuple(self._around.items()):
                if books in around.books:
                    inside = self._now_in.get(thread)
                    pending_ns += around.rest_ns(now_ns) - (now_ns - inside[2].called_ns if inside is not None else 0)
            return books.totals(now_ns, pending_ns)

    def waiting(self) -> Optional[TrainerWait]:
        """The call of ``next`` that has lasted longest; None while the trainer asks for no batch."""
        with self._lock:
            if not self._now_in:
                return None
            _, one, call = min(self._now_in.values(), key=lambda each: each[2].called_ns)
            page = one.page_of(call.worker)
            return TrainerWait(call.called_ns, call.worker, one.pid_of(call.worker), page.view() if page is not None else None)

    def thread(self) -> Optional[int]:
        """The thread that makes batches in this very process now: what its observer looks at."""
        return next((thread for thread, (_, one, _) in tuple(self._now_in.items()) if one.alone), None)

    def _pass(self, iterator: Any, now_ns: int) -> LoaderPass:
        found = self._passes.get(iterator)
        if found is None:
            known = self._loaders.get(iterator)
            found = LoaderPass(iterator, self._books_of(known() if known is not None else None))
            self._passes[iterator] = found
            weakref.finalize(iterator, self._gone, id(iterator), found, os.getpid()).atexit = False
        for book in found.books:
            book.opened(id(iterator), now_ns)
        return found

    def _books_of(self, loader: Any) -> "tuple[StallBooks, ...]":
        return (self._books,) if loader is None else (self._books, self._of_loader.setdefault(loader, StallBooks()))

    def _gone(self, one: int, of: LoaderPass, pid: int) -> None:
        """An iterator that was left in the middle. No lock is taken: the garbage collector may run anywhere, also within it."""
        if pid == os.getpid():
            self._close(one, of, time.monotonic_ns())

    def _leave_off(self, iterator: Any) -> None:
        """Its pass, if one is on, was left in the middle: it ended with the last batch."""
        one = self._passes.get(iterator)
        if one is not None:
            self._close(id(iterator), one, one.answered_ns)

    def _close(self, one: int, of: LoaderPass, now_ns: int) -> None:
        for book in of.books:
            book.closed(one, now_ns)

    def _note(self, one: LoaderPass, start_ns: int, end_ns: int, worker: int, ended: bool = False) -> None:
        stall_ns = end_ns - start_ns
        if stall_ns >= BRIEF_NS:
            page = one.page_of(worker)
            if page is not None:
                page.found()  # now: it goes with its worker
            self._pending.append(_Stall(one, start_ns, end_ns, stall_ns, worker, ended))
        elif not one.alone:
            for book in one.books:
                book.stall({"transfer": stall_ns})
        elif self._pending and self._pending[-1].brief and self._pending[-1].one is one:
            last = self._pending.pop()
            self._pending.append(last._replace(end_ns=end_ns, stall_ns=last.stall_ns + stall_ns))
        else:  # one ns longer than it was: so it is known for brief
            self._pending.append(_Stall(one, start_ns - 1, end_ns, stall_ns, worker))

    def _settle(self, now_ns: int) -> None:
        """Book what the pages tell by now, the oldest first."""
        self._settled_ns = now_ns
        left: Deque[_Stall] = deque()
        while self._pending:
            stall = self._pending.popleft()
            page = stall.one.page_of(stall.worker)
            seen = page is not None and page.found()
            is_told = page is None or (seen and page.settled_ns() >= stall.end_ns)
            waits = now_ns - stall.end_ns < PATIENCE_NS and len(self._pending) + len(left) < _MOST_PENDING
            if not is_told and waits and (now_ns - stall.end_ns < LOOK_NS or page is None or page.look()):
                left.append(stall)
                continue
            told = page.told(stall.start_ns, stall.end_ns) if page is not None and seen else None
            by_cause = attributed(stall.start_ns, stall.end_ns, told, ended=stall.ended)
            self._book(stall, stretched(by_cause, stall.stall_ns) if stall.brief else by_cause, page)
        self._pending = left

    def _book(self, stall: _Stall, by_cause: Dict[str, int], page: Optional[SeenPage]) -> None:
        shard = "" if page is None else page.shard
        for book in stall.one.books:
            book.stall(by_cause)
            if page is not None:
                book.waited_for(page.pid, stall.worker, stall.stall_ns, shard)


CLOCK = StallClock()
os.register_at_fork(after_in_child=CLOCK.renew)
