"""The readers that have announced what they will open, each with its cursors, and what is known of their jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.policy.schedule.cursors import OriginCursor, ReaderCursors
from forebay_proxy.policy.schedule.job_rate import JobRates
from forebay_proxy.policy.schedule.request import CacheView
from forebay_proxy.policy.schedule.shard_lengths import ShardLengths
from forebay_proxy.policy.schedule.window import ReadAheadWindow
from forebay_proxy.policy.schedule.window_shares import WindowShares
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["PlannedReaders"]


class PlannedReaders:
    """Cursors by reader. Not thread-safe: the event loop's only."""

    def __init__(self, plans: PlanRegistry, view: CacheView) -> None:
        self.shares = WindowShares(view.capacity)
        self.rates = JobRates()
        self.lengths = ShardLengths()
        self._plans = plans
        self._view = view
        self._cursors: dict[ReaderName, ReaderCursors] = {}

    def __len__(self) -> int:
        return len(self._cursors)

    def __repr__(self) -> str:
        return f"<PlannedReaders {len(self._cursors)}>"

    def get(self, reader: ReaderName) -> ReaderCursors | None:
        """The cursors of ``reader``; None: it has no plan."""
        return self._cursors.get(reader)

    def all(self) -> Iterable[ReaderCursors]:
        """Everybody's."""
        return self._cursors.values()

    def window_bytes(self, reader: ReaderName) -> int:
        """How far ahead the reader's window goes; 0 for a reader without a plan."""
        mine = self._cursors.get(reader)
        return mine.window.bytes if mine else 0

    def advanced(self, plan: ReaderPlan) -> tuple[ReaderCursors | None, ReaderCursors | None]:
        """A reader moved, its plan was replaced, extended or withdrawn: the cursors that are over, and those to look at again."""
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
        self.shares.enter(plan.reader)
        window = before.window if before else ReadAheadWindow(self.shares.limit(plan.reader.job))
        mine = self._cursors[plan.reader] = ReaderCursors(plan, window, self._plans.shard_at)
        return mine

    def _drop(self, mine: ReaderCursors) -> None:
        del self._cursors[mine.reader]
        self.shares.leave(mine.reader)
        if not self._cursors:
            self.rates.clear()
            self.lengths.clear()

    def _passed_on(self, mine: ReaderCursors) -> None:
        """Its reader opened another shard: the one before took it so long."""
        before, now = mine.inside.opened_at, mine.plan.opened_at
        if before is not None and now is not None:
            self.rates.took(mine.reader.job, now - before, mine.inside.bytes)

    def _inside_bytes(self, plan: ReaderPlan) -> int:
        """Bytes of the shard the reader is in; 0 before the first."""
        if plan.opened_at is None or not plan.position:
            return 0
        length = self._view.length(self._plans.shard_at(plan, plan.position - 1).name)
        return self.lengths.expected(plan.reader.job, SEGMENT_BYTES) if length is None else length

    def learn(self, name: str) -> None:
        """The shard of this name was opened: its length is known, if it is one."""
        length = self._view.length(name)
        if length is not None:
            for plan, _ in self._plans.mentions(name):
                self.lengths.learn(plan.reader.job, length)

    def back_to(self, name: str) -> list[OriginCursor]:
        """Something of the shard is missing: the lanes whose cursors were beyond it, and have come back to it."""
        found = ((self._cursors.get(plan.reader), plan, index) for plan, index in self._plans.mentions(name))
        lanes = (mine.fall_back(index, self._plans.shard_at(plan, index).origin) for mine, plan, index in found if mine)
        return [lane for lane in lanes if lane is not None]
