"""Shards that change on their origin: never a mix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import nginx as servers
from support.readers import Got, make_shard, read
from support.sidecar import running

from forebay_proxy.core.segments import SEGMENT_BYTES

SIZE = 3 * SEGMENT_BYTES + 999


def same(got: Got, file: Path) -> bool:
    return got.whole and got.body == file.read_bytes()


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
