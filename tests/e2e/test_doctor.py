"""``forebay doctor`` against what happens: its steps and its losses are those of real loaders over the same shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_proxy import FakeServer
from support.sidecar import Sidecar, forebay, running
from support.tars import tar_shard

pytest.importorskip("webdataset")
DataLoader = pytest.importorskip("torch.utils.data").DataLoader

import forebay_loader as fb  # noqa: E402

pytestmark = pytest.mark.webdataset
COUNTS = (9, 3, 14, 1, 6, 11, 2, 5)
RANKS, WORKERS, BATCH = 2, 2, 4


@pytest.fixture
def origin() -> Iterator[FakeServer]:
    with FakeServer().running() as server:
        for number, samples in enumerate(COUNTS):
            server.put(f"/{number}.tar", tar_shard(number, samples=samples, size=10))
        yield server


@pytest.fixture
def sidecar(place: Path, origin: FakeServer) -> Iterator[Sidecar]:
    with running(place, "--cache-size", "200MB", allow=[origin.url]) as found:
        yield found


def batches(rank: int, urls: str) -> list[int]:
    """Samples of each batch of a rank, as its DataLoader hands them over."""
    import webdataset as wds  # noqa: PLC0415

    data = fb.WebDataset(urls, nodesplitter=wds.split_by_node, data_parallel=(rank, RANKS), shardshuffle=False)
    return [len(keys) for (keys,) in DataLoader(data.to_tuple("__key__").batched(BATCH), batch_size=None, num_workers=WORKERS)]


def test_steps_and_losses_are_those_of_real_loaders(
    place: Path, origin: FakeServer, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by ``forebay index``: steps of each rank, and what lies behind the step at which the first of them ends."""
    urls = f"{origin.url}/{{0..{len(COUNTS) - 1}}}.tar"
    assert forebay(place, "index", urls, "--quiet").returncode == 0
    done = forebay(
        place, "doctor", urls, "--ranks", str(RANKS), "--workers", str(WORKERS), "--batch", str(BATCH), "--shard-size", "1MB", "--json"
    )
    told = json.loads(done.stdout)
    ways = {way["way"]: way for way in told["ways"]}
    plain, voted = ways["shards, as webdataset splits"], ways["shards, equal steps by a vote"]
    monkeypatch.setenv("FOREBAY_URL", sidecar.url)
    taken = [batches(rank, urls) for rank in range(RANKS)]
    assert (told["counted_by"], told["samples"]) == ("sizes.json", sum(COUNTS))
    assert (plain["least_steps"], plain["most_steps"]) == tuple(sorted(map(len, taken)))
    assert voted["lost"] == sum(COUNTS) - sum(sum(steps[: voted["most_steps"]]) for steps in taken) > 0
