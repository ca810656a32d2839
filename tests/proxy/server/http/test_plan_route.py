"""Plans as they come in, and the query of ``GET /v1/plans``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.core.shard import Shard
from forebay_proxy.server.http.plan_route import MOST_ROWS, parse_plan, parse_plan_query, shards_of
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url


def test_everything_is_asked_for_without_one() -> None:
    """All jobs, from the first reader, a page at a time."""
    assert parse_plan_query("") == (None, None, MOST_ROWS)


def test_a_job_a_place_and_a_number() -> None:
    """As the answer before gave them; no page is longer than a page."""
    reader = ReaderName("a job/x".replace("/", "%"), "0", "1", "7.1")
    after = str(reader).replace("%", "%25").replace("/", "%2F")
    assert parse_plan_query(f"job=train&after={after}&limit=7") == ("train", reader, 7)
    assert parse_plan_query("limit=100000")[2] == MOST_ROWS


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=many", "limit=1e3", "limit=" + "9" * 40, "after=nobody", "after=a/b/c/.."])
def test_what_is_unclear_is_refused(query: str) -> None:
    """With what would be right."""
    with pytest.raises(InvalidRequest) as refused:
        parse_plan_query(query)
    assert refused.value.next_step


HEADERS = (("Authorization", "Bearer t"),)
_FOLDERS = [
    "s3://b/", "s3://b/a/", "s3://b/a%20b/", "https://H.example:443/x/", "https://h.example/", "file:///nas/", "hf://datasets/o/n/", "s3://",
    "https://",
]  # fmt: skip
_LEAVES = [
    "0.tar", "00001.tar", "a b.tar", "a%2Fb.tar", "x.tar?versionId=7", "x.tar?sig=s&se=1", "..", ".", ".hidden", "", "é.tar", "a+b=c.tar",
    "h.example",
]  # fmt: skip


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
    """The limit is for what is parsed in one go; the refusal says how."""
    blank = b" " * (1 << 20)
    for body in (b'{"shards": []}', b'{"set": "s3://b/{0..9}.tar", "indices": [7]}' + 15 * blank):
        with pytest.raises(InvalidRequest) as caught:
            parse_plan("application/json", body + blank, "", ())
        assert (caught.value.status, "application/x-ndjson" in caught.value.next_step) == (413, True)
    many = b"7,\n " * (1 << 18)
    plan, shards = parse_plan("application/json", b'{"set": "s3://b/{0..9}.tar", "indices": [%s7]}' % many, "", HEADERS)
    assert (plan.set, {shard.name for shard in shards}, len(shards)) == ("s3://b/{0..9}.tar", {"s3://b/7.tar"}, (1 << 18) + 1)
    assert parse_plan("application/x-ndjson", b'"s3://b/7.tar"\n' + blank, "", ())[0].shards == ["s3://b/7.tar"]
