"""What a finished job has read makes way for what a live one reads: real connections say which is which."""

from __future__ import annotations

import asyncio
import http.client
import random
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, small_segments

from forebay_proxy.wire.protocol.keepalive import hold

SEGMENT = 1 << 18
COUNT, SIZE = 60, SEGMENT
LOOKED_THROUGH_S = 4.0  # the order of leaving is looked through once a second; an epoch of this test may take less than that
CACHE_BYTES = 36 * SIZE + 5 * 2**20  # index and log take some MiB of it


@pytest.fixture
def sets(origin: ScriptedOrigin) -> dict[str, list[str]]:
    """Two sets in one folder."""
    for name in ("a", "b"):
        for number in range(COUNT):
            origin.put(f"/set/{name}-{number:03}.tar", random.Random(f"{name}{number}").randbytes(SIZE))
    return {name: [origin.url(f"/set/{name}-{number:03}.tar") for number in range(COUNT)] for name in ("a", "b")}


class Trainer:
    """Reads over one connection, as a worker does."""

    def __init__(self, sidecar: Sidecar, job: str) -> None:
        self._sidecar = sidecar
        self._headers = {"Forebay-Reader": f"{job}/0/0/1.1"}
        self._connection = http.client.HTTPConnection(urlsplit(sidecar.url).netloc, timeout=120)

    def epoch(self, urls: Sequence[str]) -> float:
        """Bytes the origin sent for it."""
        before = self._sidecar.metric("forebay_origin_bytes_total")
        for url in random.Random(3).sample(urls, len(urls)):
            self._connection.request("GET", urlsplit(self._sidecar.proxied(url)).path, headers=self._headers)
            assert len(self._connection.getresponse().read()) == SIZE
        return self._sidecar.metric("forebay_origin_bytes_total") - before

    def close(self) -> None:
        self._connection.close()


async def test_a_jobs_bytes_leave_first_once_it_is_over(tmp_path: Path, origin: ScriptedOrigin, sets: dict[str, list[str]]) -> None:
    """With the last hold and the last connection of a job that was held, as soon as the cache has looked through its order again."""

    def read(sidecar: Sidecar) -> list[float]:
        with hold(sidecar.url, job="first"), closing(Trainer(sidecar, "first")) as first:
            for _ in range(2):
                first.epoch(sets["a"])
        time.sleep(LOOKED_THROUGH_S)
        with closing(Trainer(sidecar, "second")) as second:
            return [second.epoch(sets["b"]) / SIZE for _ in range(4)]

    with running(tmp_path, "--cache-size", str(CACHE_BYTES), allow=[origin.base], program=small_segments(SEGMENT)) as sidecar:
        found = await asyncio.to_thread(read, sidecar)
        here = list(sidecar.shards())
        assert not [url for url in here if "/a-" in url]
        assert max(found[1:]) <= 1.05 * (COUNT - len(here)) + 1, (found, len(here))
