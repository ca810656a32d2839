"""The readers with a plan, each with its cursors; the rates of their jobs, and the lengths of their shards. Pure.

A job's rate is bytes divided by time, both summed over the shards that its readers passed recently. So each interval counts by its length;
a mean of rates would be dominated by bursts. Readers of one job mostly advance in step (a DataLoader takes a batch from each in turn), and
then this is also the rate of each reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay_proxy.policy.plans.reader_plan import START_RATE, ReaderPlan
from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.cursors import CacheView, OriginCursor, ReaderCursors
from forebay_proxy.policy.schedule.window import ReadAheadWindow, WindowShares
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["JobRates", "PlannedReaders"]

KEPT = 0.95  # factor for the sums at each passed shard: the last twenty count
SLOW = 0.5  # of the common rate: a reader below this is slow by itself; unequal shard lengths alone explain 0.6
START_BYTES_S = START_RATE * 240 * 2**20  # the same 50 MB/s before anything is measured
LENGTH_WEIGHT = 0.3  # of the newest shard's length in the running mean


@dataclass(slots=True)
class _Sums:
    seconds: float = 0.0
    shards: float = 0.0
    bytes: float = 0.0


class JobRates:
    """One rate per job, and the running mean of its shards' lengths. Not thread-safe: used on the event loop alone."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Sums] = {}
        self.lengths: dict[str, float] = {}

    def learn(self, job: str, seconds: float, size: int) -> None:
        """A reader of ``job`` spent ``seconds`` in a shard of ``size`` bytes."""
        sums = self._jobs.setdefault(job, _Sums())
        sums.seconds = sums.seconds * KEPT + seconds
        sums.shards = sums.shards * KEPT + 1
        sums.bytes = sums.bytes * KEPT + size

    def rate(self, job: str, own: float | None = None) -> float:
        """Bytes per second of one reader. ``own``: shards per second of a reader that never waits; a much lower rate of its own counts."""
        sums = self._jobs.get(job)
        if sums is None or not sums.seconds or not sums.bytes:
            return START_BYTES_S
        common = sums.bytes / sums.seconds
        slower = 1.0 if own is None else own * sums.seconds / sums.shards
        return common * slower if slower < SLOW else common

    def learn_length(self, job: str, length: int) -> None:
        """A shard that ``job`` will read has ``length`` bytes."""
        before = self.lengths.get(job, length)
        self.lengths[job] = before + LENGTH_WEIGHT * (length - before)

    def expected(self, job: str, otherwise: int) -> int:
        """Expected bytes of the next shard of ``job``; ``otherwise`` if no length is known."""
        return int(self.lengths.get(job, otherwise))

    def clear(self) -> None:
        """Forget everything: there are no readers."""
        self._jobs.clear()
        self.lengths.clear()


class PlannedReaders:
    """The cursors of each reader. Not thread-safe: used on the event loop alone."""

    def __init__(self, plans: PlanRegistry, view: CacheView) -> None:
        self.shares = WindowShares(view.capacity)
        self.rates = JobRates()
        self._plans = plans
        self._view = view
        self._cursors: dict[ReaderName, ReaderCursors] = {}

    def __len__(self) -> int:
        return len(self._cursors)

    def get(self, reader: ReaderName) -> ReaderCursors | None:
        """The cursors of ``reader``; None if it has no plan."""
        return self._cursors.get(reader)

    def all(self) -> Iterable[ReaderCursors]:
        """The cursors of all readers."""
        return self._cursors.values()

    def window_bytes(self, reader: ReaderName) -> int:
        """The size of the reader's window; 0 for a reader without a plan."""
        mine = self._cursors.get(reader)
        return mine.window.bytes if mine else 0

    def advanced(self, plan: ReaderPlan) -> tuple[ReaderCursors | None, ReaderCursors | None]:
        """A reader moved, or its plan was replaced, extended or withdrawn. Returns the cursors that are over, and those to check again."""
        mine = self._cursors.get(plan.reader)
        if self._plans.get(plan.reader) is not plan:
            if mine is None or mine.plan is not plan:
                return None, None
            self._drop(mine)
            return mine, None
        over = None
        if mine is None or mine.plan is not plan or plan.position < mine.position:
            over, mine = mine, self._begin(plan, mine)
        elif plan.position > mine.position:
            mine.inside.has_waited = False
            self._passed_on(mine)
        mine.advance()
        mine.inside.bytes = self._inside_bytes(plan)
        return over, mine

    def _begin(self, plan: ReaderPlan, before: ReaderCursors | None) -> ReaderCursors:
        if before is not None:
            self._drop(before)
        self.shares.add(plan.reader)
        window = before.window if before else self._window(plan)
        mine = self._cursors[plan.reader] = ReaderCursors(plan, window, self._plans.shard_at)
        return mine

    def _window(self, plan: ReaderPlan) -> ReadAheadWindow:
        return ReadAheadWindow(self.shares.limit_bytes(plan.reader.job), self._view.layout.segment_bytes)

    def _drop(self, mine: ReaderCursors) -> None:
        del self._cursors[mine.reader]
        self.shares.remove(mine.reader)
        if not self._cursors:
            self.rates.clear()

    def _passed_on(self, mine: ReaderCursors) -> None:
        """The reader opened another shard: learn how long the one before took."""
        before, now = mine.inside.opened_at, mine.plan.pace.opened_at
        if before is not None and now is not None:
            self.rates.learn(mine.reader.job, now - before, mine.inside.bytes)

    def _inside_bytes(self, plan: ReaderPlan) -> int:
        """Bytes of the shard that the reader is in; 0 before the first."""
        if plan.pace.opened_at is None or not plan.position:
            return 0
        length = self._view.length(self._plans.shard_at(plan, plan.position - 1).name)
        return self.rates.expected(plan.reader.job, self._view.layout.segment_bytes) if length is None else length

    def learn(self, name: str) -> None:
        """The shard ``name`` was opened: learn its length, if it is known."""
        length = self._view.length(name)
        if length is not None:
            for plan, _ in self._plans.mentions(name):
                self.rates.learn_length(plan.reader.job, length)

    def back_to(self, name: str) -> list[OriginCursor]:
        """A segment of the shard is missing: move cursors that were beyond the shard back to it, and return their lanes."""
        found = ((self._cursors.get(plan.reader), plan, index) for plan, index in self._plans.mentions(name))
        lanes = (mine.fall_back(index, self._plans.shard_at(plan, index).origin) for mine, plan, index in found if mine)
        return [lane for lane in lanes if lane is not None]
