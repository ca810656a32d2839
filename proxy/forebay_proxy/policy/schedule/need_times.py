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
        """The same by the rate its job's readers share: whose lead is the least is first. Never, for a lane that wants nothing.

        A reader's own rate says how it was served. Whoever is served well measures a high one, its needs look near, and it is served again,
        while one that waits looks patient (measured: a lead of 20 segments beside one of none). Only one that is far slower though it
        never waits is slow of its own.
        """
        if not lane.indices:
            return float("inf")
        cursors = lane.cursors
        plan, inside = cursors.plan, cursors.inside
        since = plan.since if plan.opened_at is None else plan.opened_at
        lead = cursors.lead.known_before(lane.indices[0], inside.bytes)
        return since + lead / self._rates.rate(lane.job, None if inside.has_waited else plan.rate)
