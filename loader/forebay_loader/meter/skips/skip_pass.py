"""The skips of one iteration of a data set in this process: counts, limits, and one log line. Each worker counts for itself.

Stages get it by ``current()`` while their pipeline is built, and keep it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from datetime import datetime, timezone
from multiprocessing import util
from typing import Any, Callable, Deque, Iterable, Iterator, NamedTuple, Optional, Set, Union

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import TooManySkips
from forebay_loader.base.notices import log
from forebay_loader.identity.reader_name import ensure_job, rank_of
from forebay_loader.identity.world import World, here_worker
from forebay_loader.meter.skips.counts import Skip, SkipCounts, SkipLimits, Tally
from forebay_loader.meter.skips.skips_file import SKIPS_FILE

__all__ = ["SkipPass", "SkipScope", "current", "dataset_pass", "lone_pass", "making"]

MOST_NAMES = 1 << 14  # names of shards with skips, to count them
_MAKING = threading.local()  # .skips: of the pipeline that this thread is building
# A loader forks its workers while the pipeline after it is being built: their pipelines are others.
os.register_at_fork(after_in_child=lambda: vars(_MAKING).clear())


class SkipScope(NamedTuple):
    """Who reads, for log lines and messages. ``epoch`` is None if unknown; ``size`` is the number of ranks; ``behind``: after a loader."""

    epoch: Optional[int]
    rank: int
    size: int
    worker: int
    workers: int
    behind: bool = False

    @classmethod
    def alone(cls) -> SkipScope:
        """This process, if it is not known which workers belong together."""
        worker = here_worker()
        return cls(None, rank_of(os.environ), 1, worker.id, worker.workers)

    def __str__(self) -> str:
        rank = f"rank {self.rank}, " if self.size > 1 else ""
        if self.epoch is not None:
            return f"{rank}epoch {self.epoch}" + (f", worker {self.worker}" if self.workers > 1 else "")
        return f"{rank}{'behind a loader' if self.behind else f'worker {self.worker}'}, a pass"


class SkipPass:
    """The skips of one iteration. Not thread-safe.

    Stages set whether they read shards (``reads``) and whether samples and shards are counted (``counts_samples``, ``counts_shards``).
    ``repeats()`` is True while a resume reads samples again.
    """

    def __init__(self, limits: SkipLimits, scope: SkipScope) -> None:
        self._limits = limits
        self._scope = scope
        self._read, self._begun = Tally(), Tally()
        self._counts = SkipCounts()
        self._touched: Set[str] = set()
        self._last: Deque[Skip] = deque(maxlen=3)
        self._exit: Optional[util.Finalize] = None
        self._is_over = False
        self._pid = os.getpid()
        self._refused = ""  # the message that was raised: no stage may hide it
        self.reads = self.counts_samples = self.counts_shards = False
        self.repeats: Callable[[], bool] = bool

    def __repr__(self) -> str:
        return f"<SkipPass {self._scope}: {self._own()}>"

    @property
    def behind(self) -> bool:
        """Whether its samples come from a loader."""
        return self._scope.behind

    def counting(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield ``samples``, and count them as read."""
        self.counts_samples = True
        return self._read.counting(samples)

    def samples(self) -> int:
        """How many samples this process has read."""
        return self._read.now()

    def passed_over(self) -> int:
        """How much handlers have skipped in this process."""
        return self._counts.all

    def refused(self) -> int:
        """How many samples handlers have skipped in this process because stages after the reader refused them."""
        return self._counts.decode + self._counts.map

    def opening(self, shards: Iterable[Any]) -> Iterator[Any]:
        """Yield the open ``shards``, and count them."""
        self.counts_shards = True
        return self._begun.counting(shards)

    def add(self, skip: Skip, in_a_row: int, cause: Optional[BaseException] = None) -> None:
        """Count and list ``skip``, which is number ``in_a_row`` in a row in its stage. Raises ``TooManySkips`` above the limits."""
        self._last.append(skip)
        self._count(skip)
        if not self.repeats():  # otherwise the run before the resume has counted and listed it
            COUNTS.add(f"skipped_{skip.stage}")
            SKIPS_FILE.append({**self._who(), **skip._asdict()})
        reason = self._limits.passed(self._own()) or self._limits.passed_in_a_row(in_a_row)
        if reason:
            self._refused = self._told(reason)
            raise TooManySkips(self._refused) from cause

    def list(self, told: Skip) -> None:
        """List ``told``, which does not count for any limit."""
        if not self.repeats():
            SKIPS_FILE.append({**self._who(), **told._asdict()})

    def end_with_process(self) -> None:
        """End this pass, as left early, when the process ends. Needed since the meter's thread may keep a worker's iterator from being
        closed.
        """
        self._exit = util.Finalize(self, _leave, (weakref.ref(self),), exitpriority=10)

    def until_end(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield ``samples``, then write the log line."""
        over = False
        self.end_with_process()
        try:
            yield from samples
            over = True
        finally:
            self.end(over=over)
        self.judge()

    def end(self, *, over: bool) -> None:
        """The iteration has ended (``over``) or was left early: write the log line."""
        if sys.is_finalizing() or self._is_over or self._pid != os.getpid():
            return  # logging may be gone, or this is a forked copy of the parent's pass
        self._is_over = True
        if self._exit is not None:
            self._exit.cancel()
        counts = self._own()
        early = "" if over else ", left early"
        stopped = f"; handlers ended the reading before its end, {counts.stopped} times" if counts.stopped else ""
        listed = f"; see {SKIPS_FILE.path}" if counts.all else ""
        level = logging.WARNING if counts.all or counts.stopped else logging.INFO
        log.log(level, "forebay: %s%s: %s%s%s", self._scope, early, counts, stopped, listed)

    def judge(self) -> None:
        """Check the limits after ``end``, if everything was read. Raises ``TooManySkips`` if this process read all of it and the share is
        too high.

        Raises it again if it was raised before and a stage has swallowed it.
        """
        reason = self._limits.passed(self._own(), over=self._scope.workers == 1)
        if self._refused or reason:
            raise TooManySkips(self._refused or self._told(reason))

    def _count(self, skip: Skip) -> None:
        kind = skip.stage if skip.stage != "read" or skip.what == "shard" else "file"
        if skip.shard and len(self._touched) < MOST_NAMES:
            self._touched.add(skip.shard)
        counts = self._counts._replace(**{kind: getattr(self._counts, kind) + 1}, touched=len(self._touched))
        self._counts = counts._replace(stopped=counts.stopped + (skip.then == "stop"))

    def _own(self) -> SkipCounts:
        counts = self._counts
        return counts._replace(samples=self._read.now(), shards=self._begun.now() + counts.open if self.counts_shards else 0)

    def _who(self) -> "dict[str, Any]":
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")  # Python 3.9
        return {"time": time, "job": ensure_job(), "rank": self._scope.rank, "worker": self._scope.worker, "epoch": self._scope.epoch}

    def _told(self, reason: str) -> str:
        last = "; ".join(str(skip) for skip in self._last)
        return f"{self._scope}: {reason}. The last here: {last or 'none'}. All are listed in {SKIPS_FILE.path}"


def _leave(skips: "weakref.ref[SkipPass]") -> None:
    found = skips()
    if found is not None:
        found.end(over=False)


@contextmanager
def making(skips: SkipPass) -> Iterator[None]:
    """Stages that this thread builds inside the ``with`` block belong to this pass."""
    outer = current()
    _MAKING.skips = skips
    try:
        yield
    finally:
        _MAKING.skips = outer


def current() -> Optional[SkipPass]:
    """The pass whose pipeline this thread is building."""
    found: Optional[SkipPass] = getattr(_MAKING, "skips", None)
    return found


SHARE, IN_A_ROW = "FOREBAY_MAX_SKIPPED", "FOREBAY_MAX_CONSECUTIVE_SKIPS"


def dataset_pass(most: Union[int, float, None], in_a_row: Optional[int], epoch: int, world: World) -> SkipPass:
    """A pass for an iteration of ``epoch`` of an ``fb.WebDataset`` in this process. A limit of None is read from the environment.

    Raises ``ValueError`` if the environment has an invalid one.
    """
    worker = here_worker()
    return SkipPass(_limits(most, in_a_row), SkipScope(epoch, world.rank, world.size, worker.id, worker.workers))


def lone_pass(*, behind: bool = False) -> SkipPass:
    """A pass of a pipeline that is not ours. It counts in this process alone, with the limits of the environment.

    ``behind``: its samples come from a ``DataLoader``.
    """
    return SkipPass(_limits(), SkipScope.alone()._replace(behind=behind))


def _limits(most: Union[int, float, None] = None, in_a_row: Optional[int] = None) -> SkipLimits:
    most = _number(SHARE, float) if most is None else most
    return SkipLimits.of(most, _number(IN_A_ROW, int) if in_a_row is None else in_a_row)


def _number(name: str, kind: Any) -> Any:
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        return int(text) if text.isascii() and text.isdigit() else kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}, which is no number") from None
