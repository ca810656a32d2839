"""Names with an end each, whatever the order they were named in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.background.prefetcher import NegativeCache

steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)) | st.just(None), max_size=40)


def test_a_name_is_left_alone_until_its_time_is_over() -> None:
    """And told then, once."""
    alone = NegativeCache()
    alone.add("a", "o", 30.0)
    alone.add("b", "o", 1.0)
    assert (list(alone.over(0.9)), "b" in alone) == ([], True)
    assert (list(alone.over(1.0)), "b" in alone) == (["b"], False)
    assert list(alone.over(29.0)) == []
    assert list(alone.over(30.0)) == ["a"]


def test_the_longer_time_holds() -> None:
    """Whichever was said first."""
    alone = NegativeCache()
    alone.add("a", "o", 30.0)
    alone.add("a", "o", 1.0)
    assert list(alone.over(2.0)) == []
    alone.add("a", "o", 40.0)
    assert list(alone.over(30.0)) == []
    assert list(alone.over(40.0)) == ["a"]


@given(steps)
def test_an_origin_counts_its_names(steps: list[tuple[str, int] | None]) -> None:
    """None of them twice, and none that is over."""
    alone, now = NegativeCache(), 0.0
    model: dict[str, float] = {}
    for step in steps:
        now += 3.0
        if step is not None:
            alone.add(step[0], "o", now + step[1])
            model[step[0]] = max(model.get(step[0], 0.0), now + step[1])
        over = {name for name, until in model.items() if until <= now}
        assert sorted(alone.over(now)) == sorted(over)
        model = {name: until for name, until in model.items() if name not in over}
        assert (alone.of_origin["o"], "o" in alone.of_origin) == (len(model), bool(model))
