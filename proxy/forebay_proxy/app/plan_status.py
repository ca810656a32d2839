"""What readers announced and how far they are: the JSON of ``GET /v1/plans``, and the lead of each job.

Nothing here walks a plan: a node has thousands of readers, and their plans half a million shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import Any

from forebay_proxy.background.prefetcher import Prefetcher
from forebay_proxy.cache.shard_cache import ShardCache
from forebay_proxy.core.shard import shown_set
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.server.http.plan_route import MOST_ROWS
from forebay_proxy.telemetry.counters import PlanAdherence
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["Lead", "PlanStatus"]


@dataclass(frozen=True, slots=True)
class Lead:
    """How far the cache is ahead of one reader, or of several. ``shards``: how many the bytes are of, if each is as long as the next."""

    bytes: int
    seconds: float
    shards: float = 0.0


class PlanStatus:
    """Asks plans, prefetcher and cache when somebody asks; keeps nothing."""

    def __init__(
        self, *, cache: ShardCache, plans: PlanRegistry, prefetcher: Prefetcher, adherence: PlanAdherence, clock: Callable[[], float]
    ) -> None:
        self._cache = cache
        self._plans = plans
        self._prefetcher = prefetcher
        self._adherence = adherence
        self._clock = clock

    def lead(self, plan: ReaderPlan) -> Lead:
        """Bytes that are here without a gap from the reader's next shard on, and the time until it needs what follows them.

        The shards ahead are taken to be as long as the next one. A reader whose plan is read to its end, or whose next shard is missing,
        has only the time until it opens that one.
        """
        if plan.position >= len(plan):
            return Lead(0, 0.0)
        ahead = self._prefetcher.scheduler.ahead_bytes(plan.reader)
        seconds = max(0.0, plan.need_at(plan.position) - self._clock())
        length = self._cache.length_of(self._plans.shard_at(plan, plan.position).name) if ahead else None
        shards = ahead / length if length else 0.0
        return Lead(ahead, seconds + (shards / plan.pace.rate if shards else 0.0), shards)

    def leads(self) -> dict[str, Lead]:
        """By job: the least of its readers, in bytes and (maybe of another) in seconds. Readers at the end of their plan do not count."""
        leads: dict[str, Lead] = {}
        for plan in self._plans.all():
            if plan.position < len(plan):
                lead, least = self.lead(plan), leads.get(plan.reader.job)
                leads[plan.reader.job] = lead if least is None else Lead(*map(min, astuple(lead), astuple(least)))
        return leads

    def ahead(self, job: str) -> Lead | None:
        """Of all readers of ``job`` together: their bytes and shards added up, and the least of their seconds. None without a plan."""
        leads = [self.lead(plan) for plan in self._plans.all() if plan.reader.job == job and plan.position < len(plan)]
        if not leads:
            return None
        least_s = min(lead.seconds for lead in leads)
        return Lead(sum(lead.bytes for lead in leads), least_s, sum(lead.shards for lead in leads))

    def page(self, job: str | None = None, after: ReaderName | None = None, limit: int = MOST_ROWS) -> dict[str, Any]:
        """``total`` plans (of ``job``), up to ``limit`` of them in the order of their readers' names, those behind ``after``.

        ``next`` is what to give as ``after`` for those that follow; None at the end.
        """
        plans = [plan for plan in self._plans.all() if job is None or plan.reader.job == job]
        total = len(plans)
        if after is not None:
            plans = [plan for plan in plans if _place(plan.reader) > _place(after)]
        plans.sort(key=lambda plan: _place(plan.reader))
        shown = plans[:limit]
        follows = str(shown[-1].reader) if shown and len(plans) > limit else None
        return {"total": total, "plans": self._rows(shown), "next": follows}

    def _rows(self, plans: Iterable[ReaderPlan]) -> list[dict[str, Any]]:
        waiting = self._cache.readers.waits.readers()
        return [self._row(plan, waiting=plan.reader in waiting) for plan in plans]

    def _row(self, plan: ReaderPlan, *, waiting: bool) -> dict[str, Any]:
        lead, followed = self.lead(plan), self._adherence.of(plan.reader)
        return {
            "reader": str(plan.reader),
            "job": plan.reader.job,
            "epoch": plan.epoch,
            "set": plan.set_name and shown_set(plan.set_name),
            "position": plan.position,
            "length": len(plan),
            "rate": plan.pace.rate,
            "lead_bytes": lead.bytes,
            "lead_s": lead.seconds,
            "window_bytes": self._prefetcher.scheduler.readers.window_bytes(plan.reader),
            "waiting": waiting,
            "waited_s": followed.waited_s,
            "silent_s": max(0.0, self._clock() - plan.pace.heard_at),
            "openings": {how: followed.openings[how] for how in ("planned", "skipped", "repeated", "unplanned")},
        }


def _place(reader: ReaderName) -> tuple[object, ...]:
    """Worker 10 behind worker 9."""
    return reader.job, len(reader.rank), reader.rank, len(reader.worker), reader.worker, reader.opener
