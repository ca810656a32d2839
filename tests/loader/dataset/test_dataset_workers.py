"""fb.WebDataset in real DataLoader workers: fresh epochs, stripes, ranks that travel, and pickling."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.tars import expected

import forebay_loader as fb
from forebay_loader.dataset.shard_list import epoch_order

wds = pytest.importorskip("webdataset")
torch = pytest.importorskip("torch")

SHARDS = 6
SAMPLE_BYTES = 10
PATTERN = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
pytestmark = [
    pytest.mark.webdataset,
    pytest.mark.usefixtures("warm_starts", "shards", "alone"),
    pytest.mark.filterwarnings("ignore:.*with_length", "ignore::DeprecationWarning"),
]


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def loader(data: Any, workers: int = 2, start: str = "fork", **how: Any) -> Any:
    return torch.utils.data.DataLoader(
        data.map(key), batch_size=None, num_workers=workers, multiprocessing_context=start if workers else None, **how
    )


def shard_order(keys: list[str], worker: int = 0, workers: int = 1) -> list[int]:
    """The shards as one worker of an alternating loader gave them."""
    return list(dict.fromkeys(int(found[:3]) for found in keys[worker::workers]))


def interleaved(seed: int, epoch: int) -> list[str]:
    """What two workers give in one epoch: both orders, sample by sample in turn."""
    order = epoch_order(SHARDS, seed, epoch)
    each = [[f"{shard:03d}-{n:03d}" for shard in order[worker::2] for n in range(5)] for worker in range(2)]
    return [found for pair in zip(*each, strict=True) for found in pair]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stay", [False, True])
def test_a_fresh_epoch_each_time(workers: int, stay: bool) -> None:
    """Workers of one epoch, workers that stay, and no workers: epoch n is f(seed, n), everything once."""
    loading = loader(fb.WebDataset(PATTERN, shardshuffle=True, seed=3), workers, persistent_workers=stay and bool(workers))
    for epoch in range(3):
        keys = list(loading)
        if workers:
            assert keys == interleaved(3, epoch)
        else:
            assert shard_order(keys) == epoch_order(SHARDS, 3, epoch)


def test_the_sidecar_is_told_the_epoch(shards: FakeServer) -> None:
    """Plans of workers that live for one epoch name it, which such a worker alone could not know."""
    loading = loader(fb.WebDataset(PATTERN, shardshuffle=True))
    told = []
    for _ in range(2):
        before = len(shards.plans)
        list(loading)
        told.append({json.loads(plan.body)["epoch"] for plan in shards.plans[before:] if plan.method == "PUT"})
    assert told == [{0}, {1}]


def test_leaving_early_is_an_epoch() -> None:
    """A loop that breaks has had its epoch: the next one is fresh for both workers."""
    loading = loader(fb.WebDataset(PATTERN, shardshuffle=True))
    next(iter(loading))
    assert list(loading) == interleaved(0, 1)


def test_set_epoch_reaches_workers_that_stay() -> None:
    """A resumed run says where it is."""
    made = fb.WebDataset(PATTERN, shardshuffle=True)
    loading = loader(made, persistent_workers=True)
    list(loading)
    made.set_epoch(20)
    assert [list(loading), list(loading)] == [interleaved(0, 20), interleaved(0, 21)]


def test_a_shared_epoch_is_read() -> None:
    """A trainer's own shared counter, as OpenCLIP has one, decides."""
    counter = torch.multiprocessing.Value("i", 9)
    loading = loader(fb.WebDataset(PATTERN, shardshuffle=True, epoch=counter), persistent_workers=True)
    first = list(loading)
    counter.value = 4
    assert [first, list(loading)] == [interleaved(0, 9), interleaved(0, 4)]


def test_passes_within_an_epoch() -> None:
    """with_epoch over more than there is: pass after pass, each complete and in an order of its own."""
    made = fb.WebDataset(PATTERN, shardshuffle=True).with_epoch(2 * SHARDS * 5)
    keys = [sample["__key__"] for sample in made]
    assert Counter(keys) == dict.fromkeys(expected(SHARDS), 2)
    assert [shard_order(keys[:30]), shard_order(keys[30:])] == [epoch_order(SHARDS, 0, 0), epoch_order(SHARDS, 0, 0, 1)]


@pytest.mark.parametrize("count", [1, 2])
def test_stripes(shards: FakeServer, count: int) -> None:
    """Four workers on fewer shards: every sample once, nobody idle, and each worker opens one shard."""
    urls = [f"s3://bucket/{number:03d}.tar" for number in range(count)]
    keys = list(loader(fb.WebDataset(urls, shardshuffle=True), 4))
    assert sorted(keys) == sorted(expected(count))
    opened = [request.headers["Forebay-Reader"] for request in shards.requests if request.target.startswith("/s3/")]
    assert len(opened) == len(set(opened)) == 4


