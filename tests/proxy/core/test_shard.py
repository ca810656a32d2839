"""A shard's name is its bytes' name: credentials are no part of it, versions make its key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.shard import Credential, Pin, PinKind, Shard, Version, store_key
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url


def shard(text: str, headers: tuple[tuple[str, str], ...] = ()) -> Shard:
    return Shard.of(parse_origin_url(text), headers)


@pytest.mark.parametrize(
    ("text", "name", "signature"),
    [
        ("https://h/k?X-Amz-Credential=1&v=2&x-amz-signature=s", "https://h/k?v=2", "X-Amz-Credential=1&x-amz-signature=s"),
        ("https://h/k?AWSAccessKeyId=a&Signature=s&Expires=1", "https://h/k", "AWSAccessKeyId=a&Signature=s&Expires=1"),
        ("https://h/k?X-Goog-Signature=s&generation=7", "https://h/k?generation=7", "X-Goog-Signature=s"),
        ("https://h/k?Policy=p&Signature=s&Key-Pair-Id=i", "https://h/k", "Policy=p&Signature=s&Key-Pair-Id=i"),
        ("https://a.blob.example/k?sv=1&se=2&sp=r&sig=s&snapshot=t", "https://a.blob.example/k?snapshot=t", "sv=1&se=2&sp=r&sig=s"),
        ("https://h/k?st=1&sp=2", "https://h/k?st=1&sp=2", ""),
        ("https://h/k?b=2&a=1", "https://h/k?b=2&a=1", ""),
        ("https://h/k", "https://h/k", ""),
        ("s3://b/X-Amz-Signature=s?region=r", "s3://b/X-Amz-Signature=s?region=r", ""),
    ],
)
def test_a_signature_is_no_part_of_the_name(text: str, name: str, signature: str) -> None:
    """The parameters that prove who asks are the credential; the rest, in order, names the bytes."""
    assert (shard(text).name, shard(text).credential.signature) == (name, signature)


@pytest.mark.parametrize("scheme", ["s3", "file", "gs", "hf"])
def test_headers_that_do_not_travel_are_no_credential(scheme: str) -> None:
    """What an origin is never shown cannot keep its readers apart; gs and hf take a request's own Authorization with what is beside it."""
    text = {"s3": "s3://b/k", "file": "file:///k", "gs": "gs://b/k", "hf": "hf://datasets/o/n/k"}[scheme]
    other, own = (("X-Trace", "1"), ("Cookie", "c")), (("X-Trace", "1"), ("authorization", "a"))
    assert not shard(text, other).credential
    assert shard(text, own).credential.headers == (own if scheme in ("gs", "hf") else ())
    assert shard(text).carrying(own) == shard(text, own)


def test_origin_and_group() -> None:
    """Scheme and host for metrics; the folder for guesses."""
    one = shard("https://H:8443/data/train/0001.tar?v=a/b")
    assert (one.origin, one.group) == ("https://h:8443", "https://h:8443/data/train/")
    assert shard("s3://b/k.tar?endpoint=http://h").group == "s3://b/"


headers = st.lists(st.tuples(st.sampled_from(["A", "B", "C"]), st.text(max_size=5)), max_size=4, unique_by=lambda pair: pair[0])


@given(headers, st.randoms(use_true_random=False))
def test_a_mac_does_not_hang_on_order_or_case(pairs: list[tuple[str, str]], random: object) -> None:
    """Headers in another order, or in another case, prove the same."""
    turned = tuple((name.lower(), value) for name, value in reversed(pairs))
    assert Credential(tuple(pairs)).mac(b"k") == Credential(turned).mac(b"k")


def test_a_mac_tells_credentials_and_keys_apart() -> None:
    """32 hex digits that another credential, another key, or a header moved into the signature does not share; none of no credential."""
    macs = {
        Credential((("A", "1"),)).mac(b"k"), Credential((("A", "2"),)).mac(b"k"), Credential((("A", "1"),)).mac(b"l"),
        Credential((), "A=1").mac(b"k"), Credential((("A", "1"),), "s").mac(b"k"), Credential((("Cookie", "\udcff"),)).mac(b"k"),
    }  # fmt: skip
    assert len(macs) == 6
    assert {len(mac) for mac in macs} == {32}
    assert (bool(Credential()), Credential().mac(b"key")) == (False, "")


@pytest.mark.parametrize(
    ("pin", "headers"),
    [
        (Pin(), {}),
        (Pin(PinKind.ETAG, '"a"'), {"If-Match": '"a"'}),
        (Pin(PinKind.MODIFIED, "Sat, 29 Oct 1994 19:43:31 GMT"), {"If-Unmodified-Since": "Sat, 29 Oct 1994 19:43:31 GMT"}),
    ],
)
def test_pins(pin: Pin, headers: dict[str, str]) -> None:
    """What the answering host is asked to compare."""
    assert (pin.headers(), bool(pin)) == (headers, bool(headers))


def test_etags_of_our_own() -> None:
    """The origin's strong one, else one made of the key."""
    key = store_key("s3://b/k", "etag")
    assert Version("i", Pin(PinKind.ETAG, '"a"'), 1).etag(key) == '"a"'
    assert Version("i", Pin(), 1).etag(key) == f'"fb-{key[:32]}"'


def test_keys_differ_by_name_and_identity() -> None:
    """64 hex digits; neither half can slide into the other unnoticed where no newline is."""
    keys = {store_key("a", "b"), store_key("a", "c"), store_key("b", "b"), store_key("ab", ""), store_key("\udcff", "")}
    assert {len(key) for key in keys} == {64}
    assert len(keys) == 5


@pytest.mark.parametrize(("query", "fixed"), [("?versionId=3sL4k", True), ("?versionId=", False), ("?versionId=null", False), ("", False)])
def test_only_a_version_id_makes_a_name_immutable(query: str, *, fixed: bool) -> None:
    """An empty one names no version, and the "null" one is overwritten where versioning is off."""
    try:
        shard = Shard.of(parse_origin_url(f"s3://b/k.tar{query}"))
    except InvalidShardUrl:
        assert not fixed
        return
    assert shard.is_immutable is fixed
