"""How many files a reader of the code walks through to follow one request, counted while it runs; no walk becomes longer unnoticed.

Counted are the files of ``forebay_proxy`` of which a function is called while one request is answered by a sidecar in this process: on its
loop and in its threads, but not by the tasks that stood there before the request came (the prefetcher, what happens once a second). Each
walk is taken several times, and what is on the way each time counts: what a timer brings in once is nobody's walk.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.http_server import request, talk
from support.scripted_origin import ScriptedOrigin
from support.tarmaking import hand_header

import forebay_proxy
from forebay_proxy.app.service import serve
from forebay_proxy.app.shutdown import Shutdown
from forebay_proxy.app.status import ServiceInfo
from forebay_proxy.background import disk_monitor
from forebay_proxy.background.sample_indexer import SampleIndexer
from forebay_proxy.cache.fill.segment_grants import SegmentGrants
from forebay_proxy.cache.resident import reclaim
from forebay_proxy.config.settings import load
from forebay_proxy.wire.tar.header import BLOCK_BYTES

PACKAGE = f"{Path(forebay_proxy.__file__).parent}/"
SIZE = 20 << 20  # three segments
TIMES = 4
BUSY = 6  # files of what a start has begun: on a machine with other work it may reach into each of a walk's times


class Walk:
    """What runs of the package between ``begin`` and ``end``."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._standing: set[asyncio.Task[Any]] = set()
        self._names: set[str] | None = None

    def begin(self) -> None:
        self._standing = asyncio.all_tasks()
        self._names = set()

    def end(self) -> set[str]:
        """The files, by their path below the package."""
        names, self._names = self._names or set(), None
        return {name.removeprefix(PACKAGE) for name in names}

    def see(self, frame: FrameType, event: str, argument: object) -> None:
        """As ``sys.setprofile`` calls it."""
        if self._names is None or event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if threading.get_ident() != self._thread or asyncio.current_task(self._loop) not in self._standing:
            self._names.add(frame.f_code.co_filename)


class Watched:
    """A sidecar in this process, an origin, and the walk that is being taken."""

    def __init__(self, walk: Walk, origin: ScriptedOrigin, port: int) -> None:
        self.walk, self.port = walk, port
        self._origin = origin

    def shard(self, name: str, size: int = SIZE) -> str:
        self._origin.put(f"/set/{name}.tar", hand_header(b"0.bin", size - 3 * BLOCK_BYTES) + bytes(size - BLOCK_BYTES))
        return self._origin.url(f"/set/{name}.tar")

    async def get(self, name: str, size: int = SIZE) -> str:
        """Read all of it; its Cache-Status."""
        host, _, path = self.shard(name, size).removeprefix("http://").partition("/")
        reply = await talk(self.port, request("GET", f"/http/{host}/{path}"))
        assert (reply.status, len(reply.body)) == (200, size)
        return reply.headers["cache-status"]

    async def stored(self, name: str) -> None:
        async with asyncio.timeout(60):
            while not any(f"/{name}.tar" in shard["shard"] and shard["complete"] for shard in await self._shards()):
                await asyncio.sleep(0.02)

    async def _shards(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await talk(self.port, request("GET", "/v1/shards"))).json["shards"]
        return found


@asynccontextmanager
async def watched(place: Path, cache_size: str) -> AsyncIterator[Watched]:
    (place / "run").mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(place / "run"), "HOME": str(place)}
    walk, ending, patch = Walk(), Shutdown(0.0), pytest.MonkeyPatch()
    patch.setattr(disk_monitor, "LOOK_S", 3600.0)  # its threads would be in every walk of a machine where one takes seconds
    threading.setprofile(walk.see)  # before its threads begin
    sys.setprofile(walk.see)
    try:
        async with ScriptedOrigin() as origin:
            given = {"port": 0, "cache_dir": place / "cache", "cache_size": cache_size, "allow_origin": (origin.base,)}
            known: asyncio.Future[ServiceInfo] = asyncio.get_running_loop().create_future()
            running = asyncio.create_task(serve(load(given, environ, ()), announce=known.set_result, environ=environ, ending=ending))
            try:
                yield Watched(walk, origin, (await asyncio.wait_for(known, 60)).port)
            finally:
                ending.asked.set()
                await asyncio.wait_for(running, 60)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        patch.undo()


