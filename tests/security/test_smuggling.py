"""Two parsers that disagree about where a request ends: what is not plain is refused, and nothing hidden behind it is ever answered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.fake_cache import FakeShard
from support.http_server import World, listening, request
from support.raw import exchange, line
from support.refusals import refused

from forebay_proxy.server.http.connection import MAX_FIELDS

SHARD = "/s3/b/0.tar"
HIDDEN = request("GET", "/s3/b/hidden.tar")
START = b"GET /s3/b/0.tar HTTP/1.1\r\n"
HOST = b"Host: 127.0.0.1\r\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening({"s3://b/0.tar": FakeShard(b"shard"), "s3://b/hidden.tar": FakeShard(b"hidden")}) as found:
        yield found


AMBIGUOUS = {
    "two Hosts": START + HOST + b"Host: evil.example\r\n\r\n",
    "two Ranges": START + HOST + b"Range: bytes=0-1\r\nRange: bytes=2-3\r\n\r\n",
    "two equal Content-Lengths": START + HOST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "two Content-Lengths": START + HOST + b"Content-Length: 5\r\nContent-Length: 0\r\n\r\nabcde",
    "a list of Content-Lengths": START + HOST + b"Content-Length: 5, 5\r\n\r\nabcde",
    "a signed Content-Length": START + HOST + b"Content-Length: +5\r\n\r\nabcde",
    "two readers": START + HOST + b"Forebay-Reader: a/0/0/1\r\nForebay-Reader: b/0/0/1\r\n\r\n",
    "two tokens": START + HOST + b"Forebay-Token: a\r\nForebay-Token: b\r\n\r\n",
    "two If-Ranges": START + HOST + b'If-Range: "a"\r\nIf-Range: "b"\r\n\r\n',
    "a body on GET": START + HOST + b"Content-Length: 5\r\n\r\nabcde",
    "a chunked body on GET": START + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an identity Transfer-Encoding on GET": START + HOST + b"Transfer-Encoding: identity\r\n\r\n",
    "both framings": START + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "both framings on POST": b"POST /v1/evict HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a Transfer-Encoding in disguise": START + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": START + HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon of Host": START + b"Host : 127.0.0.1\r\n\r\n",
    "obs-fold": START + HOST + b"X-A: b\r\n folded: x\r\n\r\n",
    "obs-fold of the first field": START + b" folded: x\r\n" + HOST + b"\r\n",
    "bare LF after the request line": b"GET /s3/b/0.tar HTTP/1.1\n" + HOST + b"\r\n",
    "bare LF between fields": START + b"Host: 127.0.0.1\nX-A: b\r\n\r\n",
    "bare LF inside a value": START + HOST + b"X-A: b\nGET /s3/b/hidden.tar HTTP/1.1\r\n\r\n",
    "bare CR inside a value": START + HOST + b"X-A: b\rc\r\n\r\n",
    "NUL in a value": START + HOST + b"X-A: b\0c\r\n\r\n",
    "NUL in the target": b"GET /s3/b/0\0.tar HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in a name": START + HOST + b"X-\0A: b\r\n\r\n",
    "a space in the target": b"GET /s3/b/0 .tar HTTP/1.1\r\n" + HOST + b"\r\n",
    "no Host": START + b"\r\n",
    "an absolute-form target": b"GET http://169.254.169.254/latest/meta-data HTTP/1.1\r\n" + HOST + b"\r\n",
    "an absolute-form target of ours": b"GET http://127.0.0.1/s3/b/0.tar HTTP/1.1\r\n" + HOST + b"\r\n",
    "an authority-form target": b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "an asterisk target": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version": b"GET /s3/b/0.tar\r\n\r\n",
    "a version to come": b"GET /s3/b/0.tar HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/2 in the clear": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a chunk size that is none": b"POST /v1/evict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
    "a chunk size too large": b"POST /v1/evict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n",
    "a chunk longer than its size": b"POST /v1/evict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "too many fields": START + HOST + b"".join(b"X-%d: a\r\n" % number for number in range(MAX_FIELDS + 1)) + b"\r\n",
}  # fmt: skip


@pytest.mark.parametrize("case", AMBIGUOUS)
async def test_what_two_parsers_could_read_differently_is_refused(world: World, case: str) -> None:
    """Answered with 4xx, closed, and the request hidden behind it is not answered, nor its shard opened."""
    answers = await exchange(world.port, AMBIGUOUS[case] + HIDDEN)
    statuses = [status for status, _, _ in answers]
    opened = [opening.shard.name for opening in world.cache.resolver]
    refused(f"smuggling: {case}", held=len(statuses) == 1 and 400 <= statuses[0] < 500 and opened == [] and world.operations.evicted == [])


async def test_an_upgrade_is_not_made(world: World) -> None:
    """The answer is an ordinary one, and the next request is read as HTTP, not as another protocol."""
    upgrade = START + HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    async with line(world.port) as connection:
        await connection.send(upgrade)
        first = await connection.answer()
        await connection.send(request("GET", SHARD))
        refused("smuggling: an upgrade to h2c", held=[first[0], (await connection.answer())[0]] == [200, 200] and "upgrade" not in first[1])


async def test_chunk_extensions_and_trailers_change_nothing(world: World) -> None:
    """The body is what the chunks hold; a trailer adds no header, and one that repeats a header is refused."""
    sent = (
        b"POST /v1/evict HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTrailer: Host\r\n\r\n"
        b'd;name="GET /s3/b/hidden.tar"\r\n{"all": true}\r\n0\r\nForebay-Token: x\r\n\r\n'
    )
    answers = await exchange(world.port, sent + request("GET", SHARD))
    refused("smuggling: chunk extensions and trailers", held=[a[0] for a in answers] == [200, 200] and world.operations.evicted == [None])
    answers = await exchange(world.port, sent.replace(b"Forebay-Token: x", b"Host: evil.example") + request("GET", SHARD))
    refused("smuggling: a Host in the trailer", held=[a[0] for a in answers] == [400] and world.operations.evicted == [None])


async def test_endless_trailers_are_refused(world: World) -> None:
    """A trailer has the header's bounds; the connection ends."""
    head = b"POST /v1/evict HTTP/1.1\r\n" + HOST + b'Transfer-Encoding: chunked\r\n\r\nd\r\n{"all": true}\r\n0\r\n'
    answers = await exchange(world.port, head + b"X-A: b\r\n" * 100_000 + b"\r\n" + HIDDEN)
    opened = [opening.shard.name for opening in world.cache.resolver]
    refused("smuggling: endless trailers", held=opened == [] and all(status != 200 for status, _, _ in answers[1:]))


