"""Who asked for a shard's use is told when it changes; how uses are ordered is told in test_plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from support.house import shard_of

from forebay_proxy.policy.plans.epochs import EpochTracker
from forebay_proxy.policy.plans.next_use import Rank, UseOrder
from forebay_proxy.policy.plans.plan_storage import PlanStorage
from forebay_proxy.policy.plans.shard_ids import ShardIds

A, B = shard_of("https://o/set/a.tar"), shard_of("https://o/set/b.tar")


def test_only_who_asked_is_told_and_only_until_it_is_forgotten() -> None:
    """By number, as plans say it, and by name, as openings do."""
    told: list[set[str]] = []
    shard_ids, passes = ShardIds(), EpochTracker()

    def hear(names: Iterable[str]) -> None:
        told.append({*names})

    uses = UseOrder(shard_ids, PlanStorage(shard_ids, lambda numbers: None), passes, Counter(), hear)
    numbers = shard_ids.ids([A, B])
    uses.tell(numbers)
    passes.opened(A, "job", 1.0)
    assert uses.next(A.name, A.group, 1.0, 60.0).rank is Rank.READ
    uses.tell(numbers)
    uses.tell_of(hash(A.name), A.name)
    uses.tell_of(hash(B.name), B.name)
    uses.forget(A.name)
    uses.tell(numbers)
    assert told == [{A.name}, {A.name}]
