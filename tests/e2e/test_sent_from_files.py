"""A stored shard is sent from its file: the origin's bytes, over TCP, whole and in part, to many at once, while segments leave."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.http_server import request, talk
from support.scripted_origin import ScriptedOrigin

from forebay_proxy.app.service import serve
from forebay_proxy.app.shutdown import Shutdown
from forebay_proxy.app.status import ServiceInfo
from forebay_proxy.config.settings import load
from forebay_proxy.server.http import shard_route

SIZE = (20 << 20) + 12_345  # three segments, the last of which ends within a page
DATA = os.urandom(SIZE)


@asynccontextmanager
async def sidecar(place: Path, cache_size: str) -> AsyncIterator[tuple[int, ScriptedOrigin]]:
    """One in this process: its port, and its origin."""
    (place / "run").mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(place / "run"), "HOME": str(place)}
    ending = Shutdown(0.0)
    async with ScriptedOrigin() as origin:
        given = {"port": 0, "cache_dir": place / "cache", "cache_size": cache_size, "allow_origin": (origin.base,)}
        known: asyncio.Future[ServiceInfo] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(serve(load(given, environ), announce=known.set_result, environ=environ, ending=ending))
        try:
            yield (await asyncio.wait_for(known, 60)).port, origin
        finally:
            ending.asked.set()
            await asyncio.wait_for(running, 60)


@pytest.fixture(autouse=True)
def any_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only many at once."""
    monkeypatch.setattr(shard_route, "MANY_BODIES", 1)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each ``sendfile`` moved."""
    counts, sendfile = list[int](), os.sendfile

    def counted(*told: Any) -> int:
        count = sendfile(*told)
        counts.append(count)
        return count

    monkeypatch.setattr(os, "sendfile", counted)
    return counts


def target(origin: ScriptedOrigin, name: str) -> str:
    host, _, path = origin.url(name).removeprefix("http://").partition("/")
    return f"/http/{host}/{path}"


async def test_a_hit_is_sent_from_its_file(tmp_path: Path, sent: list[int]) -> None:
    """Whole, in part, and what a HEAD or a validator asks for without a byte."""
    async with sidecar(tmp_path, "64MiB") as (port, origin):
        origin.put("/a.bin", DATA)
        where = target(origin, "/a.bin")
        cold = await talk(port, request("GET", where))
        assert cold.body == DATA
        whole = cold
        async with asyncio.timeout(60):
            while whole.headers["cache-status"] != "forebay; hit":  # a reader may have the last bytes before the disk does
                sent.clear()
                whole = await talk(port, request("GET", where))
        assert whole.status == 200
        assert whole.body == DATA
        assert sum(sent) > SIZE // 2
        part = await talk(port, request("GET", where, {"Range": f"bytes=4097-{SIZE - 3}"}))
        assert part.status == 206
        assert part.body == DATA[4097 : SIZE - 2]
        sent.clear()
        head = await talk(port, request("HEAD", where))
        same = await talk(port, request("GET", where, {"If-None-Match": whole.headers["etag"]}))
        assert (head.status, head.body, same.status, same.body, sum(sent)) == (200, b"", 304, b"", 0)


async def test_few_bodies_are_copied(tmp_path: Path, sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """That is as fast for them; what is sent otherwise depends on how many there are now, not when they began."""
    monkeypatch.setattr(shard_route, "MANY_BODIES", 2)
    async with sidecar(tmp_path, "64MiB") as (port, origin):
        origin.put("/a.bin", DATA)
        where = target(origin, "/a.bin")
        await talk(port, request("GET", where))
        sent.clear()  # the start tried it
        assert (await talk(port, request("GET", where))).body == DATA
        assert sent == []
        both = await asyncio.gather(*(talk(port, request("GET", where)) for _ in range(2)))
        assert [reply.body for reply in both] == [DATA, DATA]
        assert sum(sent) > 0
        sent.clear()
        await talk(port, request("GET", where))
        assert sent == []


async def test_many_readers_of_a_cache_too_small_get_the_origins_bytes(tmp_path: Path, sent: list[int]) -> None:
    """Segments leave, and come again, while sockets hold their pages."""
    async with sidecar(tmp_path, "32MiB") as (port, origin):
        data = [DATA[shift:] + DATA[:shift] for shift in range(1, 5)]
        for number, body in enumerate(data):
            origin.put(f"/{number}.bin", body)

        async def read(turn: int) -> None:
            number = turn % 4
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            writer.write(request("GET", target(origin, f"/{number}.bin"), {"Connection": "close"}))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            got = bytearray()
            while part := await reader.read(1 << 16):
                got += part
                if len(got) % 7 == turn % 7:  # one of seven pauses: then the socket stays full
                    await asyncio.sleep(0.002)
            writer.close()
            assert got == data[number]

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for turn in range(8):
                group.create_task(read(turn))
        assert sum(sent) > 0
