"""Fuzz targets: each takes bytes, feeds them to one reader of foreign input, and holds what comes out against an oracle of its own.

A target returns normally for input that is refused in the proper way (our own error, with a message), and raises ``AssertionError`` or any
other exception for a fault. ``tests/property/test_fuzz_*.py`` drives them with hypothesis for seconds, ``benchmarks/fuzz.py`` with a
coverage-guided fuzzer for as long as one likes.
"""

# ruff: noqa: PT017 -- a target is no test: expectations of an error stand where the error is caught

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from support.mp4_oracle import fuzz_mp4, mp4_seeds

from forebay_proxy.core import http_range
from forebay_proxy.core.errors import ForebayError, InvalidRequest
from forebay_proxy.core.http_range import Suffix
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.response import OriginResponse, parse_content_range, parse_unsatisfied_range
from forebay_proxy.server.http.admin_routes import parse_patterns
from forebay_proxy.server.http.plan_route import parse_plan, shards_of
from forebay_proxy.store.index import row
from forebay_proxy.store.index.row import InvalidRow
from forebay_proxy.wire.commands.gopen_rules import gopen_rewrite, rewritten
from forebay_proxy.wire.commands.shell import NotRewritten, split_command
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.protocol.plan import InvalidPlan, InvalidReader, PlanBody, ReaderName, decode, encode
from forebay_proxy.wire.tar.end_marker import EndMarker
from forebay_proxy.wire.urls.shard_url import MAX_URL_BYTES, InvalidShardUrl, parse_origin_url, parse_proxy_target

__all__ = ["TARGETS", "Target"]

LENGTHS = (0, 1, 10, 8 << 20, 2**63 - 1)
SAFE = re.compile(r"[A-Za-z0-9\-._~!*(),:;@&=+/?%]+")


@dataclass(frozen=True)
class Target:
    """``seeds`` are good and nearly good inputs to begin from."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def text_of(data: bytes) -> str:
    """As header values and request targets reach us: octets that are not UTF-8 are lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def fuzz_range(data: bytes) -> None:
    """What is read from Range lies inside the shard, and is what a second, plainer reader makes of it."""
    text = text_of(data)
    try:
        found = http_range.parse_range(text)
    except InvalidRequest as error:
        assert error.status in (400, 416)
        assert error.next_step
        return
    plain = re.fullmatch(r"bytes=([0-9]{1,18})-([0-9]{1,18})?", text)
    if plain:
        assert found == http_range.ByteRange(int(plain[1]), int(plain[2]) if plain[2] else None)
    if found is None:
        return
    for length in LENGTHS:
        try:
            first, last = http_range.resolve(found, length)
        except ValueError:
            assert length == 0 or isinstance(found, Suffix) or found.first >= length
            continue
        assert 0 <= first <= last < length
        header = http_range.content_range(first, last, length)
        if length < 10**18:
            assert parse_content_range(header) == (first, last, length)
        assert http_range.resolve(http_range.ByteRange(first, last), length) == (first, last)


def fuzz_content_range(data: bytes) -> None:
    """What an origin says of its body is consistent, and written again reads the same."""
    text = text_of(data)
    try:
        first, last, total = parse_content_range(text)
    except ValueError:
        pass
    else:
        assert 0 <= first <= last
        assert total is None or last < total
        assert parse_content_range(http_range.content_range(first, last, total)) == (first, last, total)
    try:
        length = parse_unsatisfied_range(text)
    except ValueError:
        return
    assert length >= 0
    assert str(length) in re.sub(r"/0+(?=\d)", "/", text)


def fuzz_preconditions(data: bytes) -> None:
    """A tag matches the same tag and no other, whatever surrounds it; no header makes a comparison fail."""
    text = text_of(data)
    for etag in ('"v1"', 'W/"v1"', None):
        matched = http_range.if_match(text, etag)
        assert not (matched and etag != '"v1"' and text.strip() != "*")
        if etag == '"v1"' and not http_range.if_none_match(text, etag):
            assert text.strip() == "*" or '"v1"' in text
        if http_range.if_range(text, etag, None):
            assert etag == '"v1"'
            assert text.strip() == etag


def fuzz_pipe(data: bytes) -> None:
    """A command we take over is one simple command, read as the shell's own rules of quoting read it; nothing secret shows in a repr."""
    text = text_of(data)
    try:
        source = parse_source(f"pipe:{text}")
    except InvalidShardUrl as error:
        assert str(error)
        return
    if not isinstance(source, Source):
        return
    check_url(source.url)
    command = split_command(text.strip())
    plain = re.sub(r"(2>|<)\s*/dev/null|\|\s*pv\b.*|\|\|\s*(true|:)\s*$", " ", text)
    if not re.search(r"[\\\n]|[|<>]", plain):
        assert shlex.split(plain)[-len(command.words) :] == list(command.words)
    assert all(value not in repr(source) or len(value) < 12 for _, value in source.headers)
    assert all("\n" not in value and "\r" not in value for _, value in source.headers)


