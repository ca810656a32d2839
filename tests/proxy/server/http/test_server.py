"""Shards over HTTP, on the wire: real sockets, a fake cache."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.fake_cache import FakeShard
from support.http_server import World, listening, read_to_end, request, talk

from forebay_proxy.core.errors import (
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    ShardForbidden,
    TruncatedShard,
    VersionLost,
)
from forebay_proxy.core.facts.requests import Aborted, RequestDone, RequestOutcome
from forebay_proxy.core.shard import ByteRange, Version
from forebay_proxy.server.http import admin_routes as admin_module

MIB = 1 << 20
DATA = (bytes(index * 7 % 251 for index in range(251)) * (3 * MIB // 251 + 2))[: 3 * MIB + 77]
NAME = "s3://b/0.tar"
PATH = "/s3/b/0.tar"
LARGE = bytes(32 * MIB)  # more than both socket buffers hold


@pytest.fixture
async def world() -> AsyncIterator[World]:
    shards = {
        NAME: FakeShard(DATA),
        "s3://b/empty.tar": FakeShard(b""),
        "s3://b/unknown.tar": FakeShard(DATA, length_known=False),
        "s3://b/dated.tar": FakeShard(DATA, etag="", modified="Tue, 01 Sep 2026 10:00:00 GMT"),
        "s3://b/gzip.tar": FakeShard(DATA, encoding="gzip"),
    }
    async with listening(shards) as made:
        yield made


async def test_a_shard_is_sent_whole(world: World) -> None:
    """All bytes, their number, the origin's ETag and type, and how they were come by."""
    reply = await world.ask("GET", PATH)
    assert (reply.status, reply.body == DATA, reply.complete) == (200, True, True)
    assert reply.headers["content-length"] == str(len(DATA))
    assert (reply.headers["etag"], reply.headers["accept-ranges"]) == ('"v1"', "bytes")
    assert reply.headers["content-type"] == "application/x-tar"
    assert reply.headers["cache-status"] == "forebay; fwd=miss; stored"
    assert world.cache.resolver[0].left


async def test_head_has_the_header_of_get_and_no_body(world: World) -> None:
    """HEAD begins no reading and says the same length."""
    reply = await world.ask("HEAD", PATH)
    assert (reply.status, reply.body, reply.headers["content-length"]) == (200, b"", str(len(DATA)))
    opening = world.cache.resolver[0]
    assert (opening.head, opening.range, opening.left) == (True, None, True)
    assert "cache-status" not in reply.headers
    assert world.of(RequestDone)[0].outcome is None  # neither a hit nor a miss: no byte was come by


async def test_every_answer_names_its_instance(world: World) -> None:
    """Shards with and without a body and plans do: by another name a reader knows that its plan is lost. Refusals name nothing."""
    replies = [await world.ask(method, PATH) for method in ("GET", "HEAD")]
    replies.append(await world.ask("PUT", "/v1/plans/j/0/0/1.1", body=b'{"shards": []}'))
    assert [reply.headers["forebay-instance"] for reply in replies] == ["feed"] * 3
    refused = await world.ask("GET", PATH, headers={"Origin": "https://evil.example"})
    assert (refused.status, refused.headers.get("forebay-instance")) == (403, None)


async def test_an_empty_shard_is_a_complete_answer(world: World) -> None:
    """Zero bytes with Content-Length 0; nothing is asked for, and no byte can be satisfied."""
    reply = await world.ask("GET", "/s3/b/empty.tar")
    assert (reply.status, reply.body, reply.complete, reply.headers["content-length"]) == (200, b"", True, "0")
    reply = await world.ask("GET", "/s3/b/empty.tar", {"Range": "bytes=0-0"})
    assert (reply.status, reply.headers["content-range"]) == (416, "bytes */0")


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=5-9", 5, 9), (f"bytes={3 * MIB}-", 3 * MIB, len(DATA) - 1), ("bytes=-4", len(DATA) - 4, len(DATA) - 1),
        ("bytes=7-99999999999", 7, len(DATA) - 1), (f"bytes=5-{'9' * 4000}", 5, len(DATA) - 1),
        (f"bytes=-{'9' * 4000}", 0, len(DATA) - 1),
    ],
    ids=["inner", "tail", "suffix", "beyond", "far beyond", "more than all"],
)  # fmt: skip
async def test_a_range_is_206_with_a_true_content_range(world: World, asked: str, first: int, last: int) -> None:
    """Exactly the bytes asked for, said exactly; positions may have any number of digits."""
    reply = await world.ask("GET", PATH, {"Range": asked})
    assert (reply.status, reply.body == DATA[first : last + 1], reply.complete) == (206, True, True)
    assert reply.headers["content-range"] == f"bytes {first}-{last}/{len(DATA)}"
    assert world.cache.resolver[0].range == (first, last)


