"""One client that asks for too much, or too slowly: each thing it can make us hold has a bound, and the others go on."""

from __future__ import annotations

import asyncio
import json
import os
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.fake_cache import FakeShard
from support.house import SEGMENT, building, data_of, reader
from support.http_server import World, listening, request, talk
from support.raw import exchange, line
from support.refusals import refused

from forebay_proxy.cache.readers.reader import REST_S
from forebay_proxy.cache.resident.entry import MOST_CREDENTIALS, MOST_JOBS, Entry
from forebay_proxy.core.facts.origins import OriginAnswered
from forebay_proxy.core.facts.requests import RequestDone, RequestOutcome
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import Pin as NoPin
from forebay_proxy.core.shard import Shard, Version
from forebay_proxy.policy.plans import reader_plan
from forebay_proxy.policy.plans.epochs import MOST_JOBS as MOST_PASSES
from forebay_proxy.policy.plans.epochs import EpochTracker
from forebay_proxy.policy.plans.reader_plan import MOST_READERS, MOST_SHARDS
from forebay_proxy.policy.plans.registry import PlanRegistry, PlansFull
from forebay_proxy.server.http import admin_routes, connection, framing
from forebay_proxy.server.http.connection import ConnectionLimit, ConnectionServer
from forebay_proxy.server.http.framing import BODIES_MOST_BYTES
from forebay_proxy.server.net.peers import Peer, Where
from forebay_proxy.telemetry.counters import MAX_JOBS, Counters
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.transfer.limiter import MOST_ORIGINS, Limiters
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import parse_origin_url

SHARD = "/s3/b/0.tar"
START = b"GET /s3/b/0.tar HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening({"s3://b/0.tar": FakeShard(b"shard")}) as found:
        yield found


def server_of(world: World) -> ConnectionServer:
    return world.server._server


# Slow on purpose


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_S", 1.0)


@pytest.mark.usefixtures("impatient")
async def test_a_header_that_never_ends_is_cut(world: World) -> None:
    """Bytes that keep dripping do not move the end of its time."""
    async with line(world.port) as slow:
        await slow.send(START)
        dripping, cut = asyncio.create_task(drip(slow)), asyncio.create_task(slow.ended(120))
        await asyncio.wait([cut], timeout=60)
        refused("exhaustion: a header that drips", held=cut.done())
        await dripping
    assert (await world.ask("GET", SHARD)).body == b"shard"


async def drip(slow: object) -> None:
    try:
        while True:
            await slow.send(b"X")  # type: ignore[attr-defined]
            await asyncio.sleep(0.02)
    except ConnectionError:
        pass


