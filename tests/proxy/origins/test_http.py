"""http.py and http_client.py: bytes from an http origin, and everything that can be wrong with them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.faults import Surplus
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin
from support.tls import Authority

from forebay_proxy.core.errors import (
    OriginError,
    OriginLoops,
    OriginRefused,
    OriginTimeout,
    OriginUnavailable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    ShardNotFound,
    TruncatedShard,
)
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.origins import OriginAnswered, OriginFailed
from forebay_proxy.core.facts.requests import ClientRefused
from forebay_proxy.core.shard import ByteRange, Pin, PinKind, Shard
from forebay_proxy.origins.base import OriginBody
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.wire.urls.shard_url import parse_origin_url

NO_PIN = Pin()
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


def shard_of(url: str, *headers: tuple[str, str]) -> Shard:
    return Shard.of(parse_origin_url(url), headers)


class Client:
    """An origin under test and what it reported."""

    def __init__(self, *servers: ScriptedOrigin, idle_timeout_s: float = 5.0) -> None:
        self.events: list[Event] = []
        events = Events()
        events.listen(self.events.append)
        self.now = 0.0
        self.origin = HttpOrigin(
            guard=Guard(allow_origin=[server.base for server in servers]),
            events=events,
            connect_timeout_s=2.0,
            idle_timeout_s=idle_timeout_s,
            clock=lambda: self.now,
        )

    async def get(self, shard: Shard, range: ByteRange | None = None, pin: Pin = NO_PIN) -> tuple[OriginBody, bytes]:
        async with self.origin.read(shard, range, pin) as body:
            return body, b"".join([chunk async for chunk in body.chunks])

    async def take(self, shard: Shard, got: bytearray) -> None:
        """Read into ``got``, which keeps what came before an error."""
        async with self.origin.read(shard, None, NO_PIN) as body:
            async for chunk in body.chunks:
                got += chunk

    async def fails(self, kind: type[ShardError], shard: Shard, range: ByteRange | None = None, pin: Pin = NO_PIN) -> ShardError:
        with pytest.raises(kind) as raised:
            await self.get(shard, range, pin)
        return raised.value

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, OriginFailed)]


@asynccontextmanager
async def client_of(*servers: ScriptedOrigin, idle_timeout_s: float = 5.0) -> AsyncIterator[Client]:
    client = Client(*servers, idle_timeout_s=idle_timeout_s)
    try:
        yield client
    finally:
        await client.origin.aclose()


@pytest.fixture(autouse=True, params=["as chunks", "landed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies come as aiohttp's chunks, or land in buffers however short they are."""
    monkeypatch.setattr("forebay_proxy.origins.landing.LEAST_BYTES", 1 if request.param == "landed" else 2**40)


@pytest.fixture
async def origin() -> AsyncIterator[ScriptedOrigin]:
    async with ScriptedOrigin() as server:
        server.put("/a.tar", ramp(100_000))
        yield server


@pytest.fixture
async def client(origin: ScriptedOrigin) -> AsyncIterator[Client]:
    async with client_of(origin) as made:
        yield made


# What is asked, and what a good answer says


async def test_a_range_is_asked_and_checked(origin: ScriptedOrigin, client: Client) -> None:
    """The body holds exactly the bytes asked for and knows the whole length; without a range none is sent, and a 200 is the whole."""
    body, data = await client.get(shard_of(origin.url("/a.tar")), ByteRange(10, 99))
    assert data == ramp(90, 10)
    assert (body.first, body.length, body.ranged, body.framed, body.version.length) == (10, 90, True, True, 100_000)
    whole, data = await client.get(shard_of(origin.url("/a.tar")))
    assert (data, whole.ranged) == (ramp(100_000), False)
    assert [request.range for request in origin.requests] == ["bytes=10-99", None]


async def test_only_what_is_meant_travels(origin: ScriptedOrigin, client: Client) -> None:
    """identity is asked for; no cookie, not even one that the origin set, no Referer; the shard's own credential and nothing else."""
    origin.put("/a.tar", b"x", headers=(("Set-Cookie", "a=b"),))
    for _ in range(2):
        await client.get(shard_of(origin.url("/a.tar"), ("Authorization", "Bearer t"), ("X-Key", "k")))
    for request in origin.requests:
        assert set(request.headers) == {"host", "accept", "accept-encoding", "user-agent", "authorization", "x-key"}
    assert origin.requests[0].headers["accept-encoding"] == "identity"


