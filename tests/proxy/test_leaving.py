"""In what order shards leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.leaving import Leaving
from forebay_proxy.use import Rank, Use

KEYS = [f"k{number}" for number in range(3)]
uses = st.builds(Use, st.sampled_from([Rank.READ, Rank.AHEAD]), st.integers(0, 1).map(float))  # few: a key comes back to where it was


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), uses), st.one_of(st.none(), st.integers(0, 4)))))
def test_the_order_is_that_of_a_sorted_list(steps: list[tuple[str, Use | None, int | None]]) -> None:
    """Any changes, each touched; the order is taken now and then, often only in part."""
    now: dict[str, Use] = {}
    leaving = Leaving(now.get)
    for key, use, taken in steps:
        if use is None:
            now.pop(key, None)
        else:
            now[key] = use
        leaving.touch(key)
        if taken is None:
            continue
        order = leaving.order()
        got = [item for item, _ in zip(order, range(taken), strict=False)]
        order.close()  # type: ignore[attr-defined]
        assert [use for use, _ in got] == sorted(now.values())[:taken]
        assert all(now[key] == use for use, key in got)
        assert len({key for _, key in got}) == len(got)
    assert sorted(leaving.order()) == sorted((use, key) for key, use in now.items())
    assert sorted(key for _, key in leaving.order()) == sorted(now)


@given(st.dictionaries(st.sampled_from(KEYS), uses, min_size=1), st.dictionaries(st.sampled_from(KEYS), uses))
def test_who_stays_longer_than_it_seemed_sinks_by_itself(before: dict[str, Use], later: dict[str, Use]) -> None:
    """Without a touch: what rose towards staying is found out when it comes to the top."""
    now = dict(before)
    leaving = Leaving(now.get)
    for key in now:
        leaving.touch(key)
    for key, use in later.items():
        if key in now:
            now[key] = max(now[key], use)
    assert [use for use, _ in leaving.order()] == sorted(now.values())


@given(st.dictionaries(st.sampled_from(KEYS), uses, min_size=1), st.dictionaries(st.sampled_from(KEYS), uses))
def test_a_refresh_finds_what_changed_by_mere_time(before: dict[str, Use], later: dict[str, Use]) -> None:
    """Whatever direction, after one round of it."""
    now = dict(before)
    leaving = Leaving(now.get)
    for key in now:
        leaving.touch(key)
    now.update({key: use for key, use in later.items() if key in now})
    leaving.refresh(3)
    leaving.refresh(100)
    leaving.refresh(100)
    assert [use for use, _ in leaving.order()] == sorted(now.values())


def test_touching_again_and_again_costs_no_memory() -> None:
    """Old entries are thrown out."""
    now = {"a": Use(Rank.READ, 0.0)}
    leaving = Leaving(now.get)
    for number in range(1000):
        now["a"] = Use(Rank.READ, float(number))
        leaving.touch("a")
    assert len(leaving) == 1
    assert len(leaving._heap) < 100