EVICT = request("POST", "/v1/evict", body=b'{"shards": ["s3://b/0.tar"]}', close=False)
READ = request("GET", SHARD, close=False)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("what", "ahead", "behind"),
    [
        ("a connection that asks nothing", b"", b""),
        ("a connection that asks no more", READ, b""),
        ("half a second request", READ, START),
        ("a part of a header behind a request", READ + START, b""),
        ("a part of a header behind a body", EVICT + START, b""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_asks_no_more_is_cut_too(world: World, what: str, ahead: bytes, behind: bytes) -> None:
    """A connection that has been served once earns no more patience, sent in one packet with the request or after its answer."""
    async with line(world.port) as slow:
        await slow.send(ahead)
        assert not ahead or (await slow.answer())[0] in (200, 204)
        await slow.send(behind)
        refused(f"exhaustion: {what}", held=await slow.ended() == b"")


@pytest.mark.usefixtures("impatient")
async def test_a_part_of_a_header_behind_an_answer_under_way_is_cut_too(world: World) -> None:
    """Its time is over while what is before it is still being answered."""
    world.operations.warm_gate = asyncio.Event()
    async with line(world.port) as slow:
        await slow.send(request("POST", "/v1/warm", body=b'{"shards": ["s3://b/0.tar"]}', close=False))
        await slow.reader.readuntil(b"\r\n\r\n")
        await slow.send(START)
        await asyncio.sleep(1.5)
        world.operations.warm_gate.set()
        refused("exhaustion: a part of a header behind an answer", held=(await slow.ended()).endswith(b"0\r\n\r\n"))


@pytest.mark.usefixtures("impatient")
async def test_a_connection_between_requests_is_left_alone(world: World) -> None:
    """Keep-alive is what makes small shards quick: its time begins anew with each answer."""
    async with line(world.port) as idle:
        for _ in range(8):
            await idle.send(request("GET", SHARD, close=False))
            assert (await idle.answer())[0] == 200
            await asyncio.sleep(0.2)


@pytest.mark.usefixtures("impatient")
async def test_a_long_answer_is_not_idleness(world: World) -> None:
    """However long the origin takes; and the connection serves the next request."""
    shard = world.cache.contents["s3://b/held.tar"] = FakeShard(b"x" * 10, held_at=0)
    async with line(world.port) as busy:
        await busy.send(request("GET", "/s3/b/held.tar", close=False))
        await shard.reached.wait()
        await asyncio.sleep(1.5)
        shard.gate.set()
        assert (await busy.answer())[2] == b"x" * 10
        await busy.send(request("GET", SHARD))
        assert (await busy.answer())[2] == b"shard"


@pytest.mark.parametrize("way", ["reads", "announces"])
@pytest.mark.usefixtures("impatient")
async def test_a_jobs_connection_may_rest(world: World, way: str) -> None:
    """A trainer writes a checkpoint for half an hour: while its connections are open, what it reads is kept."""
    plan = request("PUT", "/v1/plans/j/0/0/0", body=b'{"shards": ["s3://b/0.tar"]}', close=False)
    read = request("GET", SHARD, {"Forebay-Reader": "j/0/0/0"}, close=False)
    async with line(world.port) as resting:
        for sent in (plan if way == "announces" else read, request("GET", SHARD)):
            await resting.send(sent)
            assert (await resting.answer())[0] in (200, 204)
            await asyncio.sleep(2.0)


async def test_a_body_that_stops_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan announced and never sent holds nothing."""
    monkeypatch.setattr(framing, "BODY_SILENCE_S", 0.2)
    async with line(world.port) as slow:
        await slow.send(b"PUT /v1/plans/a/b/c/d HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{")
        await slow.ended()
    refused("exhaustion: a body that stops", held=world.plans.calls == [] and world.server._admin._bodies.held_bytes == 0)


async def test_bodies_that_drip_keep_no_place(world: World) -> None:
    """Of the few that warm and verify have: it is taken by who has said what it wants."""
    begun = b"HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    async with AsyncExitStack() as slow:
        for path in (b"/v1/verify", *[b"/v1/warm"] * admin_routes.MOST_WARMS):
            await (await slow.enter_async_context(line(world.port))).send(b"POST " + path + b" " + begun)
        while world.server._admin._bodies.held_bytes < 1 + admin_routes.MOST_WARMS:
            await asyncio.sleep(0.01)
        warmed = await world.ask("POST", "/v1/warm", body=b'{"shards": ["s3://b/0.tar"]}')
        verified = await world.ask("POST", "/v1/verify", body=b'{"all": true}')
    refused("exhaustion: dripped bodies and the places of commands", held=(warmed.status, verified.status) == (200, 200))


# Too many connections


async def test_a_newcomer_takes_the_place_of_the_longest_idle(world: World) -> None:
    """Who asks nothing cannot keep others out; who is being answered stays."""
    server_of(world).connection_limit = ConnectionLimit(3, 3)
    shard = FakeShard(b"x" * 10, held_at=0)
    world.cache.contents["s3://b/held.tar"] = shard
    async with AsyncExitStack() as stack:
        busy = await stack.enter_async_context(line(world.port))
        await busy.send(request("GET", "/s3/b/held.tar"))
        await shard.reached.wait()
        idle = [await stack.enter_async_context(line(world.port)) for _ in range(2)]
        assert (await world.ask("GET", SHARD)).body == b"shard"
        shard.gate.set()
        left = await idle[0].ended()
        refused("exhaustion: idle connections", held=left == b"" and (await busy.answer())[0] == 200)


async def test_when_all_are_busy_a_newcomer_is_told_so(world: World) -> None:
    """503 with the time to ask again; nobody who is being served pays for it."""
    server_of(world).connection_limit = ConnectionLimit(2, 2)
    shard = FakeShard(b"x" * 10, held_at=0)
    world.cache.contents["s3://b/held.tar"] = shard
    async with AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(line(world.port)) for _ in range(2)]
        for one in busy:
            await one.send(request("GET", "/s3/b/held.tar"))
        await world_until(lambda: len(world.cache.resolver) == 2)
        async with line(world.port) as late:
            status, headers, body = await late.answer()
        shard.gate.set()
        served = [(await one.answer())[0] for one in busy]
        refused("exhaustion: connections", held=(status, headers["retry-after"], served) == (503, "2", [200, 200]))
        assert (headers["content-type"], headers["connection"], headers["server"]) == ("application/problem+json", "close", "forebay")
        assert json.loads(body) == {
            "type": "urn:forebay:problem:too-many-connections", "title": "Too many connections", "status": 503, "retryable": True,
            "detail": "every place is taken by a connection that is being answered", "next_step": "use fewer connections, or ask again",
        }  # fmt: skip


async def test_strangers_have_a_bound_of_their_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's hundred connections take no place of ours."""
    server_of(world).connection_limit = ConnectionLimit(100, 2)
    monkeypatch.setattr(connection, "peer_of", lambda transport: Peer(Where.LOOPBACK, os.getuid() + 1, "127.0.0.1"))
    async with AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(line(world.port))
        await world_until(lambda: world.server.connections <= 2)
        monkeypatch.undo()
        served = (await world.ask("GET", SHARD)).body == b"shard"
        refused("exhaustion: another user's connections", held=served and len(server_of(world).connection_limit) <= 3)


async def test_who_may_not_ask_keeps_no_connection(world: World) -> None:
    """A refusal ends it, so that a place is not kept by asking again and again."""
    answers = await exchange(world.port, request("GET", SHARD, {"Host": "evil.example"}, close=False) * 3)
    refused("exhaustion: a refused client's connection", held=[status for status, _, _ in answers] == [403])


async def world_until(fact: object) -> None:
    async with asyncio.timeout(60):
        while not fact():  # type: ignore[operator]
            await asyncio.sleep(0.01)


# Too large


@pytest.mark.parametrize(
    ("what", "target", "headers", "status"),
    [
        ("URL", "/https/h/" + "a" * 9000, {}, 414),
        ("URL beyond the parser", "/https/h/" + "a" * 70_000, {}, 414),
        ("query", "/https/h/a?" + "a" * 9000, {}, 414),
        ("header", SHARD, {"Authorization": "a" * 40_000}, 431),
        ("reader", SHARD, {"Forebay-Reader": "a" * 200 + "/0/0/1"}, 400),
        ("range", SHARD, {"Range": "bytes=" + "0-1," * 5000 + "x"}, 400),
    ],
)
async def test_what_is_too_long_is_refused(world: World, what: str, target: str, headers: dict[str, str], status: int) -> None:
    """With the status that says what."""
    reply = await world.ask("GET", target, headers)
    refused(f"exhaustion: a {what} too long", held=reply.status == status and world.cache.resolver == [])


async def test_a_body_announced_too_large_is_refused_unread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is one that grows too large, also where no length was announced."""
    monkeypatch.setattr(connection, "LINGER_S", 0.1)
    reply = await talk(world.port, b"PUT /v1/plans/a/b/c/d HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n")
    refused("exhaustion: a body of 100 GB announced", held=reply.status == 413)
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    reply = await talk(world.port, b"POST /v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk * 2)
    refused("exhaustion: a body that grows", held=reply.status == 413 and world.operations.evicted == [])


async def test_bodies_together_have_a_bound(world: World) -> None:
    """Many plans at once wait their turn outside our memory."""
    world.server._admin._bodies.held_bytes = BODIES_MOST_BYTES - 10
    reply = await world.ask("PUT", "/v1/plans/a/b/c/d", {}, b'{"shards": ["s3://b/0.tar"]}')
    refused("exhaustion: bodies together", held=(reply.status, reply.headers["retry-after"]) == (429, "2") and world.plans.calls == [])
    assert world.server._admin._bodies.held_bytes == BODIES_MOST_BYTES - 10


async def test_a_compressed_plan_is_not_unfolded(world: World) -> None:
    """No bomb: an encoded body is refused, whatever encoding it names."""
    for encoding in ("gzip", "deflate", "br", "zstd"):
        reply = await world.ask("PUT", "/v1/plans/a/b/c/d", {"Content-Encoding": encoding}, b"\x1f\x8b" + b"\0" * 100)
        refused(f"exhaustion: a {encoding} body", held=reply.status == 415 and world.plans.calls == [])


async def test_warm_ups_at_once_have_a_bound(world: World) -> None:
    """Each keeps its list; a person starts one."""
    world.operations.warm_gate = asyncio.Event()
    body = b'{"shards": ["s3://b/0.tar"]}'
    async with AsyncExitStack() as stack:
        for _ in range(admin_routes.MOST_WARMS):
            warming = await stack.enter_async_context(line(world.port))
            await warming.send(request("POST", "/v1/warm", body=body))
            await warming.reader.readuntil(b"\n")
        await world_until(lambda: world.server._admin._warm_ups == admin_routes.MOST_WARMS)
        refused("exhaustion: warm-ups at once", held=(await world.ask("POST", "/v1/warm", body=body)).status == 429)
        world.operations.warm_gate.set()
    await world_until(lambda: world.server._admin._warm_ups == 0)


# Too many names


def shards(count: int, text: str = "s3://b/{}.tar") -> list[Shard]:
    return [Shard.of(parse_origin_url(text.format(number))) for number in range(count)]


def test_a_million_readers_announce_in_vain() -> None:
    """Beyond the bound nobody new is heard; those who are go on, and a place is free again once one leaves."""
    plans, one = PlanRegistry(lambda: 0.0), shards(1)
    heard = 0
    for number in range(MOST_READERS + 1000):
        try:
            plans.replace(ReaderName("j", str(number), "0", "1"), one)
            heard += 1
        except PlansFull:
            pass
    plans.append(ReaderName("j", "0", "0", "1"), one)
    plans.replace(ReaderName("j", "1", "0", "1"), one)
    plans.withdraw(ReaderName("j", "2", "0", "1"))
    plans.replace(ReaderName("new", "0", "0", "1"), one)
    refused("exhaustion: a million readers' plans", held=heard == len(plans) == MOST_READERS)


def test_what_is_read_and_withdrawn_gives_its_room_back() -> None:
    """The sums are those of the plans, whatever was announced, read and withdrawn."""
    plans = PlanRegistry(lambda: 0.0)
    many = shards(6000)
    plans.replace(reader(0), many)
    plans.opened(many[5000], reader(0))
    plans.append(reader(0), many[:10])  # forgets the 5,001 that were read
    plans.replace(reader(1), many[:7])
    plans.withdraw(reader(2))
    plans.storage.tidy()
    names = [plans.shard_at(plan, index).name for plan in plans.all() for index in range(len(plan))]
    assert plans.storage.entries_held == sum(len(plan) for plan in plans.all()) == 999 + 10 + 7
    assert plans.storage.name_bytes == sum(map(len, names))
    plans.withdraw(reader(0))
    plans.withdraw(reader(1))
    plans.storage.tidy()
    assert (plans.storage.entries_held, plans.storage.name_bytes, len(plans.storage.mentions)) == (0, 0, 0)


def test_plans_together_hold_so_many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that would be too much is not taken at all, and the one before it stays."""
    assert MOST_SHARDS >= 2 * 585_270  # the largest public set, for two jobs
    monkeypatch.setattr(reader_plan, "MOST_SHARDS", 100)
    plans = PlanRegistry(lambda: 0.0)
    plans.replace(reader(0), shards(60))
    for attempt in (lambda: plans.replace(reader(1), shards(41)), lambda: plans.append(reader(0), shards(41))):
        with pytest.raises(PlansFull):
            attempt()
    plans.replace(reader(0), shards(100))  # instead of the sixty
    refused("exhaustion: entries of all plans", held=[len(plan) for plan in plans.all()] == [100])


def test_plans_together_hold_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of eight thousand characters count as what they are; what is replaced gives room back."""
    monkeypatch.setattr(reader_plan, "MOST_NAME_BYTES", 5000)
    plans = PlanRegistry(lambda: 0.0)
    plans.replace(reader(0), shards(4, "s3://b/" + "a" * 1000 + "{}.tar"))
    with pytest.raises(PlansFull):
        plans.append(reader(0), shards(5, "s3://b/" + "a" * 1000 + "{}.tar")[4:])
    plans.replace(reader(0), shards(3, "s3://b/" + "b" * 1000 + "{}.tar"))  # instead of the four
    refused("exhaustion: bytes of all plans", held=plans.storage.name_bytes < 5000 and len(plans.all()[0]) == 3)


async def test_a_full_desk_answers_429(world: World) -> None:
    """Which the loader takes as: not now."""

    def full(*_: object) -> None:
        raise PlansFull("full", next_step="later")

    world.plans.replace = full  # type: ignore[method-assign]
    reply = await world.ask("PUT", "/v1/plans/a/b/c/d", {}, b'{"shards": ["s3://b/0.tar"]}')
    assert (reply.status, reply.problem["retryable"], reply.headers["retry-after"]) == (429, True, "2")


def test_made_up_jobs_and_credentials_are_forgotten() -> None:
    """An entry remembers a few of each: who is forgotten asks the origin once more."""
    shard = shards(1)[0]
    entry = Entry("0" * 64, shard, Version("etag:1", NoPin(), 10), DEFAULT_LAYOUT, ranged=True)
    entry.access.macs = {"first"}
    for number in range(10_000):
        entry.access.admit(f"a{number}")
        entry.access.proved(f"p{number}", 1000.0)
        entry.trust.checked(f"j{number}", 1000.0)
    bounded = (
        len(entry.access.macs) <= MOST_CREDENTIALS
        and len(entry.access._proofs) <= MOST_CREDENTIALS
        and len(entry.trust.checked_jobs) <= MOST_JOBS
    )
    newest = entry.access.may_read("p9999", 1001.0) and "j9999" in entry.trust.checked_jobs
    refused("exhaustion: made-up credentials and jobs of a shard", held=bounded and newest and not entry.access.may_read("unknown", 1001.0))


def test_made_up_jobs_of_a_set_are_forgotten() -> None:
    """And those of the tally, and the origins of the limiter."""
    passes, counters, limiters, shard = EpochTracker(), Counters(), Limiters(64), shards(1)[0]
    for number in range(2000):
        passes.opened(shard, f"job{number}", float(number))
        limiters.of(f"https://h{number}.example")
    held = len(passes.groups._groups[shard.group].passes) <= MOST_PASSES and len(limiters.in_flight()) <= MOST_ORIGINS
    refused("exhaustion: made-up jobs and hosts", held=held and MAX_JOBS <= 1000 and counters is not None)


def test_made_up_names_make_no_endless_metrics() -> None:
    """Jobs, origins and codes beyond the bound share one series."""
    metrics = Metrics(version="test")
    for number in range(3000):
        metrics.listen(RequestDone("GET", 200, RequestOutcome.HIT, 1, 0.1, 0.1, job=f"job{number}"))
        metrics.listen(OriginAnswered(f"https://h{number}.example", "GET", 200 + number % 400, 0.1))
    lines = metrics.render()[0].count(b"\n")
    refused("exhaustion: labels of metrics", held=lines < 20_000)


# Lengths


async def test_long_lengths_cost_nothing(tmp_path: Path) -> None:
    """A length is what an origin says: a shard costs by what is stored of it, in memory, in the index and in its commits.

    A table as long as the shards say would be 128 MB for these, and their rows 170 MB.
    """
    shards, length = 16, SEGMENT << 20
    async with building(tmp_path, segments=64) as house:
        before = house.store.measure()
        tracemalloc.start()
        for number in range(shards):
            house.origin.put(f"s3://b/{number}.tar", data_of(SEGMENT, number)).claimed_length = length
            assert await house.get(f"s3://b/{number}.tar", first=0, last=9) == data_of(SEGMENT, number)[:10]
        await house.quiet()
        await house.store.index_writer.committed()
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert all(house.entry(f"s3://b/{number}.tar").segments.stored_count == 1 for number in range(shards))
        grown = house.store.measure() - before
        refused("exhaustion: lengths that an origin makes up", held=memory < 32 << 20 and grown < 4 << 20)


# Stuck readers


async def test_a_stuck_reader_gives_back_what_it_holds_and_goes_on(tmp_path: Path) -> None:
    """A trainer in a debugger pins nothing: its segments may leave meanwhile, and it still gets every byte."""
    assert REST_S >= 30  # a slow reader is no stuck one
    async with building(tmp_path, segments=64) as house:
        data = data_of(8 * SEGMENT)
        house.origin.put("s3://b/0.tar", data)
        async with house.opened("s3://b/0.tar", reader()) as reading:
            chunks = reading.chunks()
            got = bytes(await anext(chunks))
            assert house.cache.leased_segments > 0
            resting = house.cache.readers.let_rest(time.monotonic() + REST_S + 1)
            await house.quiet()
            held = (resting, house.cache.leased_segments)
            freed = await house.operations.evict(None)
            got += bytes(await anext(chunks))
            holds_again = house.cache.leased_segments
            async for chunk in chunks:
                got += bytes(chunk)
        refused(
            "exhaustion: a stuck reader's leases",
            held=held == (1, 0) and freed["leased"] == 0 and freed["bytes"] > 0 and holds_again > 0 and got == data,
        )


async def test_a_thousand_stuck_readers_leave_the_room_to_others(tmp_path: Path) -> None:
    """Without it the next reader would find everything leased, and nothing of it would be stored. What it has passed may leave again."""
    async with building(tmp_path, segments=16) as house, AsyncExitStack() as stack:
        for number in range(12):
            house.origin.put(f"s3://b/{number}.tar", data_of(2 * SEGMENT, number))
            reading = await stack.enter_async_context(house.opened(f"s3://b/{number}.tar", reader(number)))
            await anext(reading.chunks())
        await house.quiet()
        house.cache.readers.let_rest(time.monotonic() + REST_S + 1)
        house.origin.put("s3://b/new.tar", data_of(8 * SEGMENT, 99))
        assert await house.get("s3://b/new.tar", reader(99)) == data_of(8 * SEGMENT, 99)
        await house.quiet()
        refused("exhaustion: the room of stuck readers", held=house.entry("s3://b/new.tar").segments.stored_count >= 7)


async def test_a_reader_that_only_waits_for_the_origin_does_not_rest(tmp_path: Path) -> None:
    """It is the origin that is slow, not the client: its leases stay."""
    async with building(tmp_path, segments=64) as house:
        remote = house.origin.put("s3://b/0.tar", data_of(2 * SEGMENT))
        gate = remote.hold(SEGMENT)
        async with house.opened("s3://b/0.tar", reader()) as reading:
            chunks = reading.chunks()
            got = b""
            while len(got) < SEGMENT:
                got += bytes(await anext(chunks))
            waiting = asyncio.ensure_future(anext(chunks))
            await gate.reached.wait()
            await asyncio.sleep(0)
            assert house.cache.readers.let_rest(time.monotonic() + REST_S + 1) == 0
            gate.open()
            got += bytes(await waiting)
            async for chunk in chunks:
                got += bytes(chunk)
        assert got == data_of(2 * SEGMENT)