async def test_the_path_goes_out_as_it_came(origin: ScriptedOrigin, client: Client) -> None:
    """Double slashes, %2F and signatures are the origin's business; the signature is sent but is not in the name."""
    shard = shard_of(origin.url("/b//c%2Fd%20e;f.tar?x=%41;y&X-Amz-Signature=s"))
    await client.fails(ShardNotFound, shard)
    assert origin.requests[0].target == "/b//c%2Fd%20e;f.tar?x=%41;y&X-Amz-Signature=s"


async def test_connections_are_reused(origin: ScriptedOrigin, client: Client) -> None:
    """Bodies read to their end and small errors leave the connection open."""
    shard = shard_of(origin.url("/a.tar"))
    await client.get(shard, ByteRange(0, 9))
    await client.fails(ShardNotFound, shard_of(origin.url("/none")))
    await client.get(shard, ByteRange(0, 9))
    await client.origin.head(shard)
    assert {request.connection for request in origin.requests} == {1}


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
async def test_framing_is_told(origin: ScriptedOrigin, client: Client, framing: str) -> None:
    """Length and chunked coding have a real end, a closed connection has not."""
    origin.put("/f", ramp(5000), framing=framing, ranges=False)
    body, data = await client.get(shard_of(origin.url("/f")))
    assert data == ramp(5000)
    assert body.framed is (framing != "close")
    assert body.length == (5000 if framing == "length" else None)


async def test_a_chunked_range_still_has_its_promise(origin: ScriptedOrigin, client: Client) -> None:
    """Content-Range alone says how much must come."""
    origin.put("/f", ramp(5000), framing="close")
    body, data = await client.get(shard_of(origin.url("/f")), ByteRange(0, 99))
    assert (body.length, body.framed, data) == (100, True, ramp(100))
    origin.next("/f", cut_after=50)
    await client.fails(TruncatedShard, shard_of(origin.url("/f")), ByteRange(0, 99))


# Pins


async def test_pins_are_sent(origin: ScriptedOrigin, client: Client) -> None:
    """An ETag as If-Match, a date as If-Unmodified-Since."""
    origin.put("/d", ramp(10), etag=None, last_modified=DATE)
    await client.get(shard_of(origin.url("/a.tar")), ByteRange(0, 9), Pin(PinKind.ETAG, '"v1"'))
    await client.get(shard_of(origin.url("/d")), ByteRange(0, 9), Pin(PinKind.MODIFIED, DATE))
    assert origin.requests[0].headers["if-match"] == '"v1"'
    assert origin.requests[1].headers["if-unmodified-since"] == DATE


@pytest.mark.parametrize("honest", [True, False])
async def test_another_version_is_noticed(origin: ScriptedOrigin, client: Client, honest: bool) -> None:
    """By the origin's 412, or by its ETag where it ignores If-Match."""
    origin.put("/a.tar", ramp(100), etag='"v2"', conditions=honest)
    await client.fails(ShardChanged, shard_of(origin.url("/a.tar")), ByteRange(0, 9), Pin(PinKind.ETAG, '"v1"'))
    assert client.reasons() == ["changed"]


@pytest.mark.parametrize("honest", [True, False])
async def test_a_denied_version_is_asked_for_elsewhere(origin: ScriptedOrigin, client: Client, honest: bool) -> None:
    """On a new connection: behind a balancer the kept one leads to the same server for ever. What was not denied is asked by a kept one."""
    asked = (shard_of(origin.url("/a.tar")), ByteRange(0, 0), Pin(PinKind.ETAG, '"v1"'))
    origin.put("/a.tar", b"x", etag='"v2"', conditions=honest)
    for _ in range(3):
        await client.fails(ShardChanged, *asked)
    assert origin.connections == 3
    origin.put("/a.tar", b"x", etag='"v1"')
    for _ in range(3):  # one more new one, which is not kept, and another
        assert (await client.get(*asked))[1] == b"x"
    assert origin.connections <= 5


