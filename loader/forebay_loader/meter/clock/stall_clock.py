"""Times exactly how long the training process waits for its loaders. The worker's page says a moment later what each wait was for.

A step may take only a millisecond. So a call of ``next`` that returns at once only adds to sums of its iterator, which are booked once a
second and when somebody asks. Totals may be asked for at any time and from any thread, also while ``next`` is waiting. They include that
wait so far.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from dataclasses import replace
from typing import Any, Callable, Dict, NamedTuple, Optional, Set, Tuple

from forebay_loader.meter.clock.batch_samples import samples_in
from forebay_loader.meter.clock.books import BriefSums, StallBooks
from forebay_loader.meter.clock.loader_pass import Left, LoaderCall, LoaderPass, TrainerWait, kept_alone
from forebay_loader.meter.clock.stall_queue import Stall, StallQueue
from forebay_loader.meter.process_page import process_page
from forebay_loader.meter.totals import StallTotals

__all__ = ["CLOCK", "NO_BATCH", "StallClock"]

NO_BATCH = object()
BRIEF_NS = 500_000  # a shorter stall is only the handing over of a finished batch
# Without workers, short calls are attributed together: the observer does not sample more often than that.
BRIEF_ALONE_NS = 40_000_000
SETTLE_NS = 1_000_000_000  # each request for totals settles too; often enough, since the ring of a page lasts at least six seconds
_KNOWN = "_forebay_pass"  # attribute of torch's iterator that holds its LoaderPass


class LoaderStand(NamedTuple):
    """The position of the trainer in the loader that it used last, while it asks for no batch.

    Loader ``number`` has begun ``passes`` passes and yielded ``steps`` batches. The trainer has had its last batch, or (``ended``) has
    reached the end, for ``for_s`` seconds.
    """

    number: int
    passes: int
    steps: int
    ended: bool
    for_s: float


class StallClock:
    """The clock of one process. Thread-safe."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Reset all, also in a forked child: the loaders belong to its parent."""
        self._lock = threading.Lock()
        self._books = StallBooks()
        self._of_loader: weakref.WeakKeyDictionary[Any, StallBooks] = weakref.WeakKeyDictionary()
        self._loaders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # iterator -> weak reference to its loader
        self._passes: Set[LoaderPass] = set()
        self._calls: Set[LoaderCall] = set()
        self._left: Left = deque()  # passes and calls whose iterators are gone
        self._now_in: Dict[int, LoaderPass] = {}  # thread id -> pass whose next it is in
        self._around: Dict[int, LoaderCall] = {}  # thread id -> call of a loader of ours that made it
        self._queue = StallQueue()
        self._settled_ns = self._loaders_seen = 0
        self._booked_ns = 0  # the waits of this process are booked until then: several threads may wait at once
        self._ended: Optional[Tuple[StallBooks, int]] = None  # the loader whose pass ended last, and when
        self.workers: Optional[int] = None  # number of workers of the loader used last

    def __repr__(self) -> str:
        return f"<StallClock, {len(self._queue)} stalls to be booked>"

    def created(self, loader: Any, iterator: Any) -> None:
        """``iterator`` is being created for ``loader``; it has no workers yet."""
        with self._lock:
            self._loaders[iterator] = weakref.ref(loader)

    def begun(self, iterator: Any, start_ns: int) -> None:
        """``iter(loader)``, called at ``start_ns``, has returned ``iterator``: a new one, or one that starts again."""
        now_ns = time.monotonic_ns()
        with self._lock:  # all under one lock: another thread must not book its start in between
            self._leave_off(iterator)
            one = self._opened(iterator, start_ns)
            since_ns = self._unbooked_since(start_ns, start_ns, now_ns)
            self._books.stall({"start": now_ns - since_ns})
            for book in one.books[1:]:
                book.stall({"start": now_ns - start_ns})
            around = self._around.get(threading.get_ident())
            if around is not None and around.start_ns:
                around.inner_ns += now_ns - start_ns
        self._observe(one)

    def enter(self, iterator: Any) -> bool:
        """``next(iterator)`` is called in this thread. Returns False inside another such call, which is already timed."""
        thread = threading.get_ident()
        if thread in self._now_in:
            return False
        now_ns = time.monotonic_ns()
        one = getattr(iterator, _KNOWN, None)
        if one is None or not one.is_open or one.books[0] is not self._books:
            with self._lock:
                one = self._opened(iterator, now_ns)
            self._observe(one)
        if one.workers:
            one.find_due(iterator)
        one.called_ns = one.start_ns = now_ns
        self._now_in[thread] = one
        self.workers = one.workers
        return True

    def forget_call(self) -> None:
        """Drop this thread's running call: it was interrupted while it began or ended."""
        self._now_in.pop(threading.get_ident(), None)

    def leave(self, iterator: Any, batch: Any, *, ended: bool = False) -> None:
        """``next`` has returned ``batch``, or raised (``NO_BATCH``). ``ended``: it raised ``StopIteration``."""
        now_ns = time.monotonic_ns()
        thread = threading.get_ident()
        one, around = self._now_in[thread], self._around.get(thread)
        if around is not None and not around.start_ns:  # our loader is between two calls
            around = None
        is_step = batch is not NO_BATCH and around is None
        samples = samples_in(batch, batched=one.batched) if is_step else 0
        with self._lock:
            del self._now_in[thread]
            if around is not None:
                around.inner_ns += now_ns - one.called_ns
            elif is_step:
                brief = one.brief
                brief.steps += 1
                brief.samples += samples
                brief.batch_size = samples
            self._took(one, now_ns, one.worker if batch is NO_BATCH else one.given_by(iterator), ended=ended)
            if ended:
                self._close(one, now_ns)
                self._ended = one.books[-1], now_ns
            one.start_ns = now_ns
            if now_ns - self._settled_ns > SETTLE_NS:
                self._settle(now_ns)

    def around(self, loader: Any, cause: Callable[[], str], *, batched: bool) -> LoaderCall:
        """A ``LoaderCall`` for one iteration of a loader of ours around ``loader``, one of torch's. Its own time is
        a stall of ``cause()``.
        """
        with self._lock:
            return LoaderCall(self._books_of(loader), cause, self._left, batched=batched)

    def call(self, call: LoaderCall) -> None:
        """The loader of ``call`` is asked for a batch in this thread, until ``answered``."""
        if not call.is_open:
            with self._lock:
                call.is_open = True
                self._calls.add(call)
                for book in call.books:
                    book.opened(call, time.monotonic_ns())
        self._around[threading.get_ident()] = call
        call.inner_ns = 0
        call.start_ns = time.monotonic_ns()

    def answered(self, call: LoaderCall, batch: Any) -> None:
        """It has yielded ``batch``, which is a step, or raised (``NO_BATCH``)."""
        rest_ns, sums = time.monotonic_ns() - call.start_ns - call.inner_ns, call.sums
        if self._now_in:  # another thread is waiting
            call.start_ns = 0
            sums.aside_ns += rest_ns
        elif rest_ns < BRIEF_NS:
            call.start_ns = 0
            sums.brief_ns += rest_ns
        else:
            with self._lock:  # so that totals() counts it once
                call.start_ns = 0
                sums.long_ns += rest_ns
        call.answered_ns = time.monotonic_ns()
        if batch is not NO_BATCH:
            sums.batch_size = samples_in(batch, batched=call.batched)
            sums.samples += sums.batch_size
            sums.steps += 1

    def totals(self, loader: Any = None) -> StallTotals:
        """The totals of this process, or of one loader of torch's."""
        with self._lock:
            now_ns = time.monotonic_ns()  # under the lock: wall time must never go back, since that means a restart
            for one in sorted(self._now_in.values(), key=lambda each: each.called_ns):
                if now_ns > one.start_ns:
                    self._took(one, now_ns, one.worker)
                    one.start_ns = now_ns
            for known in tuple(self._loaders.values()):
                if (keeper := known()) is not None and kept_alone(keeper):
                    self._leave_off(keeper._iterator)
            self._settle(now_ns)
            books = self._books if loader is None else self._of_loader.get(loader)
            if books is None:
                return StallTotals()
            pending_ns = self._queue.stall_ns(books)
            rests_ns = [0]
            for thread, around in tuple(self._around.items()):
                inside = self._now_in.get(thread)
                if books in around.books and (books is not self._books or len(self._now_in) == (inside is not None)):
                    rests_ns.append(around.long_ns(now_ns, BRIEF_NS, now_ns - inside.called_ns if inside is not None else 0))
            pending_ns += max(rests_ns)
            return replace(books.totals(now_ns, pending_ns), pending_cause=self._seems() if pending_ns else "")

    def _seems(self) -> str:
        """What the longest running call of ``next`` waits for now, as far as its worker says."""
        one = min(tuple(self._now_in.values()), key=lambda each: each.called_ns, default=None)
        page = one.page_of(one.worker) if one is not None else None
        view = page.view() if page is not None else None
        return view.cause if view is not None else ""

    def waiting(self) -> Optional[TrainerWait]:
        """The longest running call of ``next``; None while the trainer asks for no batch."""
        with self._lock:
            one = min(tuple(self._now_in.values()), key=lambda each: each.called_ns, default=None)
            if one is None:
                return None
            page = one.page_of(one.worker)
            return TrainerWait(one.called_ns, one.worker, one.pid_of(one.worker), page.view() if page is not None else None)

    def stand(self) -> Optional[LoaderStand]:
        """The trainer's position in the loader that it used last; None while it waits for a batch, and after it has left the loop."""
        with self._lock:
            now_ns = time.monotonic_ns()
            if self._now_in or any(call.start_ns for call in self._calls):
                return None
            self._settle(now_ns)
            had = [(one.start_ns, one.books[-1], False) for one in self._passes if one.is_open]
            had += [(call.answered_ns, call.books[-1], False) for call in self._calls if call.is_open]
            had += [(ended_ns, books, True) for books, ended_ns in filter(None, [self._ended])]
            since_ns, books, ended = max(had, key=lambda each: each[0], default=(0, self._books, False))
            if books is self._books:
                return None
            return LoaderStand(books.number, books.passes, books.steps, ended, (now_ns - since_ns) / 1e9)

    def thread(self) -> Optional[int]:
        """The thread of this process that makes batches now: its observer samples that one."""
        return next((thread for thread, one in tuple(self._now_in.items()) if not one.workers), None)

    def _opened(self, iterator: Any, now_ns: int) -> LoaderPass:
        """The record of an iterator that is being read. Callers hold the lock."""
        one: Optional[LoaderPass] = getattr(iterator, _KNOWN, None)
        if one is None or one.books[0] is not self._books:
            known = self._loaders.get(iterator)
            one = LoaderPass(iterator, self._books_of(known() if known is not None else None))
            setattr(iterator, _KNOWN, one)
            self._passes.add(one)
            weakref.finalize(iterator, _gone, one, self._left, os.getpid()).atexit = False
        self._forget_left()
        one.is_open = True
        one.books[-1].passes += 1
        for book in one.books:
            book.retire()
            book.opened(one, now_ns)
        return one

    def _observe(self, one: LoaderPass) -> None:
        if not one.workers:
            process_page.begin(self.thread)

    def _books_of(self, loader: Any) -> Tuple[StallBooks, ...]:
        if loader is None:
            return (self._books,)
        books = self._of_loader.get(loader)
        if books is None:
            books = self._of_loader[loader] = StallBooks()
            books.number, self._loaders_seen = self._loaders_seen, self._loaders_seen + 1
        return (self._books, books)

    def _forget_left(self) -> None:
        while self._left:
            one, gone_ns = self._left.popleft()
            if isinstance(one, LoaderPass):
                self._close(one, gone_ns)
                self._passes.discard(one)
            else:
                one.end(gone_ns)
                self._calls.discard(one)
                for thread in [thread for thread, around in tuple(self._around.items()) if around is one]:
                    del self._around[thread]

    def _leave_off(self, iterator: Any) -> None:
        """If a pass of this iterator is running, it was abandoned: it ended with its last batch."""
        one: Optional[LoaderPass] = getattr(iterator, _KNOWN, None)
        if one is not None and one.is_open:
            self._close(one, one.start_ns)

    def _close(self, one: LoaderPass, now_ns: int) -> None:
        self._fold(one)
        one.close(now_ns)

    def _took(self, one: LoaderPass, now_ns: int, worker: int, *, ended: bool = False) -> None:
        """Its call has run from ``start_ns`` until now."""
        since_ns = self._unbooked_since(one.called_ns, one.start_ns, now_ns)
        if since_ns > one.start_ns:  # for the process, this time belongs to another thread's wait
            is_all = since_ns == now_ns
            self._queue.add(Stall(one, one.start_ns, since_ns, since_ns - one.start_ns, worker, one.books[1:], ended and is_all))
            if is_all:
                return
        stall_ns, brief = now_ns - since_ns, one.brief
        if stall_ns < (BRIEF_NS if one.workers else BRIEF_ALONE_NS):
            if not brief.stall_ns:
                brief.start_ns = since_ns
            brief.stall_ns += stall_ns
            brief.end_ns = now_ns
        else:
            if not one.workers:
                self._fold(one)  # the oldest first
            self._queue.add(Stall(one, since_ns, now_ns, stall_ns, worker, one.books, ended))

    def _unbooked_since(self, called_ns: int, start_ns: int, now_ns: int) -> int:
        """The start of the time up to now that this process must still book, for a wait that began at ``called_ns``.

        If several threads wait, the time is booked once, for the thread that waits longest. Returns ``now_ns`` if that is another thread.
        """
        if any(other.called_ns < called_ns for other in tuple(self._now_in.values())):
            return now_ns
        since_ns, self._booked_ns = min(max(start_ns, self._booked_ns), now_ns), max(self._booked_ns, now_ns)
        return since_ns

    def _fold(self, one: LoaderPass) -> None:
        """Book the sums of its brief calls."""
        brief, one.brief = one.brief, BriefSums()
        for book in one.books:
            if brief.steps:
                book.given(brief.steps, brief.samples, brief.batch_size)
            if one.workers and brief.stall_ns:
                book.stall({"transfer": brief.stall_ns})
        if not one.workers and brief.stall_ns:
            self._queue.add(Stall(one, brief.start_ns, brief.end_ns, brief.stall_ns, -1, one.books))

    def _settle(self, now_ns: int) -> None:
        self._settled_ns = now_ns
        for one in self._passes:
            self._fold(one)
        for call in self._calls:
            call.book()
        self._forget_left()
        self._queue.settle(now_ns)


def _gone(one: LoaderPass, left: Left, pid: int) -> None:
    """An iterator was abandoned. Takes no lock: the garbage collector may call this anywhere, even while the lock is held."""
    if pid == os.getpid():
        left.append((one, time.monotonic_ns()))


CLOCK = StallClock()
os.register_at_fork(after_in_child=CLOCK.renew)