def fuzz_shell(data: bytes) -> None:
    """Words are those of ``shlex`` wherever the text is one simple command without comments."""
    text = text_of(data)
    try:
        command = split_command(text)
    except NotRewritten:
        return
    if re.search(r"[|<>\\\n\r]|[^\x20-\x7e\t]", text):
        return  # a suffix that was taken off, or a corner where shlex and sh differ
    words = shlex.split(text)
    assert words[-len(command.words) :] == list(command.words)
    assignments = (word.partition("=") for word in words[: -len(command.words)])
    assert {name: value for name, _, value in assignments} == command.environ  # of a name given twice the last counts


def fuzz_rewrite(data: bytes) -> None:
    """What a GOPEN_REWRITE rule makes of a text names the shard that the text names, or the text is left alone."""
    text = text_of(data)
    value = gopen_rewrite("http://127.0.0.1:7070")
    changed = rewritten(value, text)
    if changed == text:
        return
    try:
        meant = parse_source(text)
    except InvalidShardUrl:
        return  # refused everywhere
    target = changed.removeprefix("http://127.0.0.1:7070").partition("#")[0]
    assert isinstance(meant, Source), text
    assert parse_proxy_target(target) == meant.url, (text, changed)
    assert meant.headers == (), "headers cannot travel this way"


def check_url(url: object) -> None:
    """The three spellings of a shard name the same one, and the emitted one is safe to paste."""
    path = url.proxy_path()  # type: ignore[attr-defined]
    assert SAFE.fullmatch(path), path
    assert len(path) <= MAX_URL_BYTES
    assert parse_proxy_target(path) == url, path
    text = url.text()  # type: ignore[attr-defined]
    assert parse_origin_url(text) == url, text
    if url.scheme not in ("http", "https"):  # type: ignore[attr-defined]
        assert {".", ".."}.isdisjoint(url.key().split("/"))  # type: ignore[attr-defined]
    _, _, query = Shard.of(url).name.partition("?")  # type: ignore[arg-type]
    if url.scheme in ("http", "https"):  # type: ignore[attr-defined]
        secrets = ("x-amz-signature=", "x-amz-security-token=", "x-goog-signature=")  # others only in the company that makes them one
        # one without a value is none, and stays
        assert not any(part.lower().startswith(secrets) and part.split(";")[0].partition("=")[2] for part in query.split("&")), query


def fuzz_target(data: bytes) -> None:
    """A request target that is taken is stable: written again and read again it is the same shard."""
    try:
        url = parse_proxy_target(text_of(data))
    except InvalidShardUrl as error:
        assert str(error)
        return
    check_url(url)


def fuzz_origin_url(data: bytes) -> None:
    """As ``fuzz_target``, for what people and plans write; userinfo is nowhere afterwards."""
    text = text_of(data)
    try:
        url = parse_origin_url(text)
    except InvalidShardUrl as error:
        assert str(error)
        return
    check_url(url)
    assert "@" not in url.authority


def fuzz_plan(data: bytes) -> None:
    """A plan that is taken is whole: every entry is a shard, and written again it is the same plan."""
    kind, _, body = data.partition(b"\n")
    content_type, _, query = text_of(kind).partition(" ")
    try:
        plan = decode(content_type, body, query)
    except InvalidPlan as error:
        assert str(error)
        return
    if len(plan.shards) > 5000:
        return
    packed = encode(plan.shards, epoch=plan.epoch, set=plan.set)
    assert decode(*packed) == plan
    lines = b"\r\n\n".join(json.dumps(shard).encode() for shard in plan.shards)
    assert decode("application/x-ndjson", lines + b"\n") == PlanBody(plan.shards)
    secret = (("Authorization", "Bearer x"),)
    quick, slow = shards_of(plan.shards, secret), [Shard.of(parse_origin_url(text)) for text in plan.shards]
    assert [shard.name for shard in quick] == [shard.name for shard in slow]
    proving = [shard.origin == quick[0].origin and shard.url.scheme not in ("s3", "file") for shard in quick]  # those two take no header
    assert [bool(shard.credential.headers) for shard in quick] == proving


