"""In what order shards leave."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.house import FakeClock, reader, shard_of
from support.lengths import examples

from forebay_proxy.core.events import Events
from forebay_proxy.policy.eviction.eviction_queue import EvictionQueue
from forebay_proxy.policy.plans.registry import NextUse, NextUseChanged, PlanRegistry, Rank

KEYS = [f"k{number}" for number in range(3)]
few = st.integers(0, 1).map(float)
uses = st.builds(NextUse, st.sampled_from([Rank.READ, Rank.AHEAD]), few, then=few)  # few: a key comes back to where it was


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), uses), st.one_of(st.none(), st.integers(0, 4)))))
def test_the_order_is_that_of_a_sorted_list(steps: list[tuple[str, NextUse | None, int | None]]) -> None:
    """Any changes, each touched; the order is taken now and then, often only in part."""
    now: dict[str, NextUse] = {}
    eviction_queue = EvictionQueue(now.get)
    for key, use, taken in steps:
        if use is None:
            now.pop(key, None)
        else:
            now[key] = use
        eviction_queue.touch(key)
        if taken is None:
            continue
        order = eviction_queue.order()
        got = [item for item, _ in zip(order, range(taken), strict=False)]
        order.close()  # type: ignore[attr-defined]
        assert [use for use, _ in got] == sorted(now.values())[:taken]
        assert all(now[key] == use for use, key in got)
        assert len({key for _, key in got}) == len(got)
    assert sorted(eviction_queue.order()) == sorted((use, key) for key, use in now.items())
    assert sorted(key for _, key in eviction_queue.order()) == sorted(now)


@pytest.mark.parametrize("refreshed", [False, True])
@given(st.dictionaries(st.sampled_from(KEYS), uses, min_size=1), st.dictionaries(st.sampled_from(KEYS), uses))
def test_what_changed_without_a_touch_is_found(refreshed: bool, before: dict[str, NextUse], later: dict[str, NextUse]) -> None:
    """What stays longer than it seemed, when it comes to the top; by mere time and in whatever direction, after one round of a refresh."""
    now = dict(before)
    eviction_queue = EvictionQueue(now.get)
    for key in now:
        eviction_queue.touch(key)
    now.update({key: use if refreshed else max(now[key], use) for key, use in later.items() if key in now})
    for count in (3, 100, 100) if refreshed else ():
        eviction_queue.refresh(count)
    assert [use for use, _ in eviction_queue.order()] == sorted(now.values())


def test_touching_again_and_again_costs_no_memory() -> None:
    """Old entries are thrown out."""
    now = {"a": NextUse(Rank.READ, 0.0)}
    eviction_queue = EvictionQueue(now.get)
    for number in range(1000):
        now["a"] = NextUse(Rank.READ, float(number))
        eviction_queue.touch("a")
    assert len(eviction_queue) == 1
    assert len(eviction_queue._heap) < 100


# With plans

GROUP = "https://o/set/"
SHARDS = [shard_of(f"{GROUP}{number}.tar") for number in range(12)]
NAMES = [shard.name for shard in SHARDS]


class Stored:
    """Plans, and every shard stored under its name: whoever moves is touched, as the cache does it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        events = Events()
        self.plans = PlanRegistry(self.clock, events)
        self.eviction_queue = EvictionQueue(self.use)
        events.on(NextUseChanged, self._moved)
        for name in NAMES:
            self.eviction_queue.touch(name)

    def _moved(self, fact: NextUseChanged) -> None:
        for name in fact.names:
            self.eviction_queue.touch(name)

    def use(self, name: str) -> NextUse:
        return self.plans.next_use(name, GROUP)


_moves = st.one_of(
    st.tuples(st.just("replace"), st.integers(0, 2), st.lists(st.integers(0, 11), max_size=12), st.just(0.0)),
    st.tuples(st.just("append"), st.integers(0, 2), st.lists(st.integers(0, 11), max_size=4), st.just(0.0)),
    st.tuples(st.just("withdraw"), st.integers(0, 2), st.just([0]), st.just(0.0)),
    st.tuples(st.just("opened"), st.integers(0, 2), st.lists(st.integers(0, 11), min_size=1, max_size=2), st.floats(0.01, 100)),
    st.tuples(st.just("take"), st.integers(1, 12), st.just([0]), st.just(0.0)),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_moves, max_size=25))
def test_the_order_is_that_of_sorting_by_next_use(script: list[tuple[str, int, list[int], float]]) -> None:
    """After any advances, rates, replacements; announced by several readers, often more than once; taken in whole or in part."""
    world = Stored()
    for what, number, indices, seconds in script:
        if what == "take":
            order = world.eviction_queue.order()
            got = [use for (use, _), _ in zip(order, range(number), strict=False)]
            order.close()  # type: ignore[attr-defined]
            assert got == sorted(map(world.use, NAMES))[:number]
        elif what == "opened":
            for index in indices:
                world.clock.advance(seconds)
                world.plans.opened(SHARDS[index], reader(number))
                world.eviction_queue.refresh(12)  # a pass moved, or the reader is slower
        elif what == "withdraw":
            world.plans.withdraw(reader(number))
            world.eviction_queue.refresh(12)
        else:
            getattr(world.plans, what)(reader(number), [SHARDS[index] for index in indices])
            world.eviction_queue.refresh(12)
    order_now = list(world.eviction_queue.order())
    assert [use for use, _ in order_now] == sorted(map(world.use, NAMES))
    assert sorted(key for _, key in order_now) == sorted(NAMES)
