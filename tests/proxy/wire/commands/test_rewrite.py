"""A pattern goes through Forebay with its braces and expands afterwards to what its parts would have been."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.wire.commands.sources import masked_parts, parse_source
from forebay_proxy.wire.urls.patterns import expand
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, proxy_url

BASE = "http://127.0.0.1:7070"


def rewrite_pattern(base: str, pattern: str) -> str | None:
    """Every part through the Forebay at ``base``; None where one cannot, or not without its headers."""
    parts = [None if source.headers else unmask(proxy_url(base, source.url)) for source, unmask in masked_parts(pattern) or ()]
    return "::".join(part for part in parts if part) if parts and None not in parts else None


@pytest.mark.parametrize(
    ("pattern", "target"),
    [
        ("s3://b/{000..999}.tar", "/s3/b/{000..999}.tar"),
        ("pipe:aws s3 cp s3://b/{000..999}.tar -", "/s3/b/{000..999}.tar"),
        ("pipe:aws s3 cp --endpoint-url http://h:9000 's3://b/{a,b}/{0..9}.tar' - || true",
        "/s3/b/{a,b}/{0..9}.tar?endpoint=http://h:9000"),
        ("s3://s-datasets/laion5b/{laion2B-data/{000000..231349}.tar,laion2B-multi/{000000..226687}.tar}",
         "/s3/s-datasets/laion5b/{laion2B-data/{000000..231349}.tar,laion2B-multi/{000000..226687}.tar}"),
        ("https://{a,b}.example.org/{0..3}.tar?x={1..2}", "/https/{a,b}.example.org/{0..3}.tar?x={1..2}"),
        ("s3://b{1..2}/k.tar", "/s3/b{1..2}/k.tar"),
        ("pipe:curl -s -L https://h/x-{{0000..1023}}.tar", "/https/h/x-{0000..1023}.tar"),
        ("s3://b/{0000}.tar", "/s3/b/%7B0000%7D.tar"),
        ("s3://b/plain.tar", "/s3/b/plain.tar"),
    ],
)  # fmt: skip
def test_braces_survive(pattern: str, target: str) -> None:
    """One URL template in, one out."""
    assert rewrite_pattern(BASE, pattern) == BASE + target


def test_joined_patterns_go_one_by_one() -> None:
    """``::`` joins sources; each is sent through."""
    assert rewrite_pattern(BASE, "s3://b/{0..1}.tar::http://h/x.tar") == f"{BASE}/s3/b/{{0..1}}.tar::{BASE}/http/h/x.tar"


@pytest.mark.parametrize(
    "pattern",
    ["/nas/{0..9}.tar", "pipe:zcat /x{0..9}", "s3://b/{0..1}.tar::/nas/x.tar", "pipe:curl -u u:p https://h/{0..9}.tar",
    "s3://b/${NAME}/x.tar",
     "s3://b/\\{0..1\\}.tar", "{s3://a,s3://b}/x.tar", "https://h/x.tar#{0..1}", "https://u{0..1}@h/x.tar",
     "pipe:aws s3 cp --cli-read-timeout {1,2} s3://b/k -"],
)  # fmt: skip
def test_what_cannot_travel_is_not_rewritten(pattern: str) -> None:
    """Headers, local files, variables, escaped braces, and braces in a part that is dropped: None."""
    assert rewrite_pattern(BASE, pattern) is None


pieces = st.lists(
    st.sampled_from(["a", "b/", "{0..2}", "{x,y}", "{p{1..2},q}", "-", ".tar", "{00}", "{{0..1}}", "%41", "+", "fb"]),
    min_size=1,
    max_size=6,
)


@given(
    st.sampled_from(
        ["s3://b/", "https://h/", "gs://b/k", "pipe:aws s3 cp --endpoint-url=http://h s3://b/{} -", "pipe:curl -s https://h/{}"]
    ),
    pieces,
)
def test_expanding_late_is_expanding_early(head: str, tail: list[str]) -> None:
    """Rewrite then expand = expand then rewrite, wherever a pattern is rewritten at all."""
    pattern = head.replace("{}", "".join(tail)) if "{}" in head else head + "".join(tail)
    rewritten = rewrite_pattern(BASE, pattern)
    sources = [parse_source(text) for text in expand(pattern)]
    if rewritten is None:
        return
    assert list(expand(rewritten)) == [proxy_url(BASE, source.url) if source else None for source in sources]


@given(st.text(alphabet="{}{},.:/s3hbatp0129-\\$ '|", max_size=30), st.sampled_from(["", "s3://b/", "pipe:aws s3 cp s3://"]))
def test_noise(text: str, head: str) -> None:
    """Any text is rewritten, left, or InvalidShardUrl."""
    with contextlib.suppress(InvalidShardUrl):
        rewrite_pattern(BASE, head + text)


@pytest.mark.parametrize(
    "text", ["{" * 30_000, "{" * 15_000 + "}" * 15_000, "s3://b/" + "{" * 31 + "a," * 15_000 + "}" * 31, "{a,b}" * 6_000]
)
def test_braces_without_end(text: str) -> None:
    """A pattern from a stranger is looked at once, however its braces stand: each of these took minutes."""
    started = time.process_time()
    with contextlib.suppress(InvalidShardUrl):
        masked_parts(text)
    assert time.process_time() - started < 5.0
