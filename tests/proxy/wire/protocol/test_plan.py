"""A plan survives its three forms, and one bad entry is named and spoils it all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.wire.protocol import plan
from forebay_proxy.wire.protocol.plan import NDJSON, InvalidPlan, InvalidReader, PlanBody, ReaderName, decode, encode
from forebay_proxy.wire.urls.patterns import MAX_PARTS
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, object_url, parse_origin_url

JSON = "application/json"
keys = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(
    lambda key: not {".", ".."} & set(key.split("/"))
)
shards = st.lists(keys.map(lambda key: object_url("s3", "b", key).text()), max_size=5)
names = st.text(min_size=1, max_size=20).filter(str.isprintable)


@given(shards, st.none() | st.integers(0, 2**53 - 1), st.none() | names)
def test_json_round_trip(given_shards: list[str], epoch: int | None, name: str | None) -> None:
    """What a loader encodes, the sidecar decodes."""
    content_type, body, query = encode(given_shards, epoch=epoch, set=name)
    assert (content_type, query) == (JSON, "")
    assert decode(content_type, body, query) == PlanBody(given_shards, epoch, name)


@given(shards, st.none() | st.integers(0, 2**53 - 1), st.none() | names)
def test_lines_round_trip(given_shards: list[str], epoch: int | None, name: str | None) -> None:
    """The same as lines, with epoch and set in the query."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_JSON_LIMIT", 0)
        content_type, body, query = encode(given_shards, epoch=epoch, set=name)
    assert content_type == NDJSON
    assert decode(content_type, body, query) == PlanBody(given_shards, epoch, name)


def test_a_large_list_goes_as_lines() -> None:
    """Above 1 MiB a list is NDJSON; nothing is lost."""
    urls = [f"s3://bucket/some/prefix/{index:06d}.tar" for index in range(40_000)]
    content_type, body, query = encode(urls, epoch=3, set="s3://bucket/some/prefix/{000000..039999}.tar")
    assert content_type == NDJSON
    assert decode(content_type, body, query).shards == urls


def test_indices_pick_from_the_expanded_pattern() -> None:
    """A template and numbers say the same as the URLs, in the order given."""
    content_type, body, query = encode(set="s3://b/{000000..585269}.tar", indices=[17, 3, 585_269], epoch=1)
    assert decode(content_type, body, query) == PlanBody(
        ["s3://b/000017.tar", "s3://b/000003.tar", "s3://b/585269.tar"], 1, "s3://b/{000000..585269}.tar"
    )


