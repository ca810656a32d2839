"""Many readers of one shard: one fetch, streamed to all while it runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from support.readers import Got, make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running

from forebay_proxy.core.segments import FIRST_BREADTH

MIB = 1 << 20
SIZE = 80 * MIB + 12_345


@pytest.fixture
def shard(place: Path) -> Path:
    return make_shard(place / "a.tar", SIZE, 1)


def put(origin: ScriptedOrigin, shard: Path, **how: object) -> None:
    """The file as ``/a.tar``, in slices: 64 bodies in the air must not mean 64 copies."""
    data = memoryview(shard.read_bytes())
    origin.put("/a.tar", lambda first, end: bytes(data[first:end]), size=len(data), **how)


async def in_threads(jobs: list[partial[Got]]) -> list[Got]:
    """All at the same time; the loop stays free for the origin."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(pool, job) for job in jobs))


def ranges_asked(origin: ScriptedOrigin) -> list[tuple[int, int]]:
    spans = [request.range for request in origin.seen("/a.tar")]
    return sorted((int(first), int(last)) for first, last in (str(span).removeprefix("bytes=").split("-") for span in spans))


def fetched_once(origin: ScriptedOrigin, size: int) -> None:
    """The ranges asked for touch each other and cover the shard."""
    position = 0
    for first, last in ranges_asked(origin):
        assert first == position, ranges_asked(origin)
        position = min(last + 1, size)
    assert position == size


async def test_a_second_reader_streams_what_is_there(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """While the origin holds back what lies behind 3 MiB, a later reader has what is written (at least 2), and nothing is asked."""
    gate = asyncio.Event()
    put(origin, shard, body_gate=gate, gate_at=3 * MIB)
    with running(place, "--cache-size", "1GB", allow=[origin.base]) as sidecar:
        url = sidecar.proxied(origin.url("/a.tar"))
        first, second = Counting(), Counting()
        reading = [asyncio.ensure_future(asyncio.to_thread(read, url, shard, seen=first.note))]
        await asyncio.to_thread(first.reached.wait, 30)
        await origin.until(lambda: len(origin.requests) >= FIRST_BREADTH)  # what one reader asks for at first
        reading.append(asyncio.ensure_future(asyncio.to_thread(read, url, shard, seen=second.note)))
        await asyncio.to_thread(second.reached.wait, 30)
        assert not gate.is_set()
        assert second.count >= 2 * MIB
        assert len(origin.requests) == FIRST_BREADTH, "the second reader asked for nothing"
        gate.set()
        answers = await asyncio.gather(*reading)
        assert sidecar.metric("forebay_singleflight_joins_total") >= 1
    assert all(got.whole and got.count == SIZE for got in answers)
    assert answers[1].first_byte_s < answers[0].last_byte_s / 2
    fetched_once(origin, SIZE)
    first_byte_s, end_s = answers[1].first_byte_s, answers[0].last_byte_s
    print(f"second reader: first byte after {first_byte_s * 1e3:.1f} ms, the fetch ended after {end_s * 1e3:.0f} ms")


async def test_a_throttled_origin_is_streamed_as_it_comes(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """At 10 MB/s a connection a segment takes 0.8 s, and its first byte a small part of that."""
    put(origin, shard, bytes_per_s=10e6)
    with running(place, "--cache-size", "1GB", allow=[origin.base]) as sidecar:
        url = sidecar.proxied(origin.url("/a.tar"))
        answers = await in_threads([partial(read, url, shard)] * 2)
    for got in answers:
        assert got.whole
        assert got.first_byte_s < got.last_byte_s / 4
    print([f"first byte {got.first_byte_s * 1e3:.0f} ms, last {got.last_byte_s * 1e3:.0f} ms" for got in answers])


class Counting:
    """Knows how far a reader has come. ``reached`` is set at 2 MiB."""

    def __init__(self) -> None:
        self.count = 0
        self.reached = threading.Event()

    def note(self, count: int) -> None:
        self.count = count
        if count >= 2 * MIB:
            self.reached.set()