async def at_rest(_: object) -> None:
    await asyncio.Event().wait()


def judged(walks: list[set[str]], budget: int) -> None:
    """``budget`` is what the walk may be, on a machine without other work."""
    files = set.intersection(*walks)
    listed = "\n  ".join(sorted(files))
    assert len(files) <= budget + BUSY, f"{len(files)} files, {budget} are the most; for each new one take one away:\n  {listed}"


async def test_warm(tmp_path: Path) -> None:
    """A shard that is here whole: 40 files (70 before classes were parted by their nouns)."""
    walks = []
    async with watched(tmp_path, "64MiB") as sidecar:
        await sidecar.get("a")
        await sidecar.stored("a")
        for _ in range(TIMES):
            sidecar.walk.begin()
            assert await sidecar.get("a") == "forebay; hit"
            walks.append(sidecar.walk.end())
    judged(walks, 45)


async def test_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard of three segments of which nothing is here, until its row is committed: 80 files (121 before).

    The index of its samples is no part of it: that begins when the last reader has left, as tests/proxy/background/test_sample_indexer.py
    shows, and stays out of this sidecar. What a completed shard tells the indexer is counted.
    """
    monkeypatch.setattr(SampleIndexer, "run", at_rest)
    walks = []
    for number in range(TIMES):  # each with a first connection to the origin
        (place := tmp_path / f"{number}").mkdir()
        async with watched(place, "64MiB") as sidecar:
            sidecar.walk.begin()
            assert "stored" in await sidecar.get("a")
            await asyncio.sleep(0.3)
            walks.append(sidecar.walk.end())
    judged(walks, 80)


@contextmanager
def counting_grants(monkeypatch: pytest.MonkeyPatch, walk: Walk, walks: list[set[str]]) -> Iterator[None]:
    """What runs from asking for a first segment's room until it is there."""
    granted: Callable[..., Any] = SegmentGrants.opening

    async def opening(self: SegmentGrants, *told: Any) -> Any:
        walk.begin()
        grant = await granted(self, *told)
        files = walk.end()
        if f"cache/resident/{Path(reclaim.__file__).name}" in files:  # somebody had to leave
            walks.append(files)
        return grant

    with monkeypatch.context() as patch:
        patch.setattr(SegmentGrants, "opening", opening)
        yield


async def test_eviction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From asking for room in a full cache until segments have left for it: 30 files."""
    walks: list[set[str]] = []
    async with watched(tmp_path, "28MiB") as sidecar:
        with counting_grants(monkeypatch, sidecar.walk, walks):
            for name in "abcdefghijklmnopqrst":  # of a segment each; once the cache is full, nearly each has somebody leave
                if len(walks) >= TIMES:
                    break
                await sidecar.get(name, 8 << 20)
                await sidecar.stored(name)
    assert len(walks) >= TIMES
    judged(walks, 30)


async def test_plan(tmp_path: Path) -> None:
    """A plan of two shards, until it is live: 35 files (54 before)."""
    walks = []
    async with watched(tmp_path, "64MiB") as sidecar:
        shards = [sidecar.shard(name) for name in "ab"]
        for name in "ab":
            await sidecar.get(name)
            await sidecar.stored(name)
        body = json.dumps({"set": sidecar.shard("{a,b}"), "epoch": 0, "shards": shards}).encode()
        for number in range(TIMES):
            sidecar.walk.begin()
            reply = await talk(sidecar.port, request("PUT", f"/v1/plans/j/{number}/0/1.1", {"Content-Type": "application/json"}, body))
            walks.append(sidecar.walk.end())
            assert reply.status == 204
    judged(walks, 35)
