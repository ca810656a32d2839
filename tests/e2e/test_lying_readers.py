"""Readers that do not do what they announced: every read is right."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from support.readers import put_shards, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, small_segments

SEGMENT = 1 << 16
COUNT, SIZE = 24, 12 * SEGMENT + 77  # 19 MB: more than the cache holds


@pytest.fixture
def files(tmp_path: Path, origin: ScriptedOrigin) -> list[Path]:
    return put_shards(tmp_path, origin, COUNT, SIZE)


def get(sidecar: Sidecar, origin: ScriptedOrigin, file: Path, reader: str) -> None:
    """Read a whole shard, every byte compared."""
    got = read(sidecar.proxied(origin.url(f"/{file.name}")), file, headers={"Forebay-Reader": reader})
    assert (got.status, got.whole, got.count) == (200, True, SIZE)


async def test_skipping_repeating_and_straying(tmp_path: Path, origin: ScriptedOrigin, files: list[Path]) -> None:
    """Readers that open what they like, in what order they like, twice or not at all, beside an honest one: every byte is right."""
    urls = [origin.url(f"/{file.name}") for file in files]
    chance = random.Random(3)

    def honest(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/0/1.1", urls)
        for file in files:
            get(sidecar, origin, file, "job/0/0/1.1")

    def skipping(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/1/2.1", urls)
        for file in files[::5]:
            get(sidecar, origin, file, "job/0/1/2.1")

    def repeating(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/2/3.1", urls)
        for file in [file for file in files[:6] for _ in range(3)]:
            get(sidecar, origin, file, "job/0/2/3.1")

    def straying(sidecar: Sidecar) -> None:
        sidecar.plan("job/0/3/4.1", [url.replace(".tar", ".other.tar") for url in urls])  # a data set that is not there
        for file in chance.sample(files, COUNT):
            get(sidecar, origin, file, "job/0/3/4.1")

    with running(tmp_path, "--cache-size", "12MB", allow=[origin.base], program=small_segments(SEGMENT)) as sidecar:
        await asyncio.gather(*(asyncio.to_thread(lie, sidecar) for lie in (honest, skipping, repeating, straying)))
        found = {plan["reader"]: plan for plan in (await asyncio.to_thread(sidecar.status))["plans"]}
        assert found["job/0/0/1.1"]["position"] == COUNT
        assert found["job/0/3/4.1"]["position"] == 0
