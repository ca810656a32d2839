"""links.py: how long a signed URL says it is good, and how long it is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.redirects import LINK_TTL_S, RedirectCache, seconds_left
from forebay_proxy.origins.request import OriginRequest
from forebay_proxy.wire.urls.shard_url import parse_origin_url

NOW = 1_782_000_000.0  # 2026-06-21T00:00:00Z
SHARD = Shard.of(parse_origin_url("https://h/a.tar"))


@pytest.mark.parametrize(
    "url",
    [
        "https://c/x?Expires=1782003600&Policy=abc&Signature=s&Key-Pair-Id=k",
        "https://c/x?X-Amz-Algorithm=A&X-Amz-Date=20260621T000000Z&X-Amz-Expires=3600&X-Amz-Signature=s",
        "https://c/x?x-goog-date=20260620T230000Z&x-goog-expires=7200&x-goog-signature=s",
        "https://c/x?sv=2021-12-02&se=2026-06-21T01:00:00Z&sig=s",
        "https://c/x?sv=2021-12-02&se=2026-06-21T01%3A00%3A00Z&sig=s",
    ],
)
def test_what_signed_links_say(url: str) -> None:
    """CloudFront, S3, GCS and Azure each have a way of their own to say "an hour"."""
    assert seconds_left(url, NOW) == 3600


@pytest.mark.parametrize("url", ["https://c/x", "https://c/x?se=2026-06-21", "https://c/x?Expires=soon", "https://c/x?X-Amz-Expires=60"])
def test_what_says_nothing_readable(url: str) -> None:
    """Then a time of our own is used."""
    assert seconds_left(url, NOW) is None


@given(st.text(max_size=80))
def test_no_query_breaks_it(query: str) -> None:
    """Whatever a redirect holds."""
    seconds_left(f"https://h/x?{query}&Expires={query}&se={query}&sig=1", NOW)


@pytest.mark.parametrize(
    ("left", "longest", "kept"),
    [(3600, 9999, 3570), (3600, 240, 240), (60, 240, 45), (-5, 240, 0), (None, 3600, LINK_TTL_S), (None, 60, 60)],
)
def test_how_long_one_is_remembered(left: int | None, longest: float, kept: float) -> None:
    """Until shortly before its end, and no longer than its holder wants."""
    passed = 0.0
    redirects = RedirectCache(longest, lambda: passed, lambda: NOW)
    url = "https://c/x" + ("" if left is None else f"?Expires={int(NOW) + left}")
    redirects.keep(SHARD, OriginRequest(url))
    passed = kept - 0.1
    assert (redirects.find(SHARD) is not None) == (kept > 0)
    passed = kept
    assert redirects.find(SHARD) is None


def test_a_forgotten_link_is_gone() -> None:
    """And only that one."""
    redirects = RedirectCache(60)
    other = Shard.of(parse_origin_url("https://h/b.tar"))
    for shard in (SHARD, other):
        redirects.keep(shard, OriginRequest("https://c/x"))
    redirects.forget(SHARD)
    assert redirects.find(SHARD) is None
    assert redirects.find(other) is not None
