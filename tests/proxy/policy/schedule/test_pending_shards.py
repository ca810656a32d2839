"""Which stored shard is compared with its origin next, and which shards no cursor waits for."""

from __future__ import annotations

import pytest
from support.house import FakeClock, reader, shard_of

from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.pending_shards import AT_ONCE, PendingShards, RevalidationQueue

SHARDS = [shard_of(f"https://o/set/{number:02d}.tar") for number in range(2 * AT_ONCE)]


@pytest.fixture
def plans() -> PlanRegistry:
    return PlanRegistry(FakeClock())


def wanting(plans: PlanRegistry, forgone: list[str]) -> RevalidationQueue:
    """One reader that wants all of them, told in the wrong order."""
    plans.replace(reader(), list(SHARDS))
    plan = plans.get(reader())
    assert plan is not None
    revalidations = RevalidationQueue(plans, forgone.append)
    for index in reversed(range(len(SHARDS))):
        revalidations.want(SHARDS[index], plan, index)
    return revalidations


def asked(revalidations: RevalidationQueue) -> list[str]:
    return [found[2].name for found in iter(revalidations.next, None)]


def test_the_nearest_need_is_asked_first_and_no_more_than_a_few_at_once(plans: PlanRegistry) -> None:
    """However many are wanted."""
    assert asked(wanting(plans, [])) == [shard.name for shard in SHARDS[:AT_ONCE]]


def test_an_answer_makes_way_for_the_next_question(plans: PlanRegistry) -> None:
    """And its own is not wanted any more."""
    revalidations = wanting(plans, [])
    asked(revalidations)
    revalidations.ended(SHARDS[3].name)
    assert SHARDS[3].name not in revalidations
    assert asked(revalidations) == [SHARDS[AT_ONCE].name]


def test_a_reader_that_left_is_asked_nothing_for(plans: PlanRegistry) -> None:
    """Each of its questions is told to be forgone, as another reader may wait for the answer."""
    forgone: list[str] = []
    revalidations = wanting(plans, forgone)
    plans.withdraw(reader())
    assert asked(revalidations) == []
    assert sorted(forgone) == [shard.name for shard in SHARDS]
    assert not any(shard.name in revalidations for shard in SHARDS)


def test_what_was_passed_is_not_asked_for(plans: PlanRegistry) -> None:
    """Its reader has asked for itself."""
    forgone: list[str] = []
    revalidations = wanting(plans, forgone)
    plans.opened(SHARDS[2], reader())
    assert asked(revalidations)[0] == SHARDS[3].name
    assert sorted(forgone) == [shard.name for shard in SHARDS[:3]]


def test_a_failure_ends_an_opening() -> None:
    """And lasts until it is forgiven, which begins no other."""
    pending = PendingShards(RevalidationQueue(PlanRegistry(FakeClock()), lambda name: None))
    pending.opening.add("a")
    pending.fail("a")
    assert (pending.opening, pending.failed) == (set(), {"a"})
    pending.forgive("a")
    assert (pending.opening, pending.failed) == (set(), set())


def test_what_ended_is_pending_no_more() -> None:
    """Nor is its comparison."""
    plans = PlanRegistry(FakeClock())
    pending = PendingShards(RevalidationQueue(plans, lambda name: None))
    pending.opening.add("a")
    pending.revalidations._wanted.add("a")
    pending.ended("a")
    assert ("a" in pending.opening, "a" in pending.revalidations) == (False, False)
