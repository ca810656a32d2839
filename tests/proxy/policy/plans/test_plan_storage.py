"""Who mentions a shard, and where."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.policy.plans.plan_storage import INDEX_BITS, ReverseIndex

_places = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(0, 5))  # shard, plan, index


@given(st.lists(_places))
def test_mentions_are_a_sorted_list(script: list[tuple[int, int, int]]) -> None:
    """Said again it is taken back."""
    mentions, model = ReverseIndex(), set[tuple[int, int, int]]()
    for place in script:
        if place in model:
            mentions.remove(*place)
            model.discard(place)
        else:
            mentions.add(*place)
            model.add(place)
        number, plan, index = place
        assert list(mentions.of(number)) == sorted(plan << INDEX_BITS | index for who, plan, index in model if who == number)
        later = [at for who, whose, at in model if (who, whose) == (number, plan) and at >= index]
        assert mentions.first_from(number, plan, index) == min(later, default=None)
    assert len(mentions) == len({number for number, _, _ in model})
    assert all(len(more) > 1 for more in mentions._more.values())


def test_who_was_never_mentioned_is_mentioned_nowhere() -> None:
    """Also beyond the end of the arrays."""
    assert (list(ReverseIndex().of(7)), ReverseIndex().first_from(7, 1, 0)) == ([], None)
