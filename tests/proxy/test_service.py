"""The parts put together: what a sidecar does by itself once a second."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.face import request, talk

from forebay_proxy import openings, prefetch, service
from forebay_proxy.ending import Ending
from forebay_proxy.service import ServiceInfo, serve
from forebay_proxy.settings import load


async def test_a_failed_opening_is_tried_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planned shard appears at its origin later; nobody asks, and it comes."""
    monkeypatch.setattr(prefetch, "FAILED_S", 0.1)
    monkeypatch.setattr(openings, "REMEMBERED_S", 0.0)
    monkeypatch.setattr(service, "TICK_S", 0.02)
    root, run = tmp_path / "root", tmp_path / "run"
    root.mkdir()
    run.mkdir(mode=0o700)
    environ = {"XDG_RUNTIME_DIR": str(run), "HOME": str(tmp_path)}
    settings = load({"port": 0, "cache_dir": tmp_path / "cache", "cache_size": "64MiB", "file_root": [str(root)]}, environ, None)
    known: asyncio.Future[ServiceInfo] = asyncio.get_running_loop().create_future()
    ending = Ending(0.0)
    running = asyncio.create_task(serve(settings, announce=known.set_result, environ=environ, ending=ending))
    try:
        port = (await asyncio.wait_for(known, 20)).port
        shard = root / "late.tar"
        body = json.dumps({"shards": [f"file://{shard}"]}).encode()
        sent = request("PUT", "/v1/plans/job/0/0/0", {"Content-Type": "application/json"}, body)
        assert (await talk(port, sent)).status == 204
        async with asyncio.timeout(20):
            while b'error="ShardNotFound"' not in (await talk(port, request("GET", "/metrics"))).body:
                await asyncio.sleep(0.01)
            shard.write_bytes(bytes(range(256)))
            while not any(known["complete"] for known in (await talk(port, request("GET", "/v1/shards"))).json["shards"]):
                await asyncio.sleep(0.01)
    finally:
        ending.asked.set()
        await asyncio.wait_for(running, 20)
