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
from support.sidecar import forebay, running, start, wait_until

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


def test_a_directory_has_one_owner(place: Path) -> None:
    """A second serve on it exits 2 and says who has it; the first goes on. After a kill -9 it is free."""
    with running(place, "--cache-size", "100MB") as sidecar:
        second = forebay(place, "serve", "--port", "0", "--socket", "off", "--cache-dir", str(place / "cache"))
        assert (second.returncode, second.stderr.count("\n")) == (2, 1), second.stderr
        assert f"owned by pid {sidecar.process.pid}, serving {sidecar.url}" in second.stderr
        assert sidecar.ask("/readyz")
        sidecar.kill()
    with running(place, "--cache-size", "100MB") as again:
        assert again.ask("/readyz")


def test_a_named_port_that_is_taken(place: Path) -> None:
    """A port that was named and is taken: exit 2, one line with it."""
    first = start(place, "--cache-size", "100MB", "--port", "0", cache="one")
    try:
        other = forebay(place, "serve", "--port", str(first.port), "--cache-dir", str(place / "two"))
        assert (other.returncode, other.stderr.count("\n")) == (2, 1), other.stderr
        assert str(first.port) in other.stderr
    finally:
        assert first.terminate() == 0


def test_the_default_port_moves_on(place: Path) -> None:
    """7070 is a wish: taken by us or by anybody else, the next free one is used, and the run file says which."""
    one = start(place, "--cache-size", "100MB", cache="one", default_port=True)
    two = None
    try:
        two = start(place, "--cache-size", "100MB", cache="two", default_port=True)
        assert 7070 <= one.port < two.port
        status = [json.loads(forebay(place, "status", "--json", "--url", each.url).stdout) for each in (one, two)]
        assert [found["cache_dir"] for found in status] == [str(place / "one"), str(place / "two")]
    finally:
        for each in (one, two):
            if each is not None:
                assert each.terminate() == 0
