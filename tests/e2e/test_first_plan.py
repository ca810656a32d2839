"""A worker announces what comes before it has the first shard: real DataLoader workers, whose first bodies the origin holds back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.lengths import ordinarily
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, wait_until
from support.tars import tar_shard
from support.training import (
    DATASET,
    PATTERN,
    SAMPLE_BYTES,
    SAMPLES,
    SHARDS,
    STAGES,
    STOCK,
    begin_training,
    epoch_of,
    popen,
    whole_epoch,
    write_script,
)

pytest.importorskip("torch")
pytestmark = pytest.mark.webdataset

IMPORT = "import forebay_loader as fb"
OPENCLIP = """wds.DataPipeline(
        wds.SimpleShardList(sys.argv[1]), wds.detshuffle(1), wds.split_by_node, wds.split_by_worker, wds.tarfile_to_samples()
    )"""


def hold_back(origin: ScriptedOrigin) -> asyncio.Event:
    """All shards; the bodies of the first two come when the event is set."""
    gate = asyncio.Event()
    for shard in range(SHARDS):
        body = tar_shard(shard, SAMPLES, SAMPLE_BYTES)
        origin.put(f"/train-{shard:03d}.tar", body, etag=f'"{shard}"', body_gate=gate if shard < 2 else None)
    return gate


def plans(sidecar: Sidecar) -> dict[str, int]:
    """rank/worker -> how many shards it has announced. ``forebay run`` names the job."""
    return {"/".join(plan["reader"].split("/")[1:3]): plan["length"] for plan in json.loads(sidecar.ask("/v1/plans"))["plans"]}


# What a run takes over of which version is told by e2e/test_takeover.py. Its Python imports torch itself.
WAYS = [
    pytest.param(DATASET, IMPORT, False, id="WebDataset"),
    pytest.param(STAGES, f"{IMPORT}\nfb.enable()", False, id="ahead"),
    pytest.param(OPENCLIP, "", True, id="run-DataPipeline", marks=pytest.mark.once),
    pytest.param(STOCK, "", True, id="run", marks=pytest.mark.once),
]


@pytest.mark.parametrize(("dataset", "prelude", "ran"), WAYS[: ordinarily(3, of=4, what="ways to announce before the first shard")])
async def test_the_rest_is_fetched_while_the_first_is_awaited(
    place: Path, origin: ScriptedOrigin, dataset: str, prelude: str, ran: bool
) -> None:
    """No worker has a byte of its first shard: both plans are known, and all the other shards are here whole."""
    gate = hold_back(origin)
    urls = [origin.url(f"/train-{shard:03d}.tar") for shard in range(SHARDS)]
    script, url = write_script(place, dataset, prelude), origin.url("/" + PATTERN)
    with running(place, "--cache-size", "200MB", allow=[origin.base]) as sidecar:
        told = {"FOREBAY_URL": sidecar.url}
        process = (
            popen(place, ["forebay", "run", "--", "python", str(script), url, "2"], **told)
            if ran
            else begin_training(place, script, url, "2", **told)
        )
        try:
            await asyncio.to_thread(wait_until, lambda: plans(sidecar) == {"0/0": SHARDS // 2, "0/1": SHARDS // 2})
            await asyncio.to_thread(wait_until, lambda: sum(shard["complete"] for shard in sidecar.shards().values()) == SHARDS - 2)
            complete = {url for url, shard in sidecar.shards().items() if shard["complete"]}
        finally:
            gate.set()
            output, errors = await asyncio.to_thread(process.communicate, timeout=240)
        deviations = sidecar.metric("forebay_plan_deviation_total")
    assert process.returncode == 7, errors
    assert complete == set(urls[2:])
    assert whole_epoch(epoch_of(output))
    assert len(origin.requests) == SHARDS, "each shard once"
    assert deviations == 0
