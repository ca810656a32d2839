"""Messages that come twice, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.house import FakeClock, reader, shard_of

from forebay_proxy.policy.plans.registry import PlanGap, PlanRegistry

SHARDS = [shard_of(f"https://o/set/{number}.tar") for number in range(40)]
R = reader()


def names(plans: PlanRegistry) -> list[str]:
    plan = plans.get(R)
    return [plans.shard_at(plan, index).name for index in range(plan.position, len(plan))] if plan else []


def of(first: int, last: int) -> list[str]:
    return [shard.name for shard in SHARDS[first:last]]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=20))
def test_whatever_overlaps_is_held_once(messages: Sequence[tuple[int, int]]) -> None:
    """Any pieces of one sequence: what is held is always its beginning, without a hole and without a double."""
    plans, end = PlanRegistry(FakeClock()), 0
    for at, count in messages:
        try:
            plans.append(R, SHARDS[at : at + count], at=at)
        except PlanGap:
            assert at > end
            continue
        assert at <= end
        end = max(end, at + count)
        assert names(plans) == of(0, end)


def test_a_plan_that_was_lost_is_asked_for_whole() -> None:
    """A sidecar that has just started holds nothing, and says so."""
    plans = PlanRegistry(FakeClock())
    with pytest.raises(PlanGap, match="begin at 4"):
        plans.append(R, SHARDS[4:6], at=4)
    plans.replace(R, SHARDS[2:6], at=2)
    plans.append(R, SHARDS[6:8], at=6)
    assert names(plans) == of(2, 8)


def test_what_was_opened_counts_as_held() -> None:
    """The past may be cut off; its number stays."""
    plans = PlanRegistry(FakeClock())
    plans.replace(R, SHARDS[:10], at=0)
    for shard in SHARDS[:10]:
        plans.opened(shard, R)
    plans.append(R, SHARDS[8:12], at=8)
    assert names(plans) == of(10, 12)


def test_a_plan_sent_again_whole_goes_on_counting() -> None:
    """The same rest of the plan, told with its place: what comes behind it fits."""
    plans = PlanRegistry(FakeClock())
    plans.replace(R, SHARDS[:10])
    for shard in SHARDS[:4]:
        plans.opened(shard, R)
    plans.replace(R, SHARDS[4:10], at=4)
    plans.append(R, SHARDS[10:12], at=10)
    assert names(plans) == of(4, 12)
