"""Stopped or killed in the middle of a fetch, and started again: what was claimed is still here, and every byte is right."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.kills import checksums
from support.readers import make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running, wait_until

from forebay_proxy.core.segments import SEGMENT_BYTES

SIZE = 5 * SEGMENT_BYTES + 54_321


@pytest.fixture
def shard(place: Path) -> Path:
    return make_shard(place / "a.tar", SIZE, 1)


def claimed(cache_dir: Path) -> int:
    """Segments that the index claims now, read as anybody could: from the database, without the sidecar."""
    with closing(sqlite3.connect(f"file:{cache_dir}/index/cache.db?mode=ro", uri=True, timeout=10)) as index:
        if not index.execute("SELECT * FROM sqlite_master WHERE name = 'Cache'").fetchall():
            return 0  # made with the first row
        rows = index.execute("SELECT value FROM Cache WHERE raw AND value LIKE '{%'").fetchall()
    return sum(len(checksums(json.loads(value))) for (value,) in rows)


def hold_from(origin: ScriptedOrigin, shard: Path, segments: int, path: str = "/a.tar") -> asyncio.Event:
    """The origin gives ``segments`` segments, and of those asked for later a MiB each until the gate opens."""
    gate = asyncio.Event()
    origin.put(path, shard.read_bytes(), body_gate=gate, gate_at=1 << 20)
    for _ in range(segments):
        origin.next(path, body_gate=None)
    return gate


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_claimed_segments_survive(place: Path, origin: ScriptedOrigin, shard: Path, how: str) -> None:
    """Ended in mid-fetch: after the start, what the index claimed is read from the disk, and only the rest is fetched."""
    gate = hold_from(origin, shard, 3)
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        reading = asyncio.ensure_future(asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard))
        await asyncio.to_thread(wait_until, lambda: claimed(sidecar.cache_dir) >= 3)
        await asyncio.to_thread(getattr(sidecar, how))
        broken = await reading
    assert not broken.whole, "a body cut by the end of the sidecar never looks complete"
    kept = claimed(place / "cache")
    gate.set()
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        found = sidecar.shards()[origin.url("/a.tar")]
        got = await asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard)
        fetched = sidecar.status()["bytes"]["origin"]
    assert found["segments"] == kept >= 3
    assert (got.whole, got.count) == (True, SIZE)
    assert fetched == SIZE - found["stored_bytes"]
    print(f"{how}: {broken.count} bytes read, {kept} segments claimed; afterwards {fetched} of {SIZE} bytes fetched")


async def test_what_is_not_ours_stays(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """Files nobody knows are named at the start and outlive eviction of everything; they count against the limit."""
    origin.put("/a.tar", shard.read_bytes())
    strangers = [place / "cache" / "thesis.txt", place / "cache" / "shards" / "notes"]
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        await asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard)
    for stranger in strangers:
        stranger.write_text("precious")
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        notices = " ".join(sidecar.status()["notices"])
        sidecar.ask("/v1/evict", b'{"all": true}')
        assert sidecar.shards() == {}
    assert [stranger.read_text() for stranger in strangers] == ["precious"] * 2
    assert all(stranger.name in notices for stranger in strangers), notices