def fuzz_command_body(data: bytes) -> None:
    """An evict or plan body is taken whole or refused with a status; ``all`` is never meant by accident."""
    try:
        wish = parse_patterns(data)
        assert wish is not None or json.loads(data) == {"all": True}
    except InvalidRequest as error:
        assert error.status in (400, 413)
    try:
        parse_plan("application/json", data, "", ())
    except ForebayError as error:
        assert 400 <= error.status < 500


def fuzz_tar(data: bytes) -> None:
    """The end marker sees the same in any pieces, and never an end that the standard library's reader does not reach."""
    whole, pieces, bytewise = EndMarker(), EndMarker(), EndMarker()
    whole.feed(data)
    step = data[0] % 700 + 1 if data else 1
    for start in range(0, len(data), step):
        pieces.feed(data[start : start + step])
    for start in range(min(len(data), 1100)):
        bytewise.feed(memoryview(data)[start : start + 1])
    bytewise.feed(data[1100:])
    assert whole.seen == pieces.seen == bytewise.seen
    if whole.seen:
        assert len(data) >= 1024
        assert data.rstrip(b"\0") == b"" or reads_to_its_end(data), "an end was seen that tarfile does not reach"


def reads_to_its_end(data: bytes) -> bool:
    """Whether tarfile finds no cut. What it does not understand at all is no judgement of the marker's."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as archive:
            for _ in archive:
                pass
    except tarfile.ReadError as error:
        return "unexpected end" not in str(error)
    except (tarfile.TarError, ValueError, OverflowError, OSError):
        return True
    return True


def fuzz_reader(data: bytes) -> None:
    """A reader's name is four printable words, fit for a header and a path, and reads back as itself."""
    try:
        reader = ReaderName.parse(text_of(data))
    except InvalidReader as error:
        assert str(error)
        return
    text = str(reader)
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert text.count("/") == 3
    assert ReaderName.parse(text) == reader


def fuzz_row(data: bytes) -> None:
    """A row of the index is read only if it says what we would have written."""
    key, _, text = text_of(data).partition("\n")
    if key == "derive":  # a fuzzer finds no SHA-256 by itself
        try:
            fields = json.loads(text)
            key = row.store_key(fields["url"], fields["identity"])
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
            return
    try:
        found = row.decode(key, text, DEFAULT_LAYOUT)
    except InvalidRow as error:
        assert str(error)
        return
    again = row.decode(key, row.encode(found, DEFAULT_LAYOUT), DEFAULT_LAYOUT)
    assert again == found
    assert found.key == key
    assert re.fullmatch("[0-9a-f]{64}", key)


def fuzz_error_body(data: bytes) -> None:
    """Of an error body only plain words are repeated: no URL, no control character, no markup, nothing like a key."""
    status, _, body = data.partition(b"\n")
    number = 400 + (status[0] if status else 0) % 200
    answer = OriginResponse(
        number, {"x-ms-error-code": text_of(status), "retry-after": text_of(status), "content-range": text_of(status)}, body
    )
    assert re.fullmatch(r"[A-Za-z0-9._-]{0,64}", answer.code, re.ASCII)
    assert re.fullmatch(r"[A-Za-z0-9 ,.:;()'!_-]*", answer.words, re.ASCII), answer.words
    assert len(answer.words) < 500