async def test_pipelined_requests_are_answered_in_order_each_by_its_own_rules(world: World) -> None:
    """A good one, a refused one: the answer of each is its own, and after ambiguous framing nothing is answered."""
    good, browser = request("GET", SHARD, close=False), request("GET", SHARD, {"Sec-Fetch-Site": "cross-site"}, close=False)
    answers = await exchange(world.port, good + good + browser + HIDDEN)
    refused("smuggling: pipelining", held=[status for status, _, _ in answers] == [200, 200, 403])


async def test_a_connection_keeps_nothing_of_the_request_before(world: World) -> None:
    """Reader, range and credential are each request's own."""
    first = request("GET", SHARD, {"Forebay-Reader": "j/0/0/1.1", "Range": "bytes=1-2", "Authorization": "Bearer a"}, close=False)
    answers = await exchange(world.port, first + request("GET", SHARD))
    resolver = world.cache.resolver
    clean = (resolver[1].reader, resolver[1].want, bool(resolver[1].shard.credential)) == (None, None, False)
    refused("smuggling: state across keep-alive", held=[status for status, _, _ in answers] == [206, 200] and clean)


async def test_many_pipelined_requests_are_not_held_in_memory(world: World) -> None:
    """Reading stops until the first are answered: the socket is the queue."""
    shard = FakeShard(b"x" * 100, held_at=0)
    world.cache.contents["s3://b/0.tar"] = shard
    async with line(world.port) as connection:
        connection.writer.write(request("GET", SHARD, close=False) * 50_000)
        await shard.reached.wait()
        server = world.server._server
        queued = max(len(handler._messages) for handler in server.connections)
        shard.gate.set()
        refused("exhaustion: 50,000 pipelined requests", held=queued < 1000)