# Errors


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (400, OriginError, "wrong"), (403, ShardForbidden, "status"), (404, ShardNotFound, "status"), (429, OriginUnavailable, "throttled"),
        (500, OriginUnavailable, "status"), (508, OriginLoops, "wrong"),
    ],
)  # fmt: skip
async def test_statuses_become_errors(origin: ScriptedOrigin, client: Client, status: int, kind: type[ShardError], reason: str) -> None:
    """Each status is one class of the tree, and one fact for the listeners; a loop (508) is not asked again."""
    origin.put("/s", b"<html>", status=status)
    error = await client.fails(kind, shard_of(origin.url("/s")), ByteRange(0, 9))
    assert client.reasons() == [reason]
    answered = [event for event in client.events if isinstance(event, OriginAnswered)]
    assert [(event.origin, event.method, event.code) for event in answered] == [(origin.base, "GET", status)]
    if kind is OriginLoops:
        assert (error.status, error.retryable) == (508, False)


async def test_errors_hold_no_secret(origin: ScriptedOrigin, client: Client) -> None:
    """Neither query nor header of a request reaches a message."""
    origin.put("/s", b"", status=403)
    shard = shard_of(origin.url("/s?X-Amz-Signature=hunter2"), ("Authorization", "hunter2"))
    error = await client.fails(ShardForbidden, shard)
    origin.next("/s", status=None, cut_after=0, body=b"12345")
    other = await client.fails(TruncatedShard, shard)
    for each in (error, other):
        assert "hunter2" not in f"{each} {each!r} {each.next_step} {shard!r}"


@pytest.mark.parametrize(
    ("how", "kind", "reason"),
    [
        ({"framing": "length", "cut_after": 1000}, TruncatedShard, "short"),
        ({"framing": "chunked", "cut_after": 1000}, TruncatedShard, "short"),
        ({"cut_after": 1000, "reset": True}, OriginUnavailable, "reset"),
        ({"cut_after": -1}, OriginUnavailable, "reset"),
    ],
    ids=["length", "chunked", "reset", "no answer"],
)
async def test_a_body_that_breaks_off_is_an_error(
    origin: ScriptedOrigin, client: Client, how: dict[str, Any], kind: type[ShardError], reason: str
) -> None:
    """What came is delivered, then the error: never a clean end."""
    origin.put("/t", ramp(100_000), **how)
    got = bytearray()
    with pytest.raises(kind):
        await client.take(shard_of(origin.url("/t")), got)
    assert got == ramp(len(got))
    assert len(got) == 1000 or kind is OriginUnavailable
    assert client.reasons() == [reason]


