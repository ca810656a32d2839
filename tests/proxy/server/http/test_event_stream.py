"""Events for open pages: made once for all, kept for nobody."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from support.http_server import World, listening, request
from support.seams import swapped

from forebay_proxy.server.http import event_stream
from forebay_proxy.server.http.event_stream import EventStream
from forebay_proxy.server.http.server import HttpServer


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening() as made:
        yield made


def stream_of(server: HttpServer) -> EventStream:
    return server._admin.events


async def listen(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A page; its first bytes are there."""
    reader, writer = await world.connect(request("GET", "/v1/events"))
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    return reader, writer


async def test_one_frame_is_made_for_all(world: World) -> None:
    """Status and map, small; as many pages as there are, one encoding every two seconds; none while nobody listens."""
    stream, made = stream_of(world.server), 0
    frame = stream._frame

    async def counted() -> bytes:
        nonlocal made
        made += 1
        return await frame()

    stream._frame = counted
    stream._every_s = 0.05
    pages = [await listen(world) for _ in range(20)]
    for reader, _ in pages:
        for _ in range(2):
            text = await asyncio.wait_for(reader.readuntil(b'"readers":[]}\n\n\r\n'), 60)
        status = json.loads(text.partition(b"event: status\ndata: ")[2].partition(b"\n\n")[0])
        assert (status["state"], status["cache"]["stored_bytes"], status["history_last"][0]) == ("ready", 1_000_000, 1005.0)
        assert "settings" not in status
    assert made < 20
    for _, writer in pages:
        writer.transport.abort()
    async with asyncio.timeout(60):
        while stream.listeners:
            await asyncio.sleep(0.01)
    before = made
    await asyncio.sleep(0.15)
    assert made == before


async def test_a_page_that_leaves_stops_no_other(world: World) -> None:
    """The one that was making the next frame is gone: the next in line makes it."""
    stream = stream_of(world.server)
    stream._every_s = 0.3
    first, others = await listen(world), [await listen(world) for _ in range(3)]
    for reader, _ in (first, *others):
        await asyncio.wait_for(reader.readuntil(b"event: shards"), 60)
    first[1].transport.abort()
    for reader, writer in others:
        await asyncio.wait_for(reader.readuntil(b"event: shards"), 60)
        writer.transport.abort()
    async with asyncio.timeout(60):
        while stream.listeners:
            await asyncio.sleep(0.01)
    assert not stream._making.locked()


async def test_a_page_that_never_reads_is_dropped(world: World) -> None:
    """After the frames that sockets hold: nothing is kept for it, and the others go on."""
    stream = stream_of(world.server)

    async def large() -> bytes:
        return b"x" * 1_000_000

    stream._frame, stream._every_s, stream._patience_s = large, 0.01, 0.3
    _, stuck = await world.connect(request("GET", "/v1/events"))
    stuck.transport.pause_reading()  # type: ignore[attr-defined]
    reader, _ = await listen(world)
    async with asyncio.timeout(60):
        while stream.listeners == 2 or not stream.listeners:
            await asyncio.wait_for(reader.read(1 << 20), 60)
    assert stream.listeners == 1
    assert await asyncio.wait_for(reader.read(1 << 20), 60)


async def test_one_page_too_many_is_told_to_ask_instead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """503, with what to do; HEAD has no body and no place."""
    stream_of(world.server)._most = 1
    assert (await world.ask("HEAD", "/v1/events")).status == 200
    await listen(world)
    reply = await world.ask("GET", "/v1/events")
    assert (reply.status, "/v1/status" in reply.problem["next_step"]) == (503, True)


async def test_open_pages_hold_no_end_up_and_no_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    """They look on, so an idle sidecar goes; and a drain cuts them at once."""
    swapped(monkeypatch, event_stream, EVERY_S=60.0)
    async with listening() as world:
        reader, _ = await listen(world)
        assert not world.server.requests.in_use
        began = time.monotonic()
        await world.server.aclose(grace_s=30)
        assert time.monotonic() - began < 5
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 5)
        assert stream_of(world.server).listeners == 0
