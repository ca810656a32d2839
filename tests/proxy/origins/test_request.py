"""request.py: what a redirect makes of a request, how long a signed URL says it is good, and how long it is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import OriginError
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.request import LINK_TTL_S, OriginRequest, RedirectCache, next_hop, seconds_left
from forebay_proxy.wire.urls.shard_url import parse_origin_url

NOW = 1_782_000_000.0  # 2026-06-21T00:00:00Z
SHARD = Shard.of(parse_origin_url("https://data.example/a.tar?X-Amz-Signature=hunter2"))
ASK = OriginRequest(SHARD.url.text(), (("Authorization", "hunter2"),), vouched=True, sdk=True)


def hop(location: str, ask: OriginRequest = ASK, kind: AddressClass = AddressClass.PUBLIC) -> OriginRequest:
    return next_hop(SHARD, ask, location, kind)


def test_a_redirect_lends_nobody_a_password() -> None:
    """Userinfo in a Location is dropped: the client would send it as a credential."""
    assert hop("https://me:secret@cdn.example/b.tar?c=d").url == "https://cdn.example/b.tar?c=d"
    assert hop("//me@cdn.example/b.tar").url == "https://cdn.example/b.tar"


@pytest.mark.parametrize("location", ["https://cdn.example/b", "https://data.example:8443/b", "https://DATA.example.evil.example/b"])
def test_credentials_and_trust_stay_with_the_first_host(location: str) -> None:
    """Another host or port gets neither header, nor the operator's word, nor the query of the URL that led there."""
    found = hop(location)
    assert (found.headers, found.vouched) == ((), False)
    assert "hunter2" not in found.url
    # And they do not come back with a second redirect.
    assert hop("https://data.example/c", found).headers == ()


@pytest.mark.parametrize("location", ["/b", "b?x=1", "https://DATA.example.:443/b", "//data.example/b"])
def test_the_same_host_is_the_same_however_it_is_spelt(location: str) -> None:
    """Case, final dot and default port make no other host of it."""
    found = hop(location)
    assert (found.headers, found.vouched) == (ASK.headers, True)
    assert found.url.startswith("https://data.example/b")


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd", "ftp://data.example/", "gopher://data.example/", "https://127.1/", "https://0x7f.1/",
        "https://2130706433/", "https://１２７.1/", "https://[fe80::1%25eth0]/", "https://data.example:0/", "https://data.example:99999/",
    ],
)  # fmt: skip
def test_what_has_no_certain_host_is_not_followed(location: str) -> None:
    """Other schemes, and hosts that two programs read differently."""
    with pytest.raises(OriginError, match="not an http"):
        hop(location)


def test_https_never_becomes_http() -> None:
    """And no flag allows it, so none is printed."""
    with pytest.raises(OriginError, match="from https to http") as refused:
        hop("http://data.example/a.tar")
    assert refused.value.next_step == ""


def test_once_public_always_public() -> None:
    """A private stop on the way makes no first hop of the next one."""
    first = hop("https://cdn.example/", kind=AddressClass.PUBLIC)
    assert hop("https://third.example/", first, AddressClass.PRIVATE).came_from is AddressClass.PUBLIC


def test_what_is_judged_is_what_is_sent() -> None:
    """A backslash comes out as the host that is dialled; letters that need a table of their own do not come out at all."""
    assert hop("https://good.example\\@evil.example/").url == "https://evil.example/"
    with pytest.raises(OriginError, match="not an http"):
        hop("https://b\u00fccher.example/")


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