async def test_nobody_listening_is_unavailable() -> None:
    """A refused connection is reported as such, with code 0."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{holder.getsockname()[1]}"
        events: list[Event] = []
        board = Events()
        board.listen(events.append)
        origin = HttpOrigin(guard=Guard(allow_origin=[base]), events=board)
        with pytest.raises(OriginUnavailable, match="refused"):
            async with origin.read(shard_of(f"{base}/x"), None, NO_PIN):
                pass
        await origin.aclose()
    assert [event.code for event in events if isinstance(event, OriginAnswered)] == [0]
    assert [event.reason for event in events if isinstance(event, OriginFailed)] == ["connect"]


async def test_silence_within_the_body_times_out(origin: ScriptedOrigin) -> None:
    """What came before is delivered, then a 504 error."""
    origin.put("/q", ramp(100_000), body_gate=asyncio.Event(), gate_at=1000)
    got = bytearray()
    async with client_of(origin, idle_timeout_s=1.0) as client:
        with pytest.raises(OriginTimeout):
            await client.take(shard_of(origin.url("/q")), got)
    assert got == ramp(1000)


async def test_leaving_early_closes_the_connection(origin: ScriptedOrigin, client: Client) -> None:
    """A body left half read is not drained: the origin sees the end."""
    origin.put("/q", ramp(1 << 20), body_gate=asyncio.Event(), gate_at=1000)
    async with client.origin.read(shard_of(origin.url("/q")), None, NO_PIN) as body:
        assert await anext(body.chunks)
    await origin.until(lambda: origin.open_connections == 0)


async def test_cancelling_in_the_body_closes_the_connection(origin: ScriptedOrigin, client: Client) -> None:
    """A cancelled fetch leaves nothing behind."""
    started = asyncio.Event()
    origin.put("/q", ramp(1 << 20), body_gate=asyncio.Event(), gate_at=1000)

    async def fetch() -> None:
        async with client.origin.read(shard_of(origin.url("/q")), None, NO_PIN) as body:
            async for _ in body.chunks:
                started.set()

    task = asyncio.create_task(fetch())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await origin.until(lambda: origin.open_connections == 0)
    assert client.reasons() == []


# HEAD


async def test_head_tells_the_version(origin: ScriptedOrigin, client: Client) -> None:
    """No body, one request."""
    version = await client.origin.head(shard_of(origin.url("/a.tar")))
    assert (version.identity, version.length) == ('etag:"v1"', 100_000)
    assert [request.method for request in origin.requests] == ["HEAD"]


@pytest.mark.parametrize("status", [403, 405, 501])
async def test_a_refused_head_becomes_one_byte(origin: ScriptedOrigin, client: Client, status: int) -> None:
    """Some origins grant GET only."""
    origin.put("/a.tar", ramp(100_000), head_status=status)
    assert (await client.origin.head(shard_of(origin.url("/a.tar")))).length == 100_000
    assert [(request.method, request.range) for request in origin.requests] == [("HEAD", None), ("GET", "bytes=0-0")]


async def test_a_url_signed_for_get_is_never_asked_with_head(origin: ScriptedOrigin, client: Client) -> None:
    """The method is part of the signature."""
    await client.origin.head(shard_of(origin.url("/a.tar?X-Amz-Signature=s")))
    assert [(request.method, request.range) for request in origin.requests] == [("GET", "bytes=0-0")]


async def test_an_empty_shard_has_a_version(origin: ScriptedOrigin, client: Client) -> None:
    """One byte of nothing is 416; the whole of nothing has an ETag."""
    origin.put("/e", b"", etag='"empty"')
    version = await client.origin.head(shard_of(origin.url("/e?X-Amz-Signature=s")))
    assert (version.identity, version.length) == ('etag:"empty"', 0)


# Redirects


async def test_redirects_are_followed_and_remembered(origin: ScriptedOrigin, client: Client) -> None:
    """Later segments go where the first was led; a rate-limited resolver is asked once."""
    origin.redirect("/r", origin.url("/a.tar"))
    shard = shard_of(origin.url("/r"))
    for first in (0, 10, 20):
        assert (await client.get(shard, ByteRange(first, first + 9)))[1] == ramp(10, first)
    assert [request.path for request in origin.requests] == ["/r", "/a.tar", "/a.tar", "/a.tar"]


async def test_a_dead_link_is_resolved_again_once(origin: ScriptedOrigin, client: Client) -> None:
    """A 403 on a remembered link (it expired) leads back to the shard's URL; a second 403 stands."""
    origin.redirect("/r", origin.url("/a.tar"))
    shard = shard_of(origin.url("/r"))
    await client.get(shard, ByteRange(0, 9))
    origin.next("/a.tar", status=403)
    assert (await client.get(shard, ByteRange(0, 9)))[1] == ramp(10)
    assert [request.path for request in origin.requests] == ["/r", "/a.tar", "/a.tar", "/r", "/a.tar"]
    origin.put("/a.tar", b"", status=403)
    await client.fails(ShardForbidden, shard, ByteRange(0, 9))
    assert len(origin.requests) == 8


async def test_a_new_look_follows_redirects_afresh(origin: ScriptedOrigin, client: Client) -> None:
    """head() asks the shard's URL, whatever is remembered."""
    origin.redirect("/r", origin.url("/a.tar"))
    shard = shard_of(origin.url("/r"))
    await client.get(shard, ByteRange(0, 9))
    origin.redirect("/r", origin.url("/b.tar"))
    origin.put("/b.tar", ramp(50), etag='"v2"')
    assert (await client.origin.head(shard)).identity == 'etag:"v2"'


