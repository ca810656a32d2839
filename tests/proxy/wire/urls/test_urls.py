"""A shard's URL survives each of its spellings, and what cannot name a shard is told why."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, ShardUrl, file_url, object_url, parse_origin_url, parse_proxy_target

SAFE = re.compile(r"[A-Za-z0-9\-._~!*(),:;@&=+/?%]+")  # what a proxy path may show; no ' " space $ { } [ ] ` \ < >

characters = st.characters(exclude_categories=("Cs", "Cc"))
tricky = st.sampled_from(
    ["//", "%2F", "%", " ", "'", '"', "{", "}", "?", "#", "$", "`", "\\", ";", "&", "=", "+", "ü", "日", "[", "]", "a"]
)
keys = (
    st.lists(st.one_of(tricky, characters), min_size=1, max_size=40).map("".join).filter(lambda key: not {".", ".."} & set(key.split("/")))
)
hosts = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z]{1,5}){0,3}", fullmatch=True)
http_paths = st.from_regex(r"(/([A-Za-z0-9_~!*(),:;@&=+]|%[0-9A-Fa-f]{2}|/|\.tar){0,20}){0,4}", fullmatch=True).filter(
    lambda path: not re.search(r"/(\.|%2e){1,2}(/|$)", path, re.IGNORECASE)
)
queries = st.from_regex(r"([A-Za-z0-9_~!*(),:;@&=+/?.-]|%[0-9A-Fa-f]{2}){0,30}", fullmatch=True)
option_values = {
    "endpoint": st.sampled_from(["http://127.0.0.1:9000", "https://s3.example.org", "http://[::1]:1/base"]),
    "profile": st.from_regex(r"[!-~]{1,20}", fullmatch=True),
    "region": st.just("us-east-1"),
    "unsigned": st.just("1"),
    "requester_pays": st.just("1"),
    "versionId": st.from_regex(r"[!-~]{1,40}", fullmatch=True),
}
options = st.fixed_dictionaries({}, optional=option_values)


def round_trip(url: ShardUrl) -> None:
    assert parse_proxy_target(url.proxy_path()) == url
    assert parse_origin_url(url.text()) == url
    assert SAFE.fullmatch(url.proxy_path())


@given(st.sampled_from(["s3", "gs", "hf"]), keys)
def test_every_key_survives(scheme: str, key: str) -> None:
    """Origin to proxy path and back gives the very key, and a path safe to paste into a shell."""
    url = object_url(scheme, "bucket", key)
    assert url.key() == key
    round_trip(url)
    assert url.path.endswith("/" + key) or not re.fullmatch("[A-Za-z0-9/]+", key)


@given(keys, options)
@example("a?b?", {"region": "us-east-1"})
@example("a?region=x", {})
def test_options_survive_beside_every_key(key: str, given_options: dict[str, str]) -> None:
    """No key, however it looks, is taken for options, nor options for a key."""
    url = object_url("s3", "bucket", key, given_options)
    round_trip(url)
    assert (url.key(), url.options()) == (key, given_options)


@given(st.sampled_from(["http", "https"]), hosts, http_paths, queries)
def test_http_goes_as_received(scheme: str, host: str, path: str, query: str) -> None:
    """Path and query of an http URL keep every byte, percent-encoding included."""
    url = parse_origin_url(f"{scheme}://{host}{path}" + (f"?{query}" if query else ""))
    assert (url.authority, url.path, url.query) == (host, path or "/", query)
    round_trip(url)


@given(st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name))
def test_file_names_are_bytes(name: bytes) -> None:
    """A path on a NAS need not be UTF-8; control characters and dot segments are the only ones refused."""
    text = "/nas/" + os.fsdecode(name)
    try:
        url = file_url(text)
    except InvalidShardUrl:
        assert any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text) or re.search(r"/\.\.?(/|$)", text)
        return
    round_trip(url)
    assert os.fsencode("/" + url.key()) == re.sub(b"/+", b"/", b"/nas/" + name)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("HTTPS://Example.ORG:443/A", "https://example.org/A"),
        ("http://h:80", "http://h/"),
        ("http://h:443/x", "http://h:443/x"),
        ("http://h:/x", "http://h/x"),
        ("http://h./x", "http://h/x"),
        ("http://user:pass@h/x#part", "http://h/x"),
        ("http://user:p@ss@h/x", "http://h/x"),
        ("http://[2001:DB8::0:1]:80/x", "http://[2001:db8::1]/x"),
        ("http://[::1]:80/x", "http://[::1]/x"),
        ("http://[::1]:81/x", "http://[::1]:81/x"),
        ("http://Bücher.example/x", "http://xn--bcher-kva.example/x"),
        ("http://h/a/../../b/./c/..", "http://h/b/"),
        ("http://h/a/%2E%2e/b", "http://h/b"),
        ("http://h//x%2fy", "http://h//x%2fy"),
        ("http://h/it's $1;{0}.tar?q=[1]", "http://h/it%27s%20%241;%7B0%7D.tar?q=%5B1%5D"),
        ("http://h/ü", "http://h/%C3%BC"),
        ("http://h/x?", "http://h/x"),
        ("S3://Bucket/Key", "s3://Bucket/Key"),
        ("s3://b//k", "s3://b//k"),
        ("s3://b/k?", "s3://b/k"),
        ("s3://b/k?unsigned=true&endpoint=HTTP://Host:80/", "s3://b/k?endpoint=http://host&unsigned=1"),
        ("s3://b/k?unsigned=0", "s3://b/k"),
        ("s3://b/k?requester_pays=requester", "s3://b/k?requester_pays=1"),
        ("s3://b/k?versionId=a%2Bb", "s3://b/k?versionId=a%2Bb"),
        ("gs://b/k#1", "gs://b/k#1"),
        ("hf://datasets/org/name@rev/x.tar", "hf://datasets/org/name@rev/x.tar"),
        ("file:///a//b%41.tar", "file:///a/bA.tar"),
        ("file:/a/b.tar", "file:///a/b.tar"),
        ("file://localhost/a", "file:///a"),
    ],
)  # fmt: skip
def test_canonical_spelling(text: str, canonical: str) -> None:
    """One shard has one name."""
    url = parse_origin_url(text)
    assert url.text() == canonical
    round_trip(url)


@pytest.mark.parametrize(
    ("origin", "target"),
    [
        ("https://host:8443/a/b.tar?x=1&y=2", "/https/host:8443/a/b.tar?x=1&y=2"),
        ("http://host", "/http/host/"),
        ("http://[::1]:9/x", "/http/%5B::1%5D:9/x"),
        ("s3://b/a b%2F//c.tar", "/s3/b/a%20b%252F//c.tar"),
        ("s3://b/k.tar?endpoint=http://h:9000&profile=p&region=r&unsigned=1&requester_pays=1&versionId=v",
         "/s3/b/k.tar?endpoint=http://h:9000&profile=p&region=r&unsigned=1&requester_pays=1&versionId=v"),
        ("gs://b/k", "/gs/b/k"),
        ("hf://datasets/o/n@r/p", "/hf/datasets/o/n@r/p"),
        ("file:///nas/x.tar", "/file/nas/x.tar"),
    ],
)  # fmt: skip
def test_proxy_paths(origin: str, target: str) -> None:
    """The table of proxy URLs, both ways."""
    assert parse_origin_url(origin).proxy_path() == target
    assert parse_proxy_target(target) == parse_origin_url(origin)


@pytest.mark.parametrize(
    ("target", "same"),
    [
        ("/S3/b/k", "/s3/b/k"), ("/http/h%3A81/x", "/http/h:81/x"), ("/http/u:p@h/x", "/http/h/x"), ("/s3/b/%6b", "/s3/b/k"),
        ("/s3/b/k?endpoint=&profile=p&region=", "/s3/b/k?profile=p"), ("/http/h", "/http/h/"), ("/file//a", "/file/a"),
    ],
)  # fmt: skip
def test_other_spellings_of_a_target(target: str, same: str) -> None:
    """What clients may write differently means the same shard."""
    assert parse_proxy_target(target).proxy_path() == same


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "unknown scheme"),
        ("shard.tar", "unknown scheme"),
        ("/nas/shard.tar", "unknown scheme"),
        ("ftp://h/x", "'ftp'"),
        ("http:/h/x", "as s3://bucket/shard.tar"),
        ("http:///x", "no host"),
        ("http://:80/x", "no host"),
        ("http://h:0/x", "1 to 65535"),
        ("http://h:65536/x", "1 to 65535"),
        ("http://h:٣/x", "1 to 65535"),
        ("http://h:+1/x", "1 to 65535"),
        ("http://::1/x", "in brackets"),
        ("http://[::1/x", "in brackets"),
        ("http://[::1]x/", "in brackets"),
        ("http://[1.2.3.4]/", "not IPv6"),
        ("http://[fe80::1%25eth0]/x", "zone"),
        ("http://127.1/x", "four decimal parts"),
        ("http://2130706433/x", "four decimal parts"),
        ("http://0x7f.1/x", "four decimal parts"),
        ("http://a..b/x", "not a name"),
        ("http://h../x", "not a name"),
        ("http://ex ample/x", "not a name"),
        ("http://h\\evil/x", "not a name"),
        ("http://" + "a" * 64 + "/x", "not a name"),
        ("http://" + "a." * 127 + "aa/x", "not a name"),
        ("http://straße.example/x", "xn-- form"),
        ("http://\uff11.2.3.4/x", "xn-- form"),
        ("http://\u2024/x", "xn-- form"),
        ("http://h/100%", "%25"),
        ("http://h/%zz", "%25"),
        ("http://h/a\nb", "control character"),
        ("s3://b/a\x7f", "control character"),
        ("s3://b/a\x9b", "control character"),
        ("http://h/\ud800", "surrogate"),
        ("s3://b/a\udcff", "UTF-8"),
        ("s3://", "bucket is empty"),
        ("s3:///k", "bucket is empty"),
        ("s3://b", "names no object"),
        ("s3://b/", "names no object"),
        ("s3://KEY:SECRET@b/k", "no credentials"),
        ("s3://b ucket/k", "may hold letters"),
        ("s3://../k", "may hold letters"),
        ("s3://b/a/../k", "'.' or '..'"),
        ("s3://b/..", "'.' or '..'"),
        ("s3://b/k?colour=red", "unknown s3 option colour; known are endpoint, profile"),
        ("s3://b/a?b", "one more '?' at the end"),
        ("s3://b/k?unsigned=maybe", "unsigned=1"),
        ("s3://b/k?endpoint=host:9000", "endpoint=http://host:9000"),
        ("s3://b/k?endpoint=http://K:S@h", "without credentials"),
        ("s3://b/k?endpoint=http://h:99999", "1 to 65535"),
        ("s3://b/k?profile=", "needs a value"),
        ("s3://b/k?profile=a%0Ab", "printable"),
        ("s3://b/k?region=a/b", "us-east-1"),
        ("s3://b/k?region=a&region=b", "given twice"),
        ("s3://b/k?versionId=%zz", "%25"),
        ("gs://b", "names no object"),
        ("file://host/x", "three slashes"),
        ("file:x", "absolute path"),
        ("file:///", "names no object"),
        ("file:///a/%2e%2e/b", "'.' or '..'"),
        ("file:///a%00", "control character"),
        ("file:///a?b", "%3F"),
        ("http://h/" + "x" * 8192, "8192 bytes"),
        ("s3://b/" + "ü" * 2000, "once percent-encoded"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, told: str) -> None:
    """A refusal names the fault and what would be right."""
    with pytest.raises(InvalidShardUrl, match=re.escape(told)):
        parse_origin_url(text)


@pytest.mark.parametrize(
    "target",
    ["", "/", "s3/b/k", "http://h/x", "/ftp/h/x", "/s3", "/s3/", "/s3/b", "/s3/b/", "/s3//k", "/s3/b/k#x", "/s3/b/%0a", "/s3/b/a%2F..%2Fb",
     "/s3/b/%FF", "/gs/b/k?x=1", "/file/", "/file/..", "/file/a?x", "/http", "/http/", "/http//x", "/http/h%2Fevil/x", "/v1/status",
     "/s3/b/%"],
)  # fmt: skip
def test_bad_targets(target: str) -> None:
    """A request target that names no shard is refused, whatever an attacker encodes."""
    with pytest.raises(InvalidShardUrl):
        parse_proxy_target(target)


@pytest.mark.parametrize(
    "text",
    ["http://user:hunter2@h:x/", "http://user:hun/hunter2@h:70000/x", "http://hunter2@/", "s3://AKIA:hunter2@b/k", "http://h/%?sig=hunter2",
     "s3://b/k?hunter2!", "s3://b/k?endpoint=http://a:hunter2@h", "ftp://hunter2@h", "s3://b/k?profile=hunter2\x01"],
)  # fmt: skip
def test_refusals_tell_no_secret(text: str) -> None:
    """No message repeats userinfo, a query or a value."""
    with pytest.raises(InvalidShardUrl) as caught:
        parse_origin_url(text)
    assert "hunter2" not in str(caught.value)
