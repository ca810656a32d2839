"""What readers open next, over all of them."""

from __future__ import annotations

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan

__all__ = ["nearest"]


def nearest(plans: PlanRegistry) -> list[tuple[float, ReaderPlan, Shard]]:
    """(when needed, by which plan, shard), nearest need first; of equals the plan that was there first."""
    ahead = [
        (plan.need_at(index), order, index, plan)
        for order, plan in enumerate(plans.all())
        for index in range(plan.position, len(plan))
    ]  # fmt: skip
    return [(need, plan, plans.shard_at(plan, index)) for need, _, index, plan in sorted(ahead, key=lambda one: one[:3])]
