"""Sets of shards that are known before anybody opens them."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples

from forebay_proxy.core.shard import shown_set
from forebay_proxy.policy.plans.shard_sets import MOST_SETS, InvalidSet, PatternSet, ShardSets
from forebay_proxy.wire.urls.patterns import index_in, parse_pattern

LAION = "s3://laion/{00000..00231}{0000..2522}.tar"  # 585,336 shards, two numbers without anything between them
PATTERNS = st.recursive(
    st.one_of(
        st.sampled_from(["a", "b0", "1", "-", "00"]),
        st.tuples(st.integers(-3, 12), st.integers(-3, 12)).map(lambda ends: f"{{{ends[0]}..{ends[1]}}}"),
        st.sampled_from(["{00..11}", "{a..d}", "{5..1..2}", "{x}"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "{" + ",".join(parts) + "}"),
        st.lists(inner, min_size=1, max_size=3).map("".join),
    ),
    max_leaves=6,
)


@settings(max_examples=examples(300), deadline=None)
@given(PATTERNS, st.text("ab01-23{}", max_size=5))
def test_a_pattern_finds_what_it_lists(text: str, other: str) -> None:
    """Each of its texts at a place that holds it, and no other text."""
    pattern = parse_pattern(text)
    listed = list(itertools.islice(pattern, 500))
    for own in listed:
        place = index_in(pattern, own)
        assert place is not None
        assert pattern.at(place) == own
    assert other in listed or pattern.count > 500 or index_in(pattern, other) is None


def test_a_pattern_with_escapes_finds_nothing() -> None:
    """Rather than something wrong: backslashes are taken away again at each level."""
    assert index_in(parse_pattern(r"a\{b"), "a{b") is None


def test_a_set_of_half_a_million_costs_no_memory_and_no_time() -> None:
    """Understood, counted and asked without being expanded."""
    started = time.thread_time()  # a machine may be busy
    found = PatternSet.of(LAION)
    assert len(found) == 232 * 2523
    shard = found.at(500_000)
    assert found.index(shard.name) == 500_000
    assert found.index("s3://laion/000002523.tar") is None
    assert time.thread_time() - started < 0.05


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("https://Host.example:443/x/{0..9}.tar", "https://host.example/x/3.tar", "https://host.example/x/10.tar"),
        ("s3://a/{0..1}.tar::s3://b/{0..1}.tar", "s3://b/1.tar", "s3://b/2.tar"),
        ("pipe:curl -s -H 'Cookie: k' https://h/{0..9}.tar", "https://h/9.tar", "https://h/a.tar"),
        ("https://h/{0..9}.tar?X-Amz-Signature=s", "https://h/4.tar", "https://h/4.tar?v=1"),
        ("s3://b/one.tar", "s3://b/one.tar", "s3://b/two.tar"),
    ],
)
def test_names_are_canonical(text: str, inside: str, outside: str) -> None:
    """A set holds shards by the names that readers' openings have, however the pattern was written."""
    found = PatternSet.of(text)
    place = found.index(inside)
    assert place is not None
    assert found.at(place).name == inside
    assert found.index(outside) is None


def test_a_set_keeps_the_credential_of_its_command() -> None:
    """And shows it nowhere."""
    found = PatternSet.of("pipe:curl -s -H 'Cookie: secret' https://h/{0..9}.tar")
    assert found.at(3).credential.headers == (("Cookie", "secret"),)


@pytest.mark.parametrize("text", ["imagenet", "/local/{0..9}.tar", "s3://b/{0..9.tar", "ftp://h/a.tar", "pipe:zcat {0..9}.tar", "", "::"])
def test_what_is_no_pattern_of_ours_is_refused(text: str) -> None:
    """A name, a local path, unbalanced braces, a scheme or command that is left to others."""
    with pytest.raises(InvalidSet):
        PatternSet.of(text)


@pytest.mark.parametrize("text", ["ftp://u:S3CRET@h/{0..9}.tar?token=S3CRET", "pipe:curl -u u:S3CRET https://h/{0..9}.tar | tar x"])
def test_what_is_refused_is_told_without_what_opens_it(text: str) -> None:
    """The message goes to a log."""
    with pytest.raises(InvalidSet) as refused:
        PatternSet.of(text)
    assert "S3CRET" not in str(refused.value)


def test_sets_know_who_holds_a_shard() -> None:
    """Several may; a new one, and one that is forgotten, is noticed at once."""
    forgotten: list[str] = []
    sets = ShardSets(forgotten.append)
    assert sets.containing("s3://b/1.tar") == ()
    small, large = sets.learn("s3://b/{0..3}.tar"), sets.learn("s3://b/{0..9}.tar")
    named = sets.learn("imagenet")
    assert sets.containing("s3://b/1.tar") == (small, large)
    assert sets.containing("s3://b/7.tar") == (large,)
    sets.forget(large)
    assert (sets.containing("s3://b/7.tar"), forgotten) == ((), [large])
    assert (sets.get(named), named in sets.unlisted) == (None, True)


def test_sets_are_bounded() -> None:
    """Names alone leave first, then the oldest; never what a person declared."""
    forgotten: list[str] = []
    sets = ShardSets(forgotten.append)
    kept, known = sets.keep("by a person"), sets.learn("s3://b/{0..9}.tar")
    for number in range(3 * MOST_SETS):
        sets.learn(f"name {number}")
    assert (len(sets), len(forgotten)) == (MOST_SETS + 1, 2 * MOST_SETS + 1)
    assert (kept in sets.unlisted, sets.get(known) is None) == (True, False)
    for number in range(MOST_SETS):
        sets.learn(f"s3://b/{number}.tar")
    assert (len(sets), sets.get(known), kept in sets.unlisted) == (MOST_SETS + 1, None, True)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("pipe:curl -H 'Authorization: Bearer secret' https://h/{0..9}.tar", "https://h/{0..9}.tar"),
        ("https://me:secret@h/{0..9}.tar?X-Amz-Signature=secret", "https://h/{0..9}.tar"),
        ("s3://a/{0..1}.tar::s3://b/{0..1}.tar", "s3://a/{0..1}.tar::s3://b/{0..1}.tar"),
        ("imagenet", "imagenet"),
        ("pipe:ssh secret@h cat {0..9}", "(not a pattern of shard URLs)"),
        ("x" * 300, "x" * 200 + "…"),
    ],
)  # fmt: skip
def test_no_secret_of_a_set_is_shown(text: str, seen: str) -> None:
    """Whoever may ask for the status sees which shards are meant, and not what opens them."""
    assert shown_set(text) == seen
