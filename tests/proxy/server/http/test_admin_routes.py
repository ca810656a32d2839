"""Our own paths: health, status, metrics, plans, evict, warm, and the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from support.http_server import Reply, World, listening, read_to_end, request
from support.seams import held_in_thread

from forebay_proxy.core.errors import OriginUnavailable
from forebay_proxy.core.facts.requests import Aborted, RequestDone
from forebay_proxy.server.http import plan_route
from forebay_proxy.server.http.admin_routes import ANSWER_S, _MadeForAll

PLAN = "/v1/plans/train/0/3/7.1"
URLS = ["s3://b/0.tar", "https://h.example/1.tar?x=1"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening() as made:
        yield made


async def send(world: World, method: str, target: str, value: object, headers: dict[str, str] | None = None) -> Reply:
    return await world.ask(method, target, headers, json.dumps(value).encode())


async def test_status_is_completed_by_what_the_face_knows(world: World) -> None:
    """State, address and socket; the rest as the service gives it. HEAD has no body; metrics come with the type Prometheus wants."""
    status = (await world.ask("GET", "/v1/status")).json
    assert (status["state"], status["url"], status["socket"]) == ("ready", f"http://127.0.0.1:{world.port}", None)
    assert status["cache"]["effective_bytes"] == 9_000_000
    head = await world.ask("HEAD", "/v1/status")
    assert (head.status, head.body, int(head.headers["content-length"]) > 100) == (200, b"", True)
    metrics = await world.ask("GET", "/metrics")
    assert (metrics.body, metrics.headers["content-type"]) == (b"forebay_up 1\n", "text/plain; version=0.0.4")


async def test_shards_and_plans_are_listed(world: World) -> None:
    """With the instance, by which a reader notices a restart."""
    assert (await world.ask("GET", "/v1/shards")).json == {"shards": [{"shard": "s3://b/0.tar", "complete": True}]}
    plans = (await world.ask("GET", "/v1/plans")).json
    assert (plans["instance"], plans["total"], plans["plans"][0]["reader"]) == ("0123456789abcdef", 1, "job/0/1/7.1")


@pytest.mark.parametrize(("method", "path", "allow"), [
    ("POST", "/v1/status", "GET, HEAD"), ("GET", "/v1/evict", "POST"), ("GET", PLAN, "PUT, POST, DELETE"),
    ("DELETE", "/v1/plans", "GET, HEAD"),
])  # fmt: skip
async def test_another_method_is_405(world: World, method: str, path: str, allow: str) -> None:
    """It says which there are."""
    reply = await world.ask(method, path)
    assert (reply.status, reply.headers["allow"]) == (405, allow)


@pytest.mark.parametrize(
    "path", ["/v1", "/v1/", "/v2/status", "/v1/status/", "//v1/status", "/page/", "/page/../server.py", "/page/%2e%2e/server.py", "/.."]
)
async def test_another_path_is_404(world: World, path: str) -> None:
    """Nothing is guessed, and no file is reached by a path."""
    assert (await world.ask("GET", path)).status == 404


async def test_put_replaces_post_appends_delete_withdraws(world: World) -> None:
    """204 each, with epoch and set as sent."""
    body = {"shards": URLS, "epoch": 3, "set": "laion"}
    assert [(await send(world, method, PLAN, body)).status for method in ("PUT", "POST")] == [204, 204]
    assert (await world.ask("DELETE", PLAN)).status == 204
    reader = "train/0/3/7.1"
    assert world.plans.calls == [("replace", reader, URLS, 3, "laion"), ("append", reader, URLS, 3, "laion"), ("withdraw", reader)]
    assert [event.job for event in world.of(RequestDone)] == ["train"] * 3


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"not json", "JSON"), (b"[1, 2]", "object"), (b'{"shards": "s3://b/0.tar"}', "list"),
        (b'{"shards": ["s3://b/0.tar", "ftp://x/1.tar"]}', "entry 1"), (b'{"shards": ["s3://b/0.tar", 7]}', "entry 1"),
        (b'{"shards": ["s3://b/0.tar", "s3:///x"]}', "entry 1"), (b'{"shards": [], "epoch": "x"}', "epoch"),
        (b'{"shardz": []}', "shardz"), (b"[" * 100_000, "nested"),
    ],
)  # fmt: skip
async def test_a_bad_plan_is_400_naming_the_first_bad_entry_and_takes_nothing(world: World, body: bytes, names: str) -> None:
    """Half a plan would be worse than none."""
    reply = await world.ask("PUT", PLAN, body=body)
    assert (reply.status, world.plans.calls) == (400, [])
    assert names in reply.problem["detail"]
    assert reply.problem["next_step"]


@pytest.mark.parametrize(
    "path", ["/v1/plans/", "/v1/plans/a/b/c", "/v1/plans/a/b/c/d/e", "/v1/plans/a//c/d", "/v1/plans/a/%2e%2e/c/d", "/v1/plans/a/b/c/%0a"]
)
async def test_a_plan_of_no_reader_is_400(world: World, path: str) -> None:
    """Before its body is looked at."""
    assert (await send(world, "PUT", path, {"shards": URLS})).status == 400
    assert world.plans.calls == []


async def test_a_large_plan_is_parsed_beside_the_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is, others are answered."""
    gate = held_in_thread(monkeypatch, plan_route, "decode")
    body = b'"s3://bucket/0.tar"\n' * 20_000
    put = asyncio.create_task(world.ask("PUT", PLAN, {"Content-Type": "application/x-ndjson"}, body))
    while not gate.reached.is_set():
        await asyncio.sleep(0)
    assert (await world.ask("GET", "/healthz")).status == 200
    gate.open()
    assert (await put).status == 204


