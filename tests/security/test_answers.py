"""What of an origin's answer reaches a client: the headers we name, with plain values, and nothing else."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refused
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, running

from forebay_proxy.core.shard import Pin, PinKind, Version, store_key
from forebay_proxy.server.http.shard_response import ShardRequest, decide

ALLOWED = {
    "content-type", "content-length", "content-range", "content-encoding", "etag", "last-modified", "accept-ranges", "cache-status",
    "server", "date",
    "connection", "keep-alive", "transfer-encoding", "x-content-type-options", "content-security-policy", "cache-control", "retry-after",
    "allow", "forebay-instance",
}  # fmt: skip
BODY = b"shard" * 100


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    """An origin that answers ``/<number>.tar`` with the very bytes of the case of that number."""
    with in_a_thread(ScriptedOrigin()) as origin:
        for number, headers in enumerate(HOSTILE.values()):
            origin.put(f"/{number}.tar", before=HEAD + headers + b"\r\n\r\n" + BODY, cut_after=-1)
        yield origin.base


@pytest.fixture(scope="module")
def sidecar(hostile: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with running(tmp_path_factory.mktemp("sidecar"), "--cache-size", "50MB", "--retry-budget-s", "1", allow=[hostile]) as found:
        yield found


def answer(sidecar: Sidecar, url: str) -> tuple[int, list[tuple[str, str]], bytes]:
    request = urllib.request.Request(sidecar.proxied(url))
    try:
        with urllib.request.urlopen(request, timeout=120) as found:
            return found.status, found.getheaders(), found.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, list(error.headers.items()), error.read()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n" % len(BODY)
HOSTILE = {
    "headers that mean something to a browser": b"Set-Cookie: a=b\r\nAccess-Control-Allow-Origin: *\r\nRefresh: 0; url=http://evil.example\r\n"
    b"Strict-Transport-Security: max-age=1\r\nLocation: http://evil.example/\r\nLink: <http://evil.example>\r\nClear-Site-Data: *",
    "headers that mean something to a cache": b"Vary: *\r\nCache-Control: public\r\nAge: 1\r\nExpires: 0\r\nCache-Status: evil; hit\r\n"
    b"Via: 1.1 evil",
    "hop-by-hop headers": b"Proxy-Authenticate: Basic\r\nUpgrade: h2c\r\nTrailer: X\r\nProxy-Connection: close\r\nAlt-Svc: h2=\":1\"",
    "headers of its own": b"X-Amz-Request-Id: 1\r\nX-Evil: 1\r\nServer: evil\r\nX-Accel-Redirect: /etc/passwd\r\nX-Sendfile: /etc/passwd",
    "our own names": b"Forebay-Token: x\r\nForebay-Reader: a/b/c/d\r\nContent-Security-Policy: none\r\nX-Content-Type-Options: sniff",
    "a carriage return in a value": b"ETag: \"a\rSet-Cookie: a=b\"",
    "a NUL in a value": b"ETag: \"a\0b\"",
    "a folded value": b"ETag: \"a\r\n Set-Cookie: a=b\"",
    "a value that is not ASCII": b"Content-Type: text/\xff\xfehtml",
    "a value of 8,000 characters": b"ETag: \"" + b"a" * 8000 + b"\"",
    "a name that is none": b"Bad Name: x",
    "a hundred thousand headers": b"\r\n".join(b"X-%d: a" % number for number in range(5000)),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_only_the_named_headers_come_through(sidecar: Sidecar, hostile: str, case: str) -> None:
    """Each once, printable; whatever else an origin says stays behind. It may also be refused whole."""
    status, headers, body = answer(sidecar, f"{hostile}/{list(HOSTILE).index(case)}.tar")
    names = [name.lower() for name, _ in headers]
    plain = all(value.isascii() and value.isprintable() for _, value in headers)
    strange = b"evil" in repr(headers).encode() or "sniff" in dict(headers).values()
    whole = status in (502, 503) or (status == 200 and body == BODY)
    refused(f"answers: {case}", held=whole and set(names) <= ALLOWED and len(names) == len(set(names)) and plain and not strange)


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_no_version_splits_a_response(etag: str, modified: str, encoding: str, content_type: str) -> None:
    """Whatever text a version is made of: each header is printable ASCII, and the type is never missing."""
    for pin in (Pin(PinKind.ETAG, f'"{etag}"'), Pin(PinKind.MODIFIED, modified)):
        version = Version(f"etag:{etag}", pin, 10, encoding, content_type)
        headers = decide(ShardRequest(), "s3://b/k", version, store_key("s3://b/k", etag)).headers
        assert all(value and value.isascii() and value.replace("\t", " ").isprintable() for value in headers.values())
        assert headers["Content-Type"]
