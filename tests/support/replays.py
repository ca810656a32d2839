"""Small workloads to replay, of shards told by number; and what readers open next."""

from __future__ import annotations

from collections.abc import Sequence

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.registry import PlanRegistry, ReaderPlan
from forebay_proxy.simulate.workload import ALL, ReaderEpoch, Workload
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["name_of", "nearest", "shards", "small"]


def name_of(number: int) -> str:
    return f"https://o/set/{number}.tar"


def shards(count: int) -> list[Shard]:
    return [Shard.of(parse_origin_url(name_of(number))) for number in range(count)]


def small(orders: Sequence[Sequence[Sequence[int]]], *, segments: int = 1, ahead: int = ALL, jobs: bool = False) -> Workload:
    """Readers by the numbers of their shards, epoch by epoch; of one job, or with ``jobs`` each of its own."""
    known = shards(1 + max((number for epochs in orders for epoch in epochs for number in epoch), default=0))
    readers = {
        ReaderName(f"job{number if jobs else 0}", "0", str(number), f"{number}.0"): [
            ReaderEpoch(place, [known[shard] for shard in epoch]) for place, epoch in enumerate(epochs)
        ]
        for number, epochs in enumerate(orders)
    }
    return Workload(readers, {shard.name: segments * SEGMENT_BYTES for shard in known}, ahead)


def nearest(plans: PlanRegistry) -> list[tuple[float, ReaderPlan, Shard]]:
    """(when needed, by which plan, shard), nearest need first; of equals the plan that was there first."""
    ahead = [
        (plan.need_at(index), order, index, plan)
        for order, plan in enumerate(plans.all())
        for index in range(plan.position, len(plan))
    ]  # fmt: skip
    return [(need, plan, plans.shard_at(plan, index)) for need, _, index, plan in sorted(ahead, key=lambda one: one[:3])]