def test_draws_are_seeded() -> None:
    """resampled=True: the same draws in the same epoch, others in the next, alike in a new run."""
    runs = []
    for _ in range(2):
        loading = loader(fb.WebDataset(PATTERN, resampled=True, shardshuffle=True).with_epoch(60))
        runs.append([list(loading), list(loading)])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_spawned_workers_are_told_everything() -> None:
    """Rank, epoch and length travel into a worker whose environment says nothing: rank 1's share, in this epoch's order."""
    made = fb.WebDataset(PATTERN, shardshuffle=True, nodesplitter=wds.split_by_node, data_parallel=(1, 2)).map(key).with_length(15)
    loading = torch.utils.data.DataLoader(made, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert len(loading) == 15
    assert [shard_order(list(loading)) for _ in range(2)] == [epoch_order(SHARDS, 0, epoch)[1::2] for epoch in range(2)]


def own_splitter(items: Any) -> Any:
    """A user's own, on top of webdataset's."""
    return wds.split_by_node(iter(items))


def test_a_splitter_of_the_users_is_told(shards: FakeServer) -> None:
    """A user's own nodesplitter finds the rank in a started worker too."""
    made = fb.WebDataset(PATTERN, nodesplitter=own_splitter, data_parallel=(1, 2))
    assert sorted(shard_order(list(loader(made, 1, "forkserver")))) == [1, 3, 5]


@pytest.mark.parametrize("start", ["fork", pytest.param("forkserver", marks=pytest.mark.once)])
def test_an_explicit_pipeline_is_told_too(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """webdataset's own split_by_node in a worker without RANK: the stage that opens shards brought the rank along."""
    found: list[str] = []
    for rank in range(2):
        with monkeypatch.context() as building:
            building.setenv("RANK", str(rank))
            building.setenv("WORLD_SIZE", "2")
            stage = fb.tarfile_to_samples()
        made = wds.DataPipeline(wds.SimpleShardList(PATTERN), wds.split_by_node, wds.split_by_worker, stage, wds.map(key))
        found += torch.utils.data.DataLoader(made, batch_size=None, num_workers=1, multiprocessing_context=start)
    assert sorted(found) == sorted(expected(SHARDS))


def rank_reads(data: Any, rank: int, folder: str) -> None:
    """One training process: its group comes up after the data set was made, as in a script that builds its data first."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    loading = loader(data)
    Path(folder, f"{rank}.json").write_text(json.dumps([list(loading), list(loading)]))
    torch.distributed.destroy_process_group()


def test_a_real_process_group(tmp_path: Path) -> None:
    """Two gloo ranks forked with one data set, made before the group: each its share of each epoch's order, each counting for itself."""
    made = fb.WebDataset(PATTERN, shardshuffle=True, nodesplitter=wds.split_by_node)
    started = [multiprocessing.get_context("fork").Process(target=rank_reads, args=(made, rank, str(tmp_path))) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 0]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        order = epoch_order(SHARDS, 0, epoch)
        assert [sorted(shard_order(ranks[rank][epoch])) for rank in range(2)] == [sorted(order[rank::2]) for rank in range(2)]
        assert sorted(ranks[0][epoch] + ranks[1][epoch]) == sorted(expected(SHARDS))


def test_no_nodesplitter_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """World of two and no splitter: webdataset's words; a splitter that passes everything lets every rank read everything."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for how in ({}, {"nodesplitter": None}):
        with pytest.raises(ValueError, match="need to add an explicit nodesplitter"):
            next(iter(fb.WebDataset(PATTERN, **how)))
    assert len(list(fb.WebDataset(PATTERN, nodesplitter=iter))) == 30


class Mine(fb.WebDataset):  # type: ignore[misc]
    """A user's own class on top."""


@pytest.mark.parametrize("kind", [fb.WebDataset, Mine])
def test_everything_pickles(kind: Any) -> None:
    """Fluent stages, a length, an epoch: the other side reads the same."""
    made = kind(PATTERN, shardshuffle=True, nodesplitter=wds.split_by_node, data_parallel=(1, 2))
    made = made.decode().to_tuple("__key__", "txt").batched(4).with_length(11, silent=True)
    other = pickle.loads(pickle.dumps(made))
    assert (len(other), other.world) == (11, made.world)
    assert list(other) == list(made)
    assert isinstance(other, kind)
    assert isinstance(other, wds.WebDataset)