def test_lines_may_be_blank_and_end_as_windows_ends_them() -> None:
    """Blank lines count for nothing; the content type of ``curl -d`` does no harm."""
    assert decode("application/x-ndjson; charset=utf-8", b'\n"s3://b/1"\r\n\n"s3://b/2"').shards == ["s3://b/1", "s3://b/2"]
    assert decode("application/x-www-form-urlencoded", b'{"shards": ["s3://b/k"]}') == PlanBody(["s3://b/k"])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "the body is not JSON at character 0"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"shards": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[]", '{"shards": ['),
        (b'"s3://b/k"', '{"shards": ['),
        (b"{}", "shards is missing"),
        (b'{"shards": "s3://b/k"}', "not a list"),
        (b'{"shard": ["s3://b/k"]}', "unknown field 'shard'; known are shards, epoch, set, indices"),
        (b'{"shards": ["s3://b/0", 7, 8]}', "entry 1 is not a string"),
        (b'{"shards": ["s3://b/0", ["s3://b/1"]]}', "entry 1 is not a string"),
        (b'{"shards": ["s3://b/0", "s3://b/1", "ftp://h/2", "x"]}', "entry 2: unknown scheme 'ftp'"),
        (b'{"shards": ["pipe:cat /x"]}', "entry 0: unknown scheme"),
        (b'{"shards": ["s3://b/\\ud800"]}', "entry 0: the URL holds a lone surrogate"),
        (b'{"shards": ["s3://b/' + b"x" * 9000 + b'"]}', "entry 0: the URL is longer than 8192 bytes"),
        (b'{"shards": [], "epoch": -1}', "epoch is not a whole number"),
        (b'{"shards": [], "epoch": true}', "epoch is not a whole number"),
        (b'{"shards": [], "epoch": 1.5}', "epoch is not a whole number"),
        (b'{"shards": [], "set": ""}', "set is not a pattern"),
        (b'{"shards": [], "set": 7}', "set is not a pattern"),
        (b'{"shards": [], "set": "a\\u0000"}', "set is not a pattern"),
        (b'{"indices": [1]}', "indices point into a pattern"),
        (b'{"set": "s3://b/{0..9}", "indices": [1], "shards": []}', "indices point into a pattern"),
        (b'{"set": "s3://b/{0..9}", "indices": 1}', "indices is not a list"),
        (b'{"set": "s3://b/{0..9}", "indices": [0, 10]}', "indices[1] is not a whole number from 0 to 9"),
        (b'{"set": "s3://b/{0..9}", "indices": [-1]}', "indices[0]"),
        (b'{"set": "s3://b/{0..9}", "indices": [true]}', "indices[0]"),
        (b'{"set": "s3://b/{0..9", "indices": [0]}', "set: the braces"),
        (b'{"set": "s3://b/{0..99999999}", "indices": [0]}', "set: the pattern stands for more than"),
        (b'{"set": "ftp://b/{0..9}", "indices": [3]}', "entry 0: unknown scheme"),
    ],
)  # fmt: skip
def test_bad_bodies(body: bytes, told: str) -> None:
    """The first fault is named, with its index."""
    with pytest.raises(InvalidPlan) as caught:
        decode(JSON, body)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("body", "query", "told"),
    [
        (b'"s3://b/0"\ns3://b/1\n', "", "entry 1 is not JSON"),
        (b'"s3://b/0"\n["s3://b/1"]\n', "", "entry 1 is not a string"),
        (b'"s3://b/0"\n"s3://b/1","s3://b/2"\n', "", "entry 1 is not JSON"),
        (b'"s3://b/0\ns3://b/1"\n', "", "entry 0 is not JSON"),
        (b'"s3://b/0"\n"nope"\n', "", "entry 1: unknown scheme"),
        (b'{"shards": ["s3://b/0"]}', "", "entry 0 is not a string"),
        (b"", "epoch=x", "epoch is not"),
        (b"", "epoch=", "epoch is not"),
        (b"", "epoch=" + "9" * 5000, "epoch is not"),
        (b"", "set=", "set is not"),
    ],
)
def test_bad_lines(body: bytes, query: str, told: str) -> None:
    """A line is one JSON string."""
    with pytest.raises(InvalidPlan) as caught:
        decode(NDJSON, body, query)
    assert told in str(caught.value)


@pytest.mark.parametrize(("pattern", "told"), [("{0..9}", r"entry 130: .* in parts"), ("{0..999}", r"set: .* in parts")])
def test_a_small_body_cannot_name_gigabytes(monkeypatch: pytest.MonkeyPatch, pattern: str, told: str) -> None:
    """Many indices into one long pattern, listed or not, stop at the bound of a plan, not of the memory."""
    monkeypatch.setattr(plan, "MAX_PLAN_BYTES", 1 << 20)
    body = json.dumps({"set": "s3://b/" + "x" * 8000 + pattern, "indices": [0] * 1000}).encode()
    with pytest.raises(InvalidPlan, match=told):
        decode(JSON, body)


def test_few_indices_into_a_large_pattern_do_not_list_it() -> None:
    """Four million URLs are named by number alone."""
    body = json.dumps({"set": "s3://b/{0..1999}/{0..1999}.tar", "indices": [3_999_999]}).encode()
    assert decode(JSON, body).shards == ["s3://b/1999/1999.tar"]


def test_refusals_tell_no_secret() -> None:
    """A bad entry is named by its index, not by its text."""
    with pytest.raises(InvalidPlan) as caught:
        decode(JSON, b'{"shards": ["s3://AKIA:hunter2@b/k"]}')
    assert "hunter2" not in str(caught.value)


entries = st.sampled_from(
    ["s3://b/k.tar", "https://h.example/a/b.tar", "http://1.2.3.4/x", "s3://b/../k", "s3://b//k", "gs://b/.k", "hf://d/o/n"]
)


@given(st.one_of(st.text(max_size=40), entries, st.from_regex(plan._PLAIN, fullmatch=True)))
def test_the_short_way_agrees_with_the_parser(entry: str) -> None:
    """An entry that is waved through is one the parser takes as it stands."""
    if plan._PLAIN.fullmatch(entry) and len(entry) <= 8192:
        assert parse_origin_url(entry).text() == entry
    else:
        try:
            accepted = decode(JSON, json.dumps({"shards": [entry]}).encode()).shards == [entry]
        except InvalidPlan:
            accepted = False
        assert accepted is _parses(entry)


