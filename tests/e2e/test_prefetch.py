"""What is announced is fetched before it is opened, and whoever waits now goes first."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.readers import make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running, wait_until

from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES

SIZE = 2 * SEGMENT_BYTES + 777
READER = "job/0/0/1.1"


async def test_the_next_shard_is_here_before_it_is_opened(place: Path, origin: ScriptedOrigin) -> None:
    """A plan of three: the second is complete while the first is still being read, and its opening asks the origin nothing."""
    files = [make_shard(place / f"{number}.tar", SIZE, number) for number in range(3)]
    for file in files:
        origin.put(f"/{file.name}", file.read_bytes())
    urls = [origin.url(f"/{file.name}") for file in files]
    headers = {"Forebay-Reader": READER}
    with running(place, "--cache-size", "200MB", allow=[origin.base]) as sidecar:
        await asyncio.to_thread(sidecar.plan, READER, urls)
        await asyncio.to_thread(wait_until, lambda: sidecar.shards().get(urls[1], {}).get("complete"))
        first = await asyncio.to_thread(read, sidecar.proxied(urls[0]), files[0], headers=headers)
        asked = len(origin.seen("/1.tar"))
        second = await asyncio.to_thread(read, sidecar.proxied(urls[1]), files[1], headers=headers)
        plan = next(plan for plan in sidecar.status()["plans"] if plan["reader"] == READER)
        prefetched = sidecar.metric("forebay_origin_bytes_total", kind="prefetch")
    assert first.whole
    assert second.whole
    assert second.headers["cache-status"].startswith("forebay; hit")
    assert len(origin.seen("/1.tar")) == asked == DEFAULT_LAYOUT.count(SIZE)
    assert plan["position"] == 2
    assert prefetched >= 2 * SIZE
    print(f"second shard: first byte after {second.first_byte_s * 1e3:.1f} ms; {prefetched:.0f} bytes prefetched")


async def test_demand_goes_first(place: Path, origin: ScriptedOrigin) -> None:
    """Every slot that prefetch may have is taken by bodies that do not end; a reader of another shard is served all the same."""
    gate = asyncio.Event()
    wanted = make_shard(place / "wanted.tar", SIZE, 99)
    origin.put("/wanted.tar", wanted.read_bytes())
    for number in range(40):
        origin.put(f"/{number}.tar", bytes(1_000_000), etag=f'"{number}"', body_gate=gate, gate_at=1000)
    urls = [origin.url(f"/{number}.tar") for number in range(40)]
    with running(place, "--cache-size", "500MB", "--origin-connections", "8", allow=[origin.base]) as sidecar:
        await asyncio.to_thread(sidecar.plan, READER, urls)
        await asyncio.wait_for(origin.until(lambda: len(origin.requests) >= 6), 60)  # two, and after a second without a byte the rest
        got = await asyncio.to_thread(read, sidecar.proxied(origin.url("/wanted.tar")), wanted)
        busy = len([request for request in origin.requests if request.path != "/wanted.tar"])
        gate.set()
        assert (got.whole, got.count) == (True, SIZE)
        assert busy <= 6, "a quarter of the slots takes demand only"
    print(f"demand took {got.last_byte_s * 1e3:.0f} ms beside {busy} prefetches that stood still")


async def test_a_withdrawn_plan_fetches_nothing_more(place: Path, origin: ScriptedOrigin) -> None:
    """DELETE while the origin is held: what is in the air lands, and no further shard is asked for."""
    gate = asyncio.Event()
    for number in range(40):
        origin.put(f"/{number}.tar", bytes(100_000), etag=f'"{number}"', body_gate=gate)
    with running(place, "--cache-size", "200MB", "--origin-connections", "4", allow=[origin.base]) as sidecar:
        await asyncio.to_thread(sidecar.plan, READER, [origin.url(f"/{number}.tar") for number in range(40)])
        await asyncio.wait_for(origin.until(lambda: len(origin.requests) >= 3), 60)
        await asyncio.to_thread(sidecar.ask, f"/v1/plans/{READER}", None, "DELETE")
        gate.set()
        await asyncio.to_thread(wait_until, lambda: sidecar.status()["cache"]["in_flight"] == 0)
        assert sidecar.status()["plans"] == []
    asked = {request.path for request in origin.requests}
    assert len(asked) <= 16 + 4, "openings that had begun, and no more"
    print(f"{len(asked)} of 40 shards were asked for")