async def test_a_client_that_waits_for_the_invitation_gets_it(world: World) -> None:
    """curl sends a body of some size only after 100 Continue, or after a second."""
    body = json.dumps({"all": True}).encode()
    reader, writer = await world.connect(request("POST", "/v1/evict", {"Content-Length": str(len(body)), "Expect": "100-continue"}))
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await read_to_end(reader)).status == 200


async def test_a_client_that_leaves_in_its_body_takes_nothing_with_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A torn plan is no plan; a normal end, no traceback."""
    _, writer = await world.connect(request("PUT", PLAN, {"Content-Length": "100"}) + b'{"shards": [')
    await writer.drain()
    while not world.server.connections:
        await asyncio.sleep(0)
    writer.close()
    await writer.wait_closed()
    await world.until(RequestDone)
    assert (world.plans.calls, [record for record in caplog.records if record.levelname != "DEBUG"]) == ([], [])


async def test_evict_by_pattern_and_all(world: World) -> None:
    """What matched, and what stays because somebody reads it."""
    reply = await send(world, "POST", "/v1/evict", {"shards": ["s3://b/*.tar", "s3://b/0?.tar"]})
    assert reply.json == {"shards": 1, "bytes": 10, "leased": 0}
    await send(world, "POST", "/v1/evict", {"all": True})
    assert world.operations.evicted == [["s3://b/*.tar", "s3://b/0?.tar"], None]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"x", b"[]", b"{}", b'{"all": false}', b'{"all": 1}', b'{"shards": []}', b'{"shards": [""]}', b'{"shards": ["a", 7]}',
        b'{"shards": ["a"], "all": true}',
    ],
)  # fmt: skip
async def test_an_unclear_evict_takes_nothing(world: World, body: bytes) -> None:
    """A slip must not empty the cache."""
    reply = await world.ask("POST", "/v1/evict", {"Content-Length": str(len(body))}, body)
    assert (reply.status, world.operations.evicted, "all" in reply.problem["next_step"]) == (400, [], True)


async def test_warm_shows_each_event_at_once(world: World) -> None:
    """The first line is there while the second shard is still being fetched; leaving ends it."""
    world.operations.warm_gate = asyncio.Event()
    body = json.dumps({"shards": URLS}).encode()
    reader, writer = await world.connect(request("POST", "/v1/warm", body=body))
    assert b"s3://b/0.tar" in await asyncio.wait_for(reader.readuntil(b"}\n"), 60)
    writer.transport.abort()
    async with asyncio.timeout(60):
        await world.operations.warm_left.wait()
    assert await world.until(Aborted) == [Aborted("client_gone")]


async def test_verify_streams_a_line_an_event(world: World) -> None:
    """Operations are told what."""
    reply = await send(world, "POST", "/v1/verify", {"shards": ["s3://b/*"]})
    assert [json.loads(line)["event"] for line in reply.body.splitlines()] == ["progress", "end"]
    await send(world, "POST", "/v1/verify", {"all": True})
    assert world.operations.verified == [["s3://b/*"], None]


async def test_one_verification_at_a_time(world: World) -> None:
    """A second one is told to wait; when the first one's client leaves it ends, and another may begin."""
    world.operations.warm_gate = asyncio.Event()
    body = b'{"all": true}'
    reader, writer = await world.connect(request("POST", "/v1/verify", body=body))
    await asyncio.wait_for(reader.readuntil(b"progress"), 60)
    assert (await send(world, "POST", "/v1/verify", {"all": True})).status == 429
    writer.transport.abort()
    async with asyncio.timeout(60):
        await world.operations.warm_left.wait()
    world.operations.warm_gate.set()
    assert (await send(world, "POST", "/v1/verify", {"all": True})).status == 200


async def test_a_warm_that_breaks_is_cut(world: World) -> None:
    """Without the last line, and without a clean end."""
    world.operations.warm_error = OriginUnavailable("s3://b/0.tar", "503")
    assert not (await send(world, "POST", "/v1/warm", {"shards": URLS})).complete
    assert world.operations.warm_left.is_set()


async def test_what_is_asked_by_many_is_made_once_for_all() -> None:
    """After they asked, never before; and the next one only after a pause that is longer the more there were. Its error is the asker's."""
    made = list[int]()

    def make() -> int:
        made.append(len(made))
        if len(made) == 3:
            raise ValueError("third")
        return made[-1]

    shared = _MadeForAll(make)
    clock = asyncio.get_running_loop().time
    began = clock()
    assert await asyncio.gather(*(shared.get() for _ in range(20))) == [0] * 20
    assert await shared.get() == 1
    assert clock() - began >= 20 * ANSWER_S
    with pytest.raises(ValueError, match="third"):
        await shared.get()
    assert await shared.get() == 3
    assert shared._made is None
