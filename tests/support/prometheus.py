"""A real Prometheus for tests: started on a port the kernel picks, asked over its HTTP API, stopped and forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

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
    FetchJoined,
    FetchRetried,
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
    ReaderWaited,
    RequestDone,
    RequestOutcome,
    ShardOpened,
)
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.usage import Usage
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = [
    "Prometheus",
    "busy_metrics",
    "needs_prometheus",
    "needs_promtool",
    "promtool",
    "running_prometheus",
]


_WHY = "not found: apt-get install --no-install-recommends prometheus"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=f"prometheus {_WHY}")
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=f"promtool {_WHY}")

_LISTENS = re.compile(r'msg="Listening on" address=(127\.0\.0\.1:\d+)')
_START_S = 120
_CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: forebay, static_configs: [{{targets: ["{target}"]}}]}}]
"""


@dataclass(frozen=True)
class Prometheus:
    """A running server at ``url``."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of ``expression``; AssertionError with the server's own words when it refuses it."""
        answer = self._get("/api/v1/query", query=expression)
        assert answer["status"] == "success", (expression, answer)
        result = answer["data"]["result"]
        assert isinstance(result, list), (expression, answer)
        return result

    def rules(self) -> list[dict[str, Any]]:
        """The alert rules with their health and last error."""
        return [rule for group in self._get("/api/v1/rules")["data"]["groups"] for rule in group["rules"]]

    def wait_for(self, expression: str, *, within_s: float = 120) -> list[dict[str, Any]]:
        """Ask until ``expression`` has a result. Scrapes cannot be waited for in another way."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if result := self.query(expression):
                return result
            time.sleep(0.1)
        raise AssertionError(f"no result for {expression} within {within_s} s; targets: {self._get('/api/v1/targets')}")

    def _get(self, path: str, **query: str) -> Any:
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=120) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:  # 400 carries the reason a query was refused
            return json.load(error)


def promtool(*arguments: str) -> None:
    """Run promtool; AssertionError with all it said when it is not content."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def running_prometheus(directory: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """Scrape ``target`` (host:port) every second with the rules of the file ``rules``; data and log lie in ``directory``."""
    config = directory / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=json.dumps(str(rules)), target=target), encoding="utf-8")
    log = directory / "prometheus.log"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}", "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            yield Prometheus(f"http://{_address(process, log)}")
        finally:
            process.terminate()
            process.wait(240)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, as its log says: with port 0 nobody else can take the port in between."""
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        said = log.read_text(encoding="utf-8", errors="replace")
        if (found := _LISTENS.search(said)) and "Server is ready to receive web requests" in said:
            return found.group(1)
        time.sleep(0.02)
    raise AssertionError(f"prometheus did not start: {log.read_text(encoding='utf-8', errors='replace')[-2000:]}")


# Something to scrape: the real sidecar as a process of its own, or the metrics alone with every fact happening all the time.
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
    FetchJoined(), IntegrityFailed("read"), LoopLagged(0.02), OpeningDone(_ORIGIN, 0.1),
    OpeningDone(_ORIGIN, 0.1, "ShardNotFound"), OriginAnswered(_ORIGIN, "GET", 206, 0.1),
    OriginAnswered(_ORIGIN, "GET", 503, 0.1), OriginBytes(_ORIGIN, 100, "demand"), OriginFailed(_ORIGIN, "throttled"),
    OriginOddity(_ORIGIN, "range-as-200"),
    ShardOpened(_READER, "skipped"), ReaderWaited("train", 0.5),
    ShardOpened(_READER, "planned"),
    CacheRecovered(1, 1, 0.1), Refetched(_ORIGIN, 10), NotStorable(_ORIGIN),
    NotTar("s3://b/a.tar", "a web page", "train"), ReservationRefused("no-room"),
    Revalidated("same"),
    SegmentFetched(_ORIGIN, 100, 0.1, True, False), SegmentVerified("sample", True),
    DigestChecked("md5", "agrees"), DoorAnswered("passed"), IndexDone("built"),
    MeterTold(_READER, MeterBody(10.0, dict.fromkeys(CAUSES, 0.1), 5)),
)  # fmt: skip