@pytest.mark.parametrize("first", [str(len(DATA)), "9" * 4000], ids=["end", "far"])
async def test_a_range_behind_the_end_is_416_with_the_length(world: World, first: str) -> None:
    """The client learns how long the shard is, also where the origin refuses the range before anything else is known."""
    reply = await world.ask("GET", PATH, {"Range": f"bytes={first}-"})
    assert (reply.status, reply.headers["content-range"]) == (416, f"bytes */{len(DATA)}")
    assert reply.problem["length_bytes"] == len(DATA)
    world.cache.errors[NAME] = RangeNotSatisfiable(NAME, "out of range", length=5)
    reply = await world.ask("GET", PATH, {"Range": f"bytes={first}-"})
    assert (reply.status, reply.headers["content-range"]) == (416, "bytes */5")


@pytest.mark.parametrize("asked", ["bytes=", "bytes=9-5", "bytes=a-b", "bytes"])
async def test_a_malformed_range_is_400_and_opens_nothing(world: World, asked: str) -> None:
    """Sending everything instead would be taken for the part."""
    reply = await world.ask("GET", PATH, {"Range": asked})
    assert (reply.status, world.cache.resolver) == (400, [])
    assert "bytes=" in reply.problem["next_step"]


@pytest.mark.parametrize(
    ("headers", "status", "body"),
    [
        ({"If-Match": '"v0"', "Range": "bytes=5-"}, 412, None),  # a resuming reader must not get the tail of another version
        ({"If-Match": '"v1"', "Range": "bytes=5-"}, 206, DATA[5:]),
        ({"If-None-Match": 'W/"v1"'}, 304, b""),
        ({"If-Range": '"v0"', "Range": "bytes=5-"}, 200, DATA),  # the range was meant for other bytes
    ],
    ids=lambda value: str(value) if isinstance(value, dict | int) else "",
)
async def test_conditions_are_of_the_version(world: World, headers: dict[str, str], status: int, body: bytes | None) -> None:
    """Range under a fulfilled If-Match is how a broken stream is resumed; what is not sent is not begun."""
    reply = await world.ask("GET", PATH, headers)
    assert (reply.status, body is None or reply.body == body) == (status, True)
    if status == 412:
        assert (reply.problem["etag"], reply.problem["shard"]) == ('"v1"', NAME)
    else:
        assert reply.headers["etag"] == '"v1"'
    assert (world.cache.resolver[0].range is None) == (status in (412, 304))
    assert world.cache.resolver[0].left


async def test_what_the_origin_said_of_a_shard_is_passed_on(world: World) -> None:
    """Its encoding; without a strong ETag there is one of ours, and the date is passed on and compared."""
    date = "Tue, 01 Sep 2026 10:00:00 GMT"
    reply = await world.ask("GET", "/s3/b/dated.tar", {"If-Range": date, "Range": "bytes=0-1"})
    assert (reply.status, reply.headers["last-modified"]) == (206, date)
    assert reply.headers["etag"].startswith('"fb-')
    assert (await world.ask("GET", "/s3/b/gzip.tar")).headers["content-encoding"] == "gzip"


async def test_an_unknown_length_is_sent_chunked_with_a_last_chunk(world: World) -> None:
    """The end is proven, so the last chunk is there. No true Content-Range of it can be given: a range is answered with the whole."""
    for headers in ({}, {"Range": "bytes=5-9"}):
        reply = await world.ask("GET", "/s3/b/unknown.tar", headers)
        assert (reply.status, reply.headers["accept-ranges"], reply.body == DATA) == (200, "none", True)
        assert (reply.headers["transfer-encoding"], reply.complete) == ("chunked", True)


async def test_http_1_0_gets_no_body_of_unknown_length(world: World) -> None:
    """It could not tell the end from a cut."""
    reply = await talk(world.port, b"GET /s3/b/unknown.tar HTTP/1.0\r\n\r\n")
    assert (reply.status, "HTTP/1.1" in reply.problem["next_step"]) == (505, True)


