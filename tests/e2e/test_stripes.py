"""Fewer shards than workers, through a real sidecar: workers share a shard sample by sample, and the origin gives each byte once."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.scripted_origin import ScriptedOrigin
from support.sidecar import running
from support.tars import expected, tar_shard
from support.training import begin_training, epoch_of, write_script

pytestmark = pytest.mark.webdataset

SHARDS, SAMPLES, SAMPLE_BYTES, WORKERS = 2, 20, 600_000, 5
DATASET = "fb.WebDataset(sys.argv[1], shardshuffle=True)"


@pytest.fixture
async def origin() -> AsyncIterator[ScriptedOrigin]:
    async with ScriptedOrigin() as made:
        for number in range(SHARDS):
            made.put(f"/{number}.tar", tar_shard(number, SAMPLES, SAMPLE_BYTES))
        yield made


def told(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 7, errors
    return output


async def test_stripes_cost_no_origin_bytes(place: Path, origin: ScriptedOrigin) -> None:
    """Five workers on two shards: every sample once, each worker opens one shard, and no byte is asked for twice."""
    script = write_script(place, DATASET, "import forebay_loader as fb")
    with running(place, "--cache-size", "200MB", allow=[origin.base]) as sidecar:
        urls, found = origin.url(f"/{{0..{SHARDS - 1}}}.tar"), {"FOREBAY_URL": sidecar.url, "FOREBAY_FD": "0"}
        output = await asyncio.to_thread(told, begin_training(place, script, urls, str(WORKERS), **found))
        asked = sum(sidecar.status()["requests"].values())
    assert sorted(key for key, _, _ in epoch_of(output).samples) == sorted(expected(SHARDS, SAMPLES, SAMPLE_BYTES))
    assert asked == WORKERS
    for number in range(SHARDS):
        spans = [str(request.range).removeprefix("bytes=").split("-") for request in origin.seen(f"/{number}.tar")]
        assert len(spans) > 1
        ranges = sorted((int(first), int(last)) for first, last in spans)
        assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(ranges)), ranges
