"""Something to scrape: the real sidecar as a process of its own, or the metrics alone with every fact happening all the time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from support.sidecar import running

from forebay_proxy.core.events import Event
from forebay_proxy.core.facts.cache import (
    CacheRecovered,
    DigestChecked,
    DiskChanged,
    DiskOperationFailed,
    Evicted,
    IndexDone,
    IntegrityFailed,
    ReservationRefused,
    SegmentVerified,
)
from forebay_proxy.core.facts.origins import (
    FetchRetried,
    FlightBoarded,
    NotStorable,
    OpeningDone,
    OriginAnswered,
    OriginBytes,
    OriginFailed,
    OriginOddity,
    Refetched,
    Revalidated,
    SegmentFetched,
)
from forebay_proxy.core.facts.requests import (
    Aborted,
    AccessLogged,
    ClientRefused,
    DoorAnswered,
    LeaseEnded,
    LoopLagged,
    MeterTold,
    NotTar,
    PlanChanged,
    ReaderWaited,
    RequestDone,
    RequestOutcome,
    ShardOpened,
)
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.usage import Usage
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["LiveSidecar", "busy_metrics", "live_sidecar"]

SHARD_BYTES = 20 << 20  # three segments


@dataclass(frozen=True)
class LiveSidecar:
    """A running sidecar at ``url`` with one shard of ``SHARD_BYTES`` to read, by way of the file origin."""

    url: str
    shard: Path

    @property
    def target(self) -> str:
        return self.url.removeprefix("http://")

    def read(self) -> bytes:
        """The shard through the sidecar."""
        with urllib.request.urlopen(f"{self.url}/file{self.shard}", timeout=120) as answer:
            return bytes(answer.read())


@contextlib.contextmanager
def live_sidecar(directory: Path) -> Iterator[LiveSidecar]:
    """``forebay serve`` on a port the kernel picks, its cache and all it writes under ``directory``; stopped by SIGTERM."""
    shards = directory / "shards"
    shards.mkdir()
    shard = shards / "a.tar"
    shard.write_bytes(os.urandom(SHARD_BYTES))
    with running(directory, "--cache-size", "100MiB", "--file-root", str(shards)) as sidecar:
        yield LiveSidecar(sidecar.url, shard)


@contextlib.contextmanager
def busy_metrics() -> Iterator[str]:
    """host:port of an endpoint where each scrape finds that everything has happened once more."""
    started, address, stop = threading.Event(), list[str](), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        ended = asyncio.Event()
        runner = web.AppRunner(_busy_app(), access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append("{}:{}".format(*runner.addresses[0]))
        stop.append((asyncio.get_running_loop(), ended))
        started.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="busy metrics")
    thread.start()
    try:
        assert started.wait(60)
        yield address[0]
    finally:
        for loop, ended in stop:
            loop.call_soon_threadsafe(ended.set)
        thread.join(10)


def _busy_app() -> web.Application:
    metrics = Metrics(version="test")
    metrics.watch(_usage)

    async def answer(_: web.Request) -> web.Response:
        for fact in EVERYTHING:
            metrics.listen(fact)
        body, content_type = metrics.render()
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    return app


def _usage() -> Usage:
    return Usage(
        configured_bytes=1000, effective_bytes=900, stored_bytes=500, reserved_bytes=100, overhead_bytes=10, peak_bytes=700, readers=3,
        plans=2, waiters=1, shards=5, segments=9, avail_bytes=10_000, size_bytes=20_000, files_free=100, origins={"s3://bucket": 2},
        lead_bytes={"train": 100}, lead_s={"train": 2.5},
    )  # fmt: skip


_ORIGIN = "s3://bucket"
_READER = ReaderName("train", "0", "1", "7.1")
EVERYTHING: tuple[Event, ...] = (
    LeaseEnded(RequestDone("GET", 200, RequestOutcome.HIT, 100, 0.01, 0.1)),
    *(RequestDone("GET", 200, outcome, 100, 0.01, 0.1, hit_bytes=50, job="train") for outcome in RequestOutcome),
    RequestDone("GET", 404, None, 0, 0.01, 0.1),
    Aborted("origin_failed"), ClientRefused("uid"), ClientRefused("origin"), DiskOperationFailed("write", "ENOSPC"),
    AccessLogged("written", 3),
    DiskChanged("down"),
    Evicted(100, "plan", 5, used=True), Evicted(100, "guess", 5, used=False), FetchRetried(_ORIGIN, "reset", True),
    FlightBoarded(), IntegrityFailed("read"), LoopLagged(0.02), OpeningDone(_ORIGIN, 0.1),
    OpeningDone(_ORIGIN, 0.1, "ShardNotFound"), OriginAnswered(_ORIGIN, "GET", 206, 0.1),
    OriginAnswered(_ORIGIN, "GET", 503, 0.1), OriginBytes(_ORIGIN, 100, "demand"), OriginFailed(_ORIGIN, "throttled"),
    OriginOddity(_ORIGIN, "range-as-200"),
    PlanChanged("train", "extended"), ShardOpened(_READER, "skipped"), ReaderWaited("train", 0.5),
    ShardOpened(_READER, "planned"),
    CacheRecovered(1, 1, 0.1), Refetched(_ORIGIN, 10), NotStorable(_ORIGIN),
    NotTar("s3://b/a.tar", "a web page", "train"), ReservationRefused("no-room"),
    Revalidated("same"),
    SegmentFetched(_ORIGIN, 100, 0.1, True, False), SegmentVerified("sample", True),
    DigestChecked("md5", "agrees"), DoorAnswered("passed"), IndexDone("built"),
    MeterTold(_READER, MeterBody(10.0, dict.fromkeys(CAUSES, 0.1), 5)),
)  # fmt: skip