@pytest.mark.parametrize(("outcome", "text"), [
    (RequestOutcome.HIT, "forebay; hit"), (RequestOutcome.COLLAPSED, "forebay; fwd=miss; stored; collapsed"),
    (RequestOutcome.PARTIAL, "forebay; fwd=partial; stored"), (RequestOutcome.BYPASS, "forebay; fwd=miss; detail=no-room"),
    (RequestOutcome.RELAYED, "forebay; fwd=miss; detail=sparse"),
])  # fmt: skip
async def test_cache_status_says_how(world: World, outcome: RequestOutcome, text: str) -> None:
    """The words of RFC 9211."""
    world.cache.contents[NAME].outcome = outcome
    assert (await world.ask("GET", PATH)).headers["cache-status"] == text


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
async def test_writing_is_405_with_an_explanation(world: World, method: str) -> None:
    """Forebay reads; the answer says what is allowed, and the cache is not asked."""
    reply = await world.ask(method, PATH, body=b"x" * 100)
    assert (reply.status, reply.headers["allow"], world.cache.resolver) == (405, "GET, HEAD", [])
    assert method in reply.problem["detail"]


async def test_credentials_travel_and_nothing_else() -> None:
    """Authorization, Cookie, X-* and what the operator named; no X-Forwarded-*, no Range, no Host."""
    sent = {"Authorization": "a", "Cookie": "c", "X-Key": "k", "X-Forwarded-For": "f", "Accept": "*/*", "Extra": "e", "Range": "bytes=0-0"}
    async with listening({NAME: FakeShard(DATA), "https://h/a.tar": FakeShard(DATA)}, pass_headers=("extra",)) as world:
        await world.ask("GET", "/https/h/a.tar", sent)
        assert dict(world.cache.resolver[0].shard.credential.headers) == {"Authorization": "a", "Cookie": "c", "X-Key": "k", "Extra": "e"}
        await world.ask("GET", PATH, sent)
        assert not world.cache.resolver[1].shard.credential, "the sidecar signs for s3: what a client says of itself is for us"


async def test_a_reader_is_known_by_its_header(world: World) -> None:
    """Plan and lease belong to it, and the request is counted for its job."""
    await world.ask("GET", PATH, {"Forebay-Reader": "train/0/3/7.1"})
    assert str(world.cache.resolver[0].reader) == "train/0/3/7.1"
    assert world.of(RequestDone)[0].job == "train"


async def test_a_malformed_reader_is_400(world: World) -> None:
    """A typo must not silently become an anonymous reader."""
    reply = await world.ask("GET", PATH, {"Forebay-Reader": "train/0"})
    assert (reply.status, world.cache.resolver) == (400, [])
    assert "job/rank/worker/opener" in reply.problem["detail"]


async def test_a_forward_proxy_request_is_refused_with_the_right_form(world: World) -> None:
    """Somebody has set http_proxy to our address."""
    reply = await world.ask("GET", "http://origin.example/x.tar")
    assert (reply.status, "/https/host/path" in reply.problem["next_step"]) == (400, True)


async def test_an_error_before_the_first_byte_is_an_answer_with_a_reason(world: World) -> None:
    """The header waits for the first byte, so curl may still see a 503 and ask again."""
    world.cache.contents[NAME] = FakeShard(DATA, fails_at=0, error=OriginUnavailable(NAME, "the origin answered 503", retry_after_s=7.2))
    reply = await world.ask("GET", PATH)
    assert (reply.status, reply.headers["retry-after"], reply.problem["retryable"]) == (503, "8", True)
    assert world.of(Aborted) == []


@pytest.mark.parametrize(("error", "status"), [
    (ShardForbidden(NAME, "the origin answered 401", status=401), 401), (ShardForbidden(NAME, "the origin answered 403"), 403),
    (OriginTimeout(NAME, "nothing came for 15 s"), 504), (TruncatedShard(NAME, "3 of 5 bytes came"), 502),
])  # fmt: skip
async def test_errors_keep_their_status_and_name_shard_and_cause(world: World, error: Exception, status: int) -> None:
    """4xx or 5xx decides whether clients ask again."""
    world.cache.errors[NAME] = error
    reply = await world.ask("GET", PATH)
    assert (reply.status, reply.problem["shard"], "retry-after" in reply.headers) == (status, NAME, status >= 500)
    assert error.cause in reply.problem["detail"]


