"""What plans report to whoever acts on them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay_proxy.core.events import Fact
from forebay_proxy.policy.plans.reader_plan import ReaderPlan

__all__ = ["NextUseChanged", "PlanAdvanced", "SetShardOpened"]


@dataclass(frozen=True, slots=True)
class PlanAdvanced(Fact):
    """A reader moved, or its plan was replaced, extended or withdrawn."""

    plan: ReaderPlan


@dataclass(frozen=True, slots=True)
class NextUseChanged(Fact):
    """These shards, of those whose next use was asked for, are used at another time than before."""

    names: Iterable[str]


@dataclass(frozen=True, slots=True)
class SetShardOpened(Fact):
    """A reader of ``job`` opened a shard of the set ``key``, in the job's pass number ``epoch`` over it."""

    key: str
    name: str
    job: str
    epoch: int
