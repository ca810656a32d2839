"""The demo's origin: slow where it says so, right about bytes, and able to break off."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from demo.origin import Origin

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "a.tar").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture
async def origin(directory: Path) -> AsyncIterator[Origin]:
    async with Origin(directory, latency_s=0, rate_bytes_s=None) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize(
    ("asked", "first", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=100-199", 100, 200), ("bytes=1048000-", 1048000, 1048576), ("bytes=-10", 1048566, 1048576)],
)
async def test_range(origin: Origin, http: aiohttp.ClientSession, asked: str, first: int, stop: int) -> None:
    """One Range gives 206 with a true Content-Range and just those bytes."""
    async with http.get(origin.url("a.tar"), headers={"Range": asked}) as answer:
        assert answer.status == 206
        assert answer.headers["Content-Range"] == f"bytes {first}-{stop - 1}/{len(CONTENT)}"
        assert await answer.read() == CONTENT[first:stop]


@pytest.mark.parametrize("path", ["b.tar", "../secret", "%2e%2e/secret", ""])
async def test_only_files_below_the_root(origin: Origin, http: aiohttp.ClientSession, directory: Path, path: str) -> None:
    """Absent files, directories and ways out of the root are 404."""
    async with http.get(f"{origin.base}/{path}") as answer:
        assert answer.status == 404


async def test_counts(origin: Origin, http: aiohttp.ClientSession) -> None:
    """Requests and body bytes are counted, and the counts are served without counting themselves."""
    for _ in range(3):
        async with http.get(origin.url("a.tar"), headers={"Range": "bytes=0-99"}) as answer:
            await answer.read()
    async with http.get(f"{origin.base}/-/counts") as answer:
        counts = await answer.json(content_type=None)
    assert (counts["requests"], counts["ranged"], counts["bytes"], counts["per_path"]) == (3, 3, 300, {"/a.tar": 3})


async def test_cut_happens_once(origin: Origin, http: aiohttp.ClientSession) -> None:
    """A cut ends the next body that crosses it, exactly there; the one after is whole."""
    origin.cut_once("a.tar", 5000)
    got = b""
    async with http.get(origin.url("a.tar")) as answer:
        with contextlib.suppress(aiohttp.ClientPayloadError):
            while chunk := await answer.content.readany():
                got += chunk
    async with http.get(origin.url("a.tar")) as answer:
        assert await answer.read() == CONTENT
    assert (got, origin.counts.cuts) == (CONTENT[:5000], 1)


async def test_latency_and_rate(directory: Path, http: aiohttp.ClientSession) -> None:
    """An answer takes its latency, and a body no less than its size over the rate."""
    async with Origin(directory, latency_s=0.05, rate_bytes_s=5e6) as slow:
        asked = time.perf_counter()
        async with http.get(slow.url("a.tar")) as answer:
            headers_s = time.perf_counter() - asked
            await answer.read()
        whole_s = time.perf_counter() - asked
    assert headers_s >= 0.05
    assert whole_s >= 0.05 + (len(CONTENT) - 256 * 1024) / 5e6
