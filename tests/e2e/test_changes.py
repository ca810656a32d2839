"""Shards that change on their origin: never a mix."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support import nginx as servers
from support.readers import Got, make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running

from forebay_proxy.core.segments import FIRST_BREADTH, SEGMENT_BYTES

SIZE = 3 * SEGMENT_BYTES + 999


def same(got: Got, file: Path) -> bool:
    return got.whole and got.body == file.read_bytes()


async def test_a_change_in_the_middle_is_an_abort(place: Path, origin: ScriptedOrigin) -> None:
    """Bytes of the old version, then an end that no client takes for one; the next open has the new version whole."""
    old, new = make_shard(place / "old", SIZE, 1), make_shard(place / "new", SIZE, 2)
    gate = asyncio.Event()
    origin.put("/a.tar", old.read_bytes(), etag='"old"')
    origin.next("/a.tar")
    for _ in range(FIRST_BREADTH - 1):  # the later segments are answered when the shard is another one: by their If-Match, 412
        origin.next("/a.tar", gate=gate, status=412)
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        url = sidecar.proxied(origin.url("/a.tar"))
        reading = asyncio.ensure_future(asyncio.to_thread(read, url, old))
        await origin.until(lambda: len(origin.requests) >= FIRST_BREADTH)
        origin.put("/a.tar", new.read_bytes(), etag='"new"')
        gate.set()
        cut = await reading
        fresh = await asyncio.to_thread(read, url)
        aborted = sidecar.metric("forebay_responses_aborted_total", reason="changed")
    assert not cut.whole
    assert cut.count <= SIZE
    assert same(fresh, new)
    assert aborted == 1
    assert all("if-match" in request.headers for request in origin.requests[1:FIRST_BREADTH])


@pytest.mark.needs("nginx")
async def test_a_replaced_file_is_seen_by_the_next_job(place: Path) -> None:
    """nginx: one job keeps what it began with, the next compares with the origin and gets the new version, whole."""
    (place / "files").mkdir()
    first, second = make_shard(place / "1", SIZE, 1), make_shard(place / "2", SIZE - 5, 2)
    shard = place / "files" / "a.tar"
    os.link(first, shard)
    with (
        servers.nginx(place / "nginx", place / "files") as origin,
        running(place, "--cache-size", "500MB", allow=[origin.base()]) as sidecar,
    ):
        url = sidecar.proxied(origin.url("a.tar"))
        before = read(url, headers={"Forebay-Reader": "one/0/0/1.0"})
        os.link(second, place / "files" / "next")
        (place / "files" / "next").rename(shard)
        again = read(url, headers={"Forebay-Reader": "one/0/0/1.0"})
        after = read(url, headers={"Forebay-Reader": "two/0/0/1.0"})
        assert sidecar.metric("forebay_revalidations_total", result="changed") == 1
        stored = sidecar.shards()[origin.url("a.tar")]
    assert same(before, first)
    assert same(again, first)
    assert same(after, second)
    assert before.headers["etag"] != after.headers["etag"]
    assert stored["length_bytes"] == SIZE - 5