async def test_where_a_head_was_led_is_not_for_a_get(origin: ScriptedOrigin, client: Client) -> None:
    """Some send HEAD to a login page, which answers well: the GET that contradicts it must not be sent there as well."""
    origin.put("/login", b"<html>", etag=None)
    origin.redirect("/r", origin.url("/login"))
    shard = shard_of(origin.url("/r"))
    assert (await client.origin.head(shard)).length == 6
    origin.redirect("/r", origin.url("/a.tar"))  # as it answers to GET
    assert (await client.get(shard, ByteRange(0, 9)))[1] == ramp(10)


async def test_what_one_credential_was_led_to_is_not_for_another(origin: ScriptedOrigin, client: Client) -> None:
    """A remembered link belongs to who asked."""
    origin.redirect("/r", origin.url("/a.tar"))
    await client.get(shard_of(origin.url("/r"), ("Authorization", "a")), ByteRange(0, 9))
    await client.get(shard_of(origin.url("/r"), ("Authorization", "b")), ByteRange(0, 9))
    assert [request.path for request in origin.requests] == ["/r", "/a.tar"] * 2


async def test_a_redirect_is_judged_like_any_request(origin: ScriptedOrigin, client: Client) -> None:
    """A hop to where Forebay may not go is refused before anything is sent."""
    async with ScriptedOrigin() as other:
        for target in (other.url("/x"), "http://169.254.169.254/latest/meta-data/", "//metadata.google.internal/"):
            origin.redirect("/r", target)
            error = await client.fails(OriginRefused, shard_of(origin.url("/r")))
            assert error.status == 403
        assert other.requests == []
    assert [type(event) for event in client.events if not isinstance(event, OriginAnswered)] == [ClientRefused] * 3


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://[", "javascript:alert(1)", "/r"])
async def test_a_redirect_that_leads_nowhere_is_an_error(origin: ScriptedOrigin, client: Client, target: str) -> None:
    """Only http and https are followed, and a loop ends after five hops."""
    origin.redirect("/r", target, status=307)
    await client.fails(OriginError, shard_of(origin.url("/r")))
    assert len(origin.requests) == (6 if target == "/r" else 1)


# Where it may go


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/x", "http://localhost:1/x", "http://169.254.169.254/x", "http://[::1]:1/x", "http://metadata.google.internal/x"],
)
async def test_refusals_are_403_and_open_nothing(url: str) -> None:
    """Loopback without a flag, metadata ever: no connection is tried."""
    async with client_of() as client:
        with pytest.raises(OriginRefused):
            await client.origin.head(shard_of(url))
        assert client.events == [ClientRefused("origin")]


async def test_an_untrusted_certificate_is_not_retried(tmp_path: Path) -> None:
    """TLS is verified, always."""
    async with ScriptedOrigin(tls=Authority(tmp_path).server("127.0.0.1")) as server, client_of(server) as client:
        error = await client.fails(OriginUnavailable, shard_of(server.url("/x")))
        assert isinstance(error, OriginUnavailable)
        assert ("certificate" in str(error), error.hopeless) == (True, True)


async def test_a_chunk_header_that_cannot_be_read_is_no_silence_without_end(origin: ScriptedOrigin) -> None:
    """Neither the client's own time limit nor the end of the connection ends such a body: ours does, and quotes none of it."""
    # The head and the first chunk are read before the next is found wrong.
    origin.put("/c", b"abcd", framing="chunked", cut_after=4, beyond=b"zzzz\r\nSECRET-BYTES", beyond_s=0.05, stall=True)
    async with client_of(origin, idle_timeout_s=0.2) as client:
        error = await asyncio.wait_for(client.fails(ShardError, shard_of(origin.url("/c"))), 60)
    assert "SECRET" not in str(error)


@pytest.mark.parametrize("pause_s", [0.0, 0.05], ids=["with the body", "a moment later"])
async def test_what_is_said_beyond_an_answer_is_nobodys(origin: ScriptedOrigin, client: Client, pause_s: float) -> None:
    """It may look like the next answer on a kept connection: that connection is not used again."""
    for number in range(3):
        origin.put(f"/{number}.tar", b"%d" % number, always=Surplus(pause_s))
    for number in range(3):
        assert (await client.get(shard_of(origin.url(f"/{number}.tar"))))[1] == b"%d" % number
        await asyncio.sleep(2 * pause_s)
        for _ in range(10):  # where both pauses end at once, it is read before the next is asked for
            await asyncio.sleep(0)