async def test_a_fault_of_ours_is_500_without_details(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The message of an unknown error stays out of answer and log: it may hold a URL with a secret."""
    world.cache.errors[NAME] = RuntimeError("https://h/?token=CANARY")
    reply = await world.ask("GET", PATH)
    assert (reply.status, b"CANARY" in reply.body, "CANARY" in caplog.text) == (500, False, False)
    assert "RuntimeError" in caplog.text


@pytest.mark.parametrize("length_known", [True, False])
@pytest.mark.parametrize("fails_at", [1, MIB, len(DATA)])
async def test_a_failure_after_the_header_never_ends_cleanly(world: World, length_known: bool, fails_at: int) -> None:
    """The client sees a reset and an unfinished body, even when every byte but the proof of the end has come."""
    reason = "changed" if fails_at == MIB else "origin_failed"
    error = ShardChanged(NAME, "another ETag") if reason == "changed" else OriginUnavailable(NAME, "reset")
    world.cache.contents[NAME] = FakeShard(DATA, length_known=length_known, fails_at=fails_at, error=error)
    reply = await world.ask("GET", PATH)
    assert reply.reset
    assert not (reply.complete and not length_known)
    assert not reply.complete or reply.body == DATA
    assert [event.reason for event in world.of(Aborted)] == [reason]
    assert world.cache.resolver[0].left


@pytest.mark.parametrize("error", [ShardChanged(NAME, "another ETag"), VersionLost(NAME, "cut, and it has no name")])
async def test_who_was_sent_nothing_reads_the_new_version(world: World, monkeypatch: pytest.MonkeyPatch, error: ShardError) -> None:
    """A version that is gone before the first byte of it: no header is out, so the reader need not hear of it."""
    world.cache.contents[NAME] = FakeShard(DATA, fails_at=0, error=error)
    first_open = world.cache.open

    def open_then(*args: Any, **how: Any) -> Any:
        if world.cache.resolver:
            world.cache.contents[NAME] = FakeShard(b"new", etag='"v2"')
        return first_open(*args, **how)

    monkeypatch.setattr(world.cache, "open", open_then)
    reply = await world.ask("GET", PATH)
    assert (reply.status, reply.headers["etag"], reply.body) == (200, '"v2"', b"new")


async def test_a_shard_that_changes_all_the_time_is_an_error(world: World) -> None:
    """Opened anew twice, and then said."""
    world.cache.contents[NAME] = FakeShard(DATA, fails_at=0, error=ShardChanged(NAME, "another ETag"))
    assert (await world.ask("GET", PATH)).status == 502
    assert len(world.cache.resolver) == 3


async def test_a_reading_that_ends_short_is_cut(world: World) -> None:
    """Even if the cache were wrong: what is promised is sent, or the connection is cut."""
    world.cache.contents[NAME] = ShortShard(DATA)
    reply = await world.ask("GET", PATH)
    assert (reply.status, reply.complete, reply.reset) == (200, False, True)


async def test_a_client_that_leaves_while_we_wait_ends_the_reading(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The lease is given back at once, not when the origin's next byte comes; no traceback, one count."""
    shard = world.cache.contents[NAME] = FakeShard(DATA, held_at=MIB)
    reader, writer = await world.connect(request("GET", PATH))
    await shard.reached.wait()
    writer.transport.abort()
    done = await world.until(RequestDone)
    assert world.cache.resolver[0].left
    assert (world.of(Aborted), done[0].code, done[0].bytes_sent) == ([Aborted("client_gone")], 200, MIB)
    assert not caplog.records
    reader.feed_eof()


async def test_a_client_that_leaves_before_the_answer_is_499(world: World) -> None:
    """No status was sent, so none is counted."""
    shard = world.cache.contents[NAME] = FakeShard(DATA, held_at=0)
    _, writer = await world.connect(request("GET", PATH))
    await shard.reached.wait()
    writer.transport.abort()
    assert [event.code for event in await world.until(RequestDone)] == [499]


async def test_a_client_that_leaves_while_we_write_is_no_error(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The socket breaks in the middle of a body: counted, not logged."""
    world.cache.contents[NAME] = FakeShard(LARGE)
    reader, writer = await world.connect(request("GET", PATH))
    await reader.readexactly(1000)
    writer.transport.abort()
    await world.until(RequestDone)
    assert world.of(Aborted) == [Aborted("client_gone")]
    assert not caplog.records


@pytest.mark.parametrize("length_known", [True, False])
async def test_a_slow_client_holds_one_chunk_and_gets_every_byte(world: World, length_known: bool) -> None:
    """The next chunk is asked for when the kernel has the last, so its buffer may be used again; order survives a full socket."""
    data = bytes(range(251)) * (len(LARGE) // 251)
    world.cache.contents[NAME] = FakeShard(data, length_known=length_known, reused_buffer=True, chunk_bytes=999_983)
    reader, writer = await stuck_client(world, PATH)
    await until_still(lambda: sum(opening.handed for opening in world.cache.resolver))
    assert 0 < world.cache.resolver[0].handed < len(data) // 4
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    reply = await read_to_end(reader)
    assert (reply.complete, reply.body == data) == (True, True)


async def test_a_request_is_reported_once_with_its_facts(world: World) -> None:
    """Code, outcome, bytes and the times, for metrics and status; and the cache learns the range as it opens."""
    world.cache.contents[NAME].outcome = RequestOutcome.HIT
    await world.ask("GET", PATH, {"Range": "bytes=0-99"})
    (done,) = world.of(RequestDone)
    assert (done.method, done.code, done.outcome, done.bytes_sent, done.hit_bytes) == ("GET", 206, RequestOutcome.HIT, 100, 100)
    assert 0 <= done.first_byte_s <= done.seconds
    assert world.cache.resolver[0].want == ByteRange(0, 99)


async def test_the_unix_socket_serves_the_same_and_is_private(tmp_path: Path) -> None:
    """Mode 0600, and a cut there is an unfinished body too."""
    path = tmp_path / "f.sock"
    shards = {NAME: FakeShard(DATA), "s3://b/cut.tar": FakeShard(DATA, length_known=False, fails_at=MIB, error=OriginUnavailable("x", "y"))}
    async with listening(shards, socket=path):
        assert path.stat().st_mode & 0o777 == 0o600
        assert (await talk(path, request("GET", PATH, {"Host": "whatever"}))).body == DATA
        assert not (await talk(path, request("GET", "/s3/b/cut.tar"))).complete
    assert not path.exists()


async def test_closing_lets_a_running_answer_end(world: World) -> None:
    """Within the grace it is finished; new connections hear that we are leaving, and afterwards there is nobody."""
    shard = world.cache.contents[NAME] = FakeShard(DATA, held_at=MIB)
    reader, _writer = await world.connect(request("GET", PATH))
    await shard.reached.wait()
    closing = asyncio.create_task(world.server.aclose(grace_s=10))
    while world.server.state != "draining":
        await asyncio.sleep(0)
    ready = await world.ask("GET", "/readyz")
    assert (ready.status, ready.body) == (503, b"draining\n")
    assert [(await world.ask("GET", path)).status for path in ("/healthz", "/metrics", "/v1/status")] == [200] * 3
    for method, path in (("GET", PATH), ("HEAD", PATH), ("GET", "/v1/shards"), ("PUT", "/v1/plans/job/0/0/0")):
        refused = await talk(world.port, request(method, path, close=False))
        assert (refused.status, refused.headers["connection"], refused.headers["retry-after"]) == (503, "close", "2")
        assert method == "HEAD" or refused.problem["type"] == "urn:forebay:problem:draining"
    assert not closing.done()
    shard.gate.set()
    assert (await read_to_end(reader)).body == DATA
    await closing
    with pytest.raises(ConnectionRefusedError):
        await world.connect()


async def test_closing_cuts_what_does_not_end(world: World) -> None:
    """After the grace a reader sees a cut, and it is counted as ours."""
    shard = world.cache.contents[NAME] = FakeShard(DATA, length_known=False, held_at=MIB)
    reader, _writer = await world.connect(request("GET", PATH))
    await shard.reached.wait()
    await world.server.aclose(grace_s=0.01)
    assert not (await read_to_end(reader)).complete
    assert (world.of(Aborted), world.cache.resolver[0].left) == ([Aborted("shutdown")], True)


async def test_a_drain_turns_away_who_waits_for_a_first_byte(world: World) -> None:
    """A status and a way to go on instead of a cut; the cache is told at once; the connection ends."""
    shard = world.cache.contents[NAME] = FakeShard(DATA, held_at=0)
    asking = asyncio.create_task(talk(world.port, request("GET", PATH, close=False)))
    await shard.reached.wait()
    await world.server.drain()
    assert world.cache.resolver[0].left
    refused = await asking
    assert (refused.status, refused.headers["connection"], refused.headers["retry-after"]) == (503, "close", "2")
    assert refused.problem["type"] == "urn:forebay:problem:draining"
    assert world.of(Aborted) == []
    assert [done.code for done in world.of(RequestDone)] == [503]


async def test_a_drain_cuts_a_warm_up(world: World) -> None:
    """It would go on fetching; a list of events that just ended would say that all is done."""
    world.operations.warm_gate = asyncio.Event()
    body = b'{"shards": ["s3://b/0.tar"]}'
    sent = request("POST", "/v1/warm", {"Content-Type": "application/json"}, body)
    reader, _writer = await world.connect(sent)
    assert b"shard" in await reader.readuntil(b"s3://b/0.tar")
    await world.server.drain()
    assert world.operations.warm_left.is_set()
    assert not (await read_to_end(reader)).complete
    assert world.of(Aborted) == [Aborted("shutdown")]


async def test_a_drain_frees_the_sockets_path(tmp_path: Path) -> None:
    """For a successor; connections that are there are still answered."""
    path = tmp_path / "f.sock"
    async with listening({}, socket=path) as world:
        reader, writer = await asyncio.open_unix_connection(path)
        await world.server.drain()
        assert not path.exists()
        writer.write(request("GET", "/readyz"))
        assert (await read_to_end(reader)).status == 503
        writer.close()
        await writer.wait_closed()


async def test_a_hold_keeps_it_in_use_until_the_client_leaves(world: World) -> None:
    """A sidecar that was started for one job leaves when nobody has held it for a while."""
    assert not world.server.requests.in_use
    reader, writer = await world.connect(request("GET", "/v1/hold"))
    assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert world.server.requests.in_use
    before = world.server.requests.last_active
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(60):
        while world.server.requests.in_use:
            await asyncio.sleep(0)
    assert world.server.requests.last_active > before


async def test_looking_on_keeps_no_idle_sidecar(world: World) -> None:
    """Nor does a scrape every 15 s, nor an open connection that asks nothing."""
    before = world.server.requests.last_active
    for path in ("/healthz", "/readyz", "/metrics", "/v1/status", "/v1/shards", "/v1/plans"):
        assert (await world.ask("GET", path)).status == 200
    _, writer = await world.connect()
    assert not world.server.requests.in_use
    writer.close()
    await writer.wait_closed()
    assert world.server.requests.last_active == before
    await world.ask("DELETE", "/v1/plans/job/0/0/1.1")
    assert world.server.requests.last_active > before


async def test_a_drain_does_not_wait_for_holds(world: World) -> None:
    """They end at once, are no aborted answers, and nobody may take one any more."""
    reader, _writer = await world.connect(request("GET", "/v1/hold"))
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    await asyncio.wait_for(world.server.drain(), 60)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    assert (await world.ask("GET", "/v1/hold")).status == 503
    assert not [event for event in world.events if isinstance(event, Aborted)]


async def test_there_is_a_most_of_holds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one hears so, with what to do; each that ends makes room for another."""
    monkeypatch.setattr(admin_module, "MOST_HOLDS", 2)

    async def held() -> asyncio.StreamWriter:
        reader, writer = await world.connect()
        writer.write(request("GET", "/v1/hold"))
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        return writer

    writers = [await held(), await held()]
    refused = await world.ask("GET", "/v1/hold")
    assert (refused.status, json.loads(refused.body)["detail"]) == (503, "2 holds are open already")
    assert "close holds" in json.loads(refused.body)["next_step"]
    writers.pop().close()
    async with asyncio.timeout(60):
        while (await world.ask("HEAD", "/v1/hold")).status != 200:
            await asyncio.sleep(0)
    writers.append(await held())
    for writer in writers:
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()


class ShortShard(FakeShard):
    """Promises one byte more than it has."""

    def version(self) -> Version:
        return dataclasses.replace(super().version(), length=len(self.data) + 1)


async def stuck_client(world: World, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has asked and reads nothing, with as small a receive buffer as there is."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", world.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    world.clients.append(writer)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request("GET", target))
    return reader, writer


async def until_still(count: Callable[[], int]) -> None:
    """Wait until ``count`` has begun and then stays what it is for some hundred turns of the loop."""
    last, turns = 0, 0
    async with asyncio.timeout(60):
        while turns < 300:
            await asyncio.sleep(0)
            turns = turns + 1 if count() == last != 0 else 0
            last = count()