def _parses(text: str) -> bool:
    try:
        parse_origin_url(text)
    except InvalidShardUrl:
        return False
    return True


def test_a_pattern_of_many_parts_is_refused() -> None:
    """It is understood while others wait; the URLs themselves may be as many as they like."""
    body = json.dumps({"set": "s3://b/{" + "," * MAX_PARTS + "}", "indices": [0]}).encode()
    with pytest.raises(InvalidPlan, match="list the URLs"):
        decode("application/json", body, expand=False)


# Where a message begins among all that its reader announced


@pytest.mark.parametrize(
    "how", [{"shards": ["s3://b/1.tar"]}, {"shards": ["s3://b/" + "x" * 200] * 6000}, {"set": "s3://b/{0..9}.tar", "indices": [3]}]
)
def test_it_travels_in_every_form(how: dict[str, Any]) -> None:
    """As JSON, as lines and with indices; left out it is not told."""
    told, untold = encode(**how, at=17), encode(**how)
    assert decode(told.content_type, told.body, told.query).at == 17
    assert decode(untold.content_type, untold.body, untold.query).at is None


@pytest.mark.parametrize("at", ["-1", "1.5", '"3"', "true", "[]", str(1 << 60)])
def test_nonsense_is_refused(at: str) -> None:
    """With the name of the field, for lines as well."""
    for content_type, body, query in ((JSON, b'{"shards": [], "at": %s}' % at.encode(), ""), (NDJSON, b'"s3://b/1.tar"\n', f"at={at}")):
        with pytest.raises(InvalidPlan, match="at is not a whole number"):
            decode(content_type, body, query)


@pytest.mark.parametrize(
    "entries",
    ["1,,2", ",1", "1,2,3,4,5,6,7,8,9,10,", "1 2", "01", "[1", '"a"', "1.5", "-1", "1,2,3,4,5,6,7,8,9,10,null", " " * 15 + ",1,2,3,4,5"],
)
def test_what_is_no_list_of_numbers_is_refused(entries: str) -> None:
    """In one piece or in several, whatever stands between the brackets."""
    body = f'{{"set": "s3://b/{{0..199}}.tar", "indices": [{entries}]}}'.encode()
    with pytest.raises(InvalidPlan):
        decode("application/json", body, expand=False)


def test_a_field_that_is_there_twice_is_the_last_one() -> None:
    """As JSON has it, however it is spelt."""
    for first, second in (("indices", "indices"), ("indices", "\\u0069ndices"), ("\\u0069ndices", "indices")):
        body = f'{{"set": "s3://b/{{0..9}}.tar", "{first}": [1, 2], "{second}": [3]}}'.encode()
        assert list(decode("application/json", body, expand=False).indices or ()) == [3]


parts = (
    st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="/"), min_size=1, max_size=128)
    .filter(str.isprintable)
    .filter(lambda part: part not in (".", ".."))
)


@given(parts, parts, parts, parts)
def test_round_trip(job: str, rank: str, worker: str, opener: str) -> None:
    """Parse what ``str`` wrote; it is ASCII without blanks, fit for a header."""
    reader = ReaderName(job, rank, worker, opener)
    assert ReaderName.parse(str(reader)) == reader
    assert str(reader).isascii()
    assert " " not in str(reader)


def test_ordinary_names_are_written_as_they_are() -> None:
    """No escapes where none are needed."""
    assert str(ReaderName("4711.0", "3", "1", "812.2")) == "4711.0/3/1/812.2"
    assert ReaderName.parse("job%20x/0/0/1.1").job == "job x"


@pytest.mark.parametrize(
    "text",
    ["", "a/b/c", "a/b/c/d/e", "a//c/d", "a/b/c/", "a/b/c/d\n", "a%2Fb/b/c/d", "a%00/b/c/d", "../b/c/d", "a/b/c/%2e", "x" * 129 + "/b/c/d"],
)
def test_bad_names(text: str) -> None:
    """Wrong count, empty, too long, slash, dots or unprintable: told, not bent."""
    with pytest.raises(InvalidReader):
        ReaderName.parse(text)