TARGETS: dict[str, Target] = {
    "range": Target(fuzz_range, (b"bytes=0-1", b"bytes=-5", b"bytes=5-", b"bytes=0-1,3-4", b"bytes = 0-1", b"items=0-1",
    b"bytes=99999999999999999999-")),
    "content_range": Target(fuzz_content_range, (b"bytes 0-1/2", b"bytes 0-1/*", b"bytes */10", b"bytes 5-1/2", b"BYTES 0-0/1")),
    "preconditions": Target(fuzz_preconditions, (b'"v1"', b'W/"v1"', b'"a", "v1"', b"*", b"Wed, 21 Oct 2015 07:28:00 GMT", b'"v1" "v1"')),
    "pipe": Target(
        fuzz_pipe,
        (
            b"curl -s -L https://h/0.tar", b"curl -f -s -L 'https://h/0.tar' || true", b"aws s3 cp s3://b/0.tar -",
            b"wget -q -O - http://h/0.tar",
            b"curl -H 'Authorization: Bearer abcdefghijklm' https://h/a", b"AWS_PROFILE=p aws s3 cp s3://b/k - | pv",
            b"gsutil cat gs://b/k",
            b"s5cmd cat s3://b/k", b"curl -u user:password12345 http://h/x 2>/dev/null", b"cat /nas/0.tar",
        ),
    ),
    "shell": Target(fuzz_shell, (b"a b 'c d' \"e f\"", b"A=1 b", b"a | pv || true", b"a 'b'\"c\"d", b"a < /dev/null")),
    "rewrite": Target(
        fuzz_rewrite,
        (b"https://h/0.tar", b"s3://b/0.tar", b"pipe:aws s3 cp s3://b/0.tar -", b"pipe:curl -s -L https://h/0.tar",
        b"pipe:aws --profile p s3 cp s3://b/k - || true",
        b"pipe:aws --profile p s3 cp 's3://b/k.tar' - --endpoint-url='http://h:9000' 2>/dev/null || true",
        b"pipe:s5cmd -r 5 cat s3://b/k.tar | pv -q", b"pipe:curl -sL --retry 3 'https://h/x.tar?a=1&b=2' -o - < /dev/null",
        b"pipe:wget -qO- --tries=3 https://h/x.tar || true", b'pipe:gsutil -m cat "gs://b/k.tar" 2> /dev/null', b"pipe:cat /nas/x.tar",
        b"pipe:s3cmd -q get s3://b/k.tar - ||true"),
    ),
    "target": Target(
        fuzz_target,
        (
            b"/https/h/0.tar", b"/s3/b/k?endpoint=http://h:9", b"/http/%5B::1%5D:80/x", b"/file/nas/0.tar", b"/hf/datasets/o/n@r/p",
            b"/gs/b/a%2Fb",
            b"/https/h/a//b/../c?x=%2F&X-Amz-Signature=s", b"/https/H%2EExample/%7e",
        ),
    ),
    "origin_url": Target(
        fuzz_origin_url,
        (b"https://user:pw@h:443/a?b#c", b"s3://b/k?", b"file:///nas/a%20b", b"http://[::1]:80/x", b"hf://datasets/o/n/p",
        b"HTTPS://H/%zz", b"s3://b/a?b?region=x"),
    ),
    "plan": Target(
        fuzz_plan,
        (
            b'application/json \n{"shards": ["s3://b/0.tar", "https://h/1.tar"], "epoch": 3}',
            b'application/x-ndjson epoch=3&set=a\n"s3://b/0.tar"\n"s3://b/1.tar"\n',
            b'application/json \n{"set": "s3://b/{000..020}.tar", "indices": [1, 2, 3]}', b'a \n{"shards": ["s3://b/%zz"]}',
            b'a \n{"set": "{a,{b,c}}", "indices": [0]}',
        ),
    ),
    "command_body": Target(fuzz_command_body, (b'{"all": true}', b'{"shards": ["s3://b/*"]}', b"[]", b'{"all": 1}', b'{"shards": [1]}')),
    "tar": Target(fuzz_tar, ()),
    "reader": Target(fuzz_reader, (b"job/0/1/7.1", b"a%2Fb/0/0/1", b"../0/0/1", b"a/b/c", b"\xc3\xa9/0/0/1", b"a b/0/0/1", b"%00/0/0/1")),
    "row": Target(
        fuzz_row,
        (
            b'derive\n{"url":"s3://b/k","identity":"etag:1","pin":["etag","\\"1\\""],"length":3,"encoding":"","type":"","access":[],"boot":"b","sums":"AQAAAAAAAAA="}',
            b'derive\n{"url":"s3://b/k","identity":"etag:1","pin":["etag","\\"1\\""],"length":3,"encoding":"","type":"","access":[],"boot":"b",'
            b'"sums":{"segment":8388608,"runs":[[0,"AQAAAAAAAAA="]]}}',
        ),
    ),
    "error_body": Target(
        fuzz_error_body,
        (
            b"1\n<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>",
            b"2\n<Code>a</Code><Message>http://h/?sig=x</Message>",
            b"3\n<ActualObjectSize>99</ActualObjectSize>", b"bytes */9\n<Message>&lt;&#10;</Message>",
        ),
    ),
}  # fmt: skip


def tar_seeds() -> Iterable[bytes]:
    """Small archives in each format, with the members that confuse readers."""
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
            for name, size in (("a", 0), ("n" * 90, 700), ("zeros", 2048)):
                member = tarfile.TarInfo(name)
                member.size = size
                archive.addfile(member, io.BytesIO(bytes(size) if name == "zeros" else b"x" * size))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "a"
            archive.addfile(link)
        yield buffer.getvalue()[: buffer.getvalue().rindex(b"link") // 512 * 512 + 512 + 1024]


TARGETS["tar"] = Target(fuzz_tar, tuple(tar_seeds()))
TARGETS["mp4"] = Target(fuzz_mp4, mp4_seeds())
