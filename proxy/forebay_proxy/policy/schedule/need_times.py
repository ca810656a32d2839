"""When what a cursor points at is needed: by its reader's own rate, and by the rate its job's readers share. Pure."""

from __future__ import annotations

from forebay_proxy.core.segments import SEGMENT_BYTES, segment_count
from forebay_proxy.policy.schedule.cursors import OriginCursor
from forebay_proxy.policy.schedule.job_rate import JobRates
from forebay_proxy.policy.schedule.request import CacheView

__all__ = ["NeedTimes"]


class NeedTimes:
    """Times in seconds of the plans' clock. Not thread-safe: the event loop's only."""

    def __init__(self, view: CacheView, rates: JobRates) -> None:
        self._view = view
        self._rates = rates

    def need(self, lane: OriginCursor) -> float:
        """When what the lane's cursor points at is needed, by its reader's own rate."""
        plan, index = lane.cursors.plan, lane.indices[0]
        need_at = plan.need_at(index)
        if lane.segment:
            length = self._view.length(lane.cursors.shard(index).name) or SEGMENT_BYTES
            need_at += lane.segment / segment_count(length) / plan.rate
        return need_at

    def due(self, lane: OriginCursor) -> float:
        """The same by the rate that the job's readers share, so that the reader with the least lead is first. Infinite for an empty lane.

        A reader's own rate tells how well it was served: a reader that is served well reads fast, its needs look near, and it is served
        again, while a reader that waits looks slow (measured: a lead of 20 segments beside one of none). So a reader's own rate counts only
        if it has never waited and is still far slower than the others.
        """
        if not lane.indices:
            return float("inf")
        cursors = lane.cursors
        plan, inside = cursors.plan, cursors.inside
        since = plan.since if plan.opened_at is None else plan.opened_at
        lead = cursors.lead.known_before(lane.indices[0], inside.bytes)
        return since + lead / self._rates.rate(lane.job, None if inside.has_waited else plan.rate)
