"""Which shards no cursor waits for."""

from __future__ import annotations

from support.house import FakeClock

from forebay_proxy.policy.plans.registry import PlanRegistry
from forebay_proxy.policy.schedule.queues.pending_shards import PendingShards
from forebay_proxy.policy.schedule.queues.revalidations import RevalidationQueue


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
