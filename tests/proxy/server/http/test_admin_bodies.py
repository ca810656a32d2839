"""Plans and commands as they come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.core.shard import Shard
from forebay_proxy.server.http.admin_bodies import parse_patterns
from forebay_proxy.server.http.plan_route import parse_plan, parse_reader, shards_of
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import parse_origin_url

HEADERS = (("Authorization", "Bearer t"),)
_FOLDERS = [
    "s3://b/",
    "s3://b/a/",
    "s3://b/a%20b/",
    "https://H.example:443/x/",
    "https://h.example/",
    "file:///nas/",
    "hf://datasets/o/n/",
    "s3://",
    "https://",
]
_LEAVES = [
    "0.tar",
    "00001.tar",
    "a b.tar",
    "a%2Fb.tar",
    "x.tar?versionId=7",
    "x.tar?sig=s&se=1",
    "..",
    ".",
    ".hidden",
    "",
    "é.tar",
    "a+b=c.tar",
    "h.example",
]


@given(st.lists(st.tuples(st.sampled_from(_FOLDERS), st.sampled_from(_LEAVES)), max_size=12))
def test_siblings_are_what_the_parser_makes_of_them(parts: list[tuple[str, str]]) -> None:
    """The short way changes nothing: same shards, or the same refusal."""
    texts = [folder + leaf for folder, leaf in parts]
    try:
        urls = [parse_origin_url(text) for text in texts]
        expected = [Shard.of(url, HEADERS if (url.scheme, url.authority) == (urls[0].scheme, urls[0].authority) else ()) for url in urls]
    except InvalidShardUrl:
        with pytest.raises(InvalidShardUrl):
            shards_of(texts, HEADERS)
        return
    assert shards_of(texts, HEADERS) == expected


def test_a_long_list_must_be_lines_and_a_pattern_need_not() -> None:
    """The limit is for lists in one breath."""
    blank = b" " * (1 << 20)
    with pytest.raises(InvalidRequest) as caught:
        parse_plan("application/json", b'{"shards": []}' + blank, "", ())
    assert caught.value.status == 413
    with pytest.raises(InvalidRequest) as caught:
        parse_plan("application/json", b'{"set": "s3://b/{0..9}.tar", "indices": [7]}' + blank, "", ())
    assert caught.value.status == 413
    many = b"7,\n " * (1 << 18)
    plan, shards = parse_plan("application/json", b'{"set": "s3://b/{0..9}.tar", "indices": [%s7]}' % many, "", HEADERS)
    assert (plan.set, {shard.name for shard in shards}, len(shards)) == ("s3://b/{0..9}.tar", {"s3://b/7.tar"}, (1 << 18) + 1)
    assert parse_plan("application/x-ndjson", b'"s3://b/7.tar"\n' + blank, "", ())[0].shards == ["s3://b/7.tar"]


def test_a_large_body_lets_others_run() -> None:
    """Every millisecond or so: each few hundred lines, each ten thousand numbers."""
    breaths: list[None] = []
    lines = b"".join(b'"s3://bucket/%06d.tar"\n' % number for number in range(20_000))
    parse_plan("application/x-ndjson", lines, "", (), False, lambda: breaths.append(None))
    assert len(breaths) >= 20_000 // 512
    breaths.clear()
    body = b'{"set": "s3://b/{0..99999}.tar", "indices": [%s]}' % b",".join(b"%d" % number for number in range(100_000))
    parse_plan("application/json", body, "", (), False, lambda: breaths.append(None))
    assert len(breaths) >= len(body) // (1 << 16)


def test_a_reader_is_read_from_the_raw_target() -> None:
    """Percent-encoded parts and a query behind them."""
    reader = parse_reader("/v1/plans/a%20b/0/1/7.1?epoch=3")
    assert (reader.job, reader.opener) == ("a b", "7.1")


@given(st.binary(max_size=40))
def test_no_evict_body_means_everything_by_accident(body: bytes) -> None:
    """Only {"all": true} does."""
    try:
        found = parse_patterns(body)
    except InvalidRequest:
        return
    assert found is not None or b"true" in body


def test_headers_stay_with_the_first_host() -> None:
    """A credential sent with a plan is for the host it names first; a second host is asked without it."""
    texts = ["https://one.example/a.tar", "https://two.example/b.tar", "https://one.example/c.tar"]
    shards = shards_of(texts, (("Authorization", "Bearer x"),))
    assert [bool(shard.credential) for shard in shards] == [True, False, True]
