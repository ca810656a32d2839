"""Shards that change on their origin, and origins that say no: never a mix, and no origin is asked twice for a refusal."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from support import nginx as servers
from support.readers import Got, make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running
from support.tars import tar_shard

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


async def test_a_refusal_is_remembered_for_5_seconds(place: Path, origin: ScriptedOrigin) -> None:
    """Ten readers of each, one question to the origin; after 5 s it is asked again, and what is there now is served."""
    statuses = (401, 403, 404)
    for status in statuses:
        origin.put(f"/{status}.tar", b"", status=status)
    with running(place, "--cache-size", "100MB", allow=[origin.base]) as sidecar:
        urls = [sidecar.proxied(origin.url(f"/{status}.tar")) for status in statuses]
        started = time.monotonic()
        answers = await asyncio.gather(*(asyncio.to_thread(read, url) for url in urls * 10))
        answered = time.monotonic()
        asked = len(origin.requests)
        origin.put("/404.tar", b"now it is here")
        while (got := await asyncio.to_thread(read, urls[2])).status == 404:
            await asyncio.sleep(0.02)
        earliest, latest = time.monotonic() - answered, time.monotonic() - started
    assert [answer.status for answer in answers] == [*statuses] * 10
    assert {answer.headers["content-type"] for answer in answers} == {"application/problem+json"}
    assert asked == 3
    assert earliest < 30  # of a busy machine; not for ever
    assert latest > 4.9
    assert got.body == b"now it is here"


async def test_a_cut_body_is_resumed(place: Path, origin: ScriptedOrigin) -> None:
    """The origin breaks off in the middle of a segment: asked again from the next byte with If-Match, and no reader notices.

    The next byte is the first that was not read yet: what the HTTP client still had in its buffer (256 KiB) is lost with the connection.
    """
    shard = make_shard(place / "a", SIZE, 1)
    origin.put("/a.tar", shard.read_bytes())
    origin.next("/a.tar", cut_after=3_000_000)
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        got = await asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard)
        assert sidecar.metric("forebay_origin_resumes_total") == 1
    starts = [(int(request.headers["range"].removeprefix("bytes=").split("-")[0]), request) for request in origin.requests]
    ((start, resumed),) = ((start, request) for start, request in starts if start % SEGMENT_BYTES)
    assert 3_000_000 - 2**19 < start <= 3_000_000
    assert (got.whole, got.count) == (True, SIZE)
    assert resumed.headers["if-match"] == '"v1"'


async def test_an_end_that_may_be_a_cut_is_none(place: Path, origin: ScriptedOrigin) -> None:
    """No length, no ETag, the connection closes: whole only where a tar's end was seen; else the reader's connection is cut too."""
    shard = place / "a"
    shard.write_bytes(tar_shard(1, 20, 100_000))
    size = shard.stat().st_size
    origin.put("/a.tar", shard.read_bytes(), framing="close", ranges=False, etag=None)
    origin.next("/a.tar", cut_after=size // 2)
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        cut = await asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard)
        whole = await asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard)
    assert not cut.whole
    assert (whole.whole, whole.count) == (True, size)
