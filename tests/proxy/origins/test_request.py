"""ask.py: what a redirect makes of a request."""

from __future__ import annotations

import pytest

from forebay_proxy.core.errors import OriginError
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.request import OriginRequest, next_hop
from forebay_proxy.wire.urls.shard_url import parse_origin_url

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
