"""A set that is declared by one variable, for programs that announce nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.readers import put_shards, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import forebay, running, small_segments, wait_until

SEGMENT = 1 << 16
COUNT, SIZE = 20, 4 * SEGMENT


@pytest.fixture
def files(tmp_path: Path, origin: ScriptedOrigin) -> list[Path]:
    return put_shards(tmp_path, origin, COUNT, SIZE)


def pattern(origin: ScriptedOrigin) -> str:
    return origin.url(f"/{{00..{COUNT - 1:02d}}}.tar")


async def test_a_variable_is_enough(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """FOREBAY_SET: plain readers, without a name or a plan, find everything here, and the origin is asked once for each byte."""
    with running(
        tmp_path, "--cache-size", "64MB", allow=[origin.base], environ={"FOREBAY_SET": pattern(origin)}, program=small_segments(SEGMENT)
    ) as sidecar:
        await asyncio.to_thread(sidecar.wait_complete, COUNT)
        asked = len(origin.requests)
        for _ in range(2):
            for file in files:
                got = await asyncio.to_thread(read, sidecar.proxied(origin.url(f"/{file.name}")), file)
                assert (got.whole, got.count) == (True, SIZE)
                assert got.headers["cache-status"].startswith("forebay; hit")
        assert sidecar.metric("forebay_origin_bytes_total") == COUNT * SIZE
        # each stored shard is compared with the origin at its first opening, and that is all
        assert len(origin.requests) - asked <= 2 * COUNT


async def test_what_was_warmed_is_declared(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """``forebay warm PATTERN``: what leaves afterwards comes again as soon as somebody reads the set, and not before."""
    with running(tmp_path, "--cache-size", "64MB", allow=[origin.base], program=small_segments(SEGMENT)) as sidecar:
        ended = await asyncio.to_thread(forebay, tmp_path, "warm", pattern(origin), "--url", sidecar.url, "--quiet")
        assert (ended.returncode, ended.stdout.split(",")[0]) == (0, f"{COUNT} shards stored"), ended
        await asyncio.to_thread(sidecar.ask, "/v1/evict", b'{"all": true}', "POST")
        assert await asyncio.to_thread(sidecar.shards) == {}
        assert (await asyncio.to_thread(read, sidecar.proxied(origin.url(f"/{files[3].name}")), files[3])).whole
        await asyncio.to_thread(sidecar.wait_complete, COUNT)


async def test_the_rules_of_access_hold(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """An origin that may not be reached is not, whoever declares its shards; the sidecar serves on."""
    environ = {"FOREBAY_SET": f"{pattern(origin)} http://169.254.169.254/{{0..9}}.tar"}
    with running(tmp_path, "--cache-size", "64MB", "--strict-origins", environ=environ) as sidecar:
        await asyncio.to_thread(wait_until, lambda: "declared set" in sidecar.log_text() and "could not be fetched" in sidecar.log_text())
        assert sidecar.status()["cache"]["stored_bytes"] == 0
        assert origin.requests == []
