"""Brace patterns expand exactly as the package that WebDataset uses, within bounds."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.wire.urls.patterns import InvalidPattern, expand, meant_range, parse_pattern


@pytest.mark.parametrize("text", [
    "", "plain", "s3://b/{000..002}.tar", "{8..10}", "{08..10}", "{3..1}", "{0..10..5}", "{-1..1}", "{a..c}", "{Z..b}", "{a,b}{1,2}",
    "{a,b{1..2}}", "{,x}", "{0000}", "{{0..1}}", "{}", "\\{a,b\\}", "{a\\,b,c}", "{\\\\}", "laion/{2B/{0..1},400M/{0..1}}.tar",
])  # fmt: skip
def test_examples(text: str) -> None:
    """Ranges, steps, padding, letters, commas, nesting, and escapes, which braceexpand takes away at each level."""
    braceexpand = pytest.importorskip("braceexpand", reason="braceexpand comes with webdataset")
    assert list(expand(text)) == list(braceexpand.braceexpand(text))


@given(st.text(alphabet="{}{},.\\0123-abZ/", max_size=24))
def test_same_as_braceexpand(text: str) -> None:
    """Any pattern gives the very list that braceexpand gives, and is an error where it is one there."""
    braceexpand = pytest.importorskip("braceexpand", reason="braceexpand comes with webdataset")
    try:
        theirs = list(islice(braceexpand.braceexpand(text), 2000))
    except braceexpand.UnbalancedBracesError:
        with pytest.raises(InvalidPattern):
            parse_pattern(text)
        return
    try:
        ours = parse_pattern(text, 2000)
    except InvalidPattern:
        assert len(theirs) == 2000
        return
    assert list(ours) == theirs
    assert [ours.at(index) for index in range(ours.count)] == theirs


@pytest.mark.parametrize("text", ["{1..100000000000}", "{0..9}" * 40, "{1..2000}{1..3000}", "{a,b}" * 23])
def test_too_many_is_refused_before_any_is_made(text: str) -> None:
    """A short text that stands for millions costs nothing."""
    with pytest.raises(InvalidPattern, match="more than 4194304"):
        expand(text)


@pytest.mark.parametrize(
    "text", ["{", "}", "{a{b}", "{" * 5000 + "}" * 5000, "x" * 70000, "{0.." + "9" * 5000 + "}", "{" + "0" * 30 + "..1}"]
)
def test_bad_patterns(text: str) -> None:
    """Unbalanced, bottomless and endless patterns are errors, not crashes."""
    with pytest.raises(InvalidPattern):
        parse_pattern(text)


@pytest.mark.parametrize(("text", "index"), [("{a,b}", 2), ("{0..9}", 10), ("x", 1), ("{a,b}", -1), ("{a..c}{0..1}", 6)])
def test_beyond_the_last_is_an_error(text: str, index: int) -> None:
    """An index past the end does not wrap."""
    with pytest.raises(IndexError):
        parse_pattern(text).at(index)


@pytest.mark.parametrize("text", [
    "{000-999}", "{000.999}", "{000...999}", "{000:999}", "{000…999}", "[000-999]", "[000..999]", "%7B000-999%7D", "%7b000%E2%80%A6999%7d",
])  # fmt: skip
def test_what_was_meant_as_a_range(text: str) -> None:
    """The mistakes people make, as they type them and as a URL holds them."""
    assert meant_range(f"s3://b/shard-{text}.tar") == "{000..999}"


@pytest.mark.parametrize("text", ["a-000-999.tar", "{000,999}.tar", "{a-b}.tar", "(1-2).tar", ""])
def test_what_was_not_meant_as_a_range(text: str) -> None:
    """Names and addresses."""
    assert meant_range(text) == ""
