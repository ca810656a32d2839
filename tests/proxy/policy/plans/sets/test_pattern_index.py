"""Where a text stands in a pattern."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_proxy.policy.plans.sets.pattern_index import PatternIndex
from forebay_proxy.wire.urls.patterns import index_in, parse_pattern

TEXTS = [
    "s3://b/{a,b}/{000..019}.tar", "s3://b/{0..19}.tar", "s3://b/{00..03}{00..09}.tar", "s3://b/{1..12}{00..09}.tar", "s3://b/{a,a}/{0..9}",
    "s3://b/{09..00}.tar", "s3://b/{00..20..2}.tar", "s3://b/{05..09}.tar", "s3://b/{0..3}/x.tar", "s3://b/x.tar",
]  # fmt: skip
OTHERS = r"s3://b/[ab]?/?[0-9\u0661]{1,5}(\.tar)?"


@settings(deadline=None)
@given(st.sampled_from(TEXTS), st.lists(st.one_of(st.integers(0, 200), st.from_regex(OTHERS, fullmatch=True))))
def test_the_quick_way_finds_what_the_pattern_finds(text: str, asked: list[int | str]) -> None:
    """Texts of it and others, in any order: what is remembered changes nothing."""
    pattern = parse_pattern(text)
    places = PatternIndex(pattern)
    for one in asked:
        wanted = pattern.at(one % pattern.count) if isinstance(one, int) else one
        assert places.find(wanted) == index_in(pattern, wanted)


@pytest.mark.parametrize(("text", "quick"), [(TEXTS[0], True), (TEXTS[1], False), (TEXTS[5], False), (TEXTS[6], False), (TEXTS[7], False)])
def test_only_numbers_of_one_width_from_zero_are_quick(text: str, quick: bool) -> None:
    """Of the others the place is not the number."""
    assert bool(PatternIndex(parse_pattern(text))._width) == quick
