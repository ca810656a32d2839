"""The parts put together: what a sidecar does by itself once a second."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.http_server import request, talk
from support.seams import refuses

from forebay_proxy.app import service
from forebay_proxy.app.service import measure_lag, serve
from forebay_proxy.app.shutdown import Shutdown
from forebay_proxy.app.status import ServiceInfo
from forebay_proxy.config.settings import load
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.facts.requests import LoopLagged

pytestmark = pytest.mark.each_python


@asynccontextmanager
async def serving(place: Path) -> AsyncIterator[int]:
    """The port of a sidecar of the files below ``place / "root"``; at the end of the ``with`` it ends in good order."""
    (place / "run").mkdir(mode=0o700, exist_ok=True)
    environ = {"XDG_RUNTIME_DIR": str(place / "run"), "HOME": str(place)}
    given: dict[str, Any] = {"port": 0, "cache_dir": place / "cache", "cache_size": "64MiB", "file_root": [str(place / "root")]}
    known: asyncio.Future[ServiceInfo] = asyncio.get_running_loop().create_future()
    ending = Shutdown(0.0)
    running = asyncio.create_task(serve(load(given, environ), announce=known.set_result, environ=environ, ending=ending))
    try:
        yield (await asyncio.wait_for(known, 60)).port
    finally:
        ending.asked.set()
        assert await asyncio.wait_for(running, 60) == ExitCode.DONE


async def shards_of(port: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await talk(port, request("GET", "/v1/shards"))).json["shards"]
    return found


async def test_what_a_start_found_is_counted(tmp_path: Path) -> None:
    """Segments that are here from the last run, and those of a file that is gone."""
    (tmp_path / "root").mkdir()
    for name in "ab":
        (tmp_path / "root" / f"{name}.tar").write_bytes(bytes(512))
    async with serving(tmp_path) as port:
        for name in "ab":
            await talk(port, request("GET", f"/file{tmp_path}/root/{name}.tar"))
        async with asyncio.timeout(60):
            while not all(shard["complete"] for shard in await shards_of(port)):
                await asyncio.sleep(0.01)
        gone = (await shards_of(port))[0]["key"]
    next((tmp_path / "cache").rglob(gone)).unlink()
    async with serving(tmp_path) as port:
        metrics = (await talk(port, request("GET", "/metrics"))).body.decode()
    for outcome in ("kept", "dropped"):
        assert f'forebay_recovery_segments_total{{outcome="{outcome}"}} 1.0' in metrics


async def test_what_keeps_it_from_beginning_comes_out_as_itself(tmp_path: Path) -> None:
    """A port that is taken is found inside the task group: no group comes out, and no older Python makes a fault of it (3.11.2 did)."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(run), "HOME": str(tmp_path)}
    ending = Shutdown(0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = load({"port": port, "cache_dir": tmp_path / "cache", "cache_size": "64MiB"}, environ)
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is taken"):
            await serve(settings, announce=lambda info: None, environ=environ, ending=ending)
    assert ending.code == ExitCode.CANNOT_BEGIN


async def test_a_fault_ends_it_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours is no ConfigError: exit code 3, and its name in the log."""
    run = tmp_path / "run"
    run.mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(run), "HOME": str(tmp_path)}
    refuses(monkeypatch, service, ZeroDivisionError(), "adopt")
    settings = load({"port": 0, "cache_dir": tmp_path / "cache", "cache_size": "64MiB"}, environ)
    assert await serve(settings, announce=lambda info: None, environ=environ) == ExitCode.FAULT
    assert "a fault in Forebay itself: ZeroDivisionError" in caplog.text


async def _first_lag(clock_steps: list[float]) -> float:
    events, seen, told = Events(), list[Event](), asyncio.Event()
    events.listen(seen.append)
    events.listen(lambda _: told.set())
    task = asyncio.create_task(measure_lag(events, every_s=0.001, clock=lambda: clock_steps.pop(0) if clock_steps else 100.0))
    await told.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert isinstance(seen[0], LoopLagged)
    return seen[0].seconds


async def test_lag_is_what_exceeds_the_wish() -> None:
    """Asked for 1 ms, back after 501 ms: half a second of lag; a timer that fires a tick early is none."""
    assert abs(await _first_lag([10.0, 10.501]) - 0.5) < 1e-9
    assert await _first_lag([10.0, 10.0005]) == 0
