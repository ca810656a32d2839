"""fb.WebLoader as wds.WebLoader: its arguments and stages, how its workers start, and what they bring along."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
from typing import Any

import pytest
from support.tars import expected

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
torch = pytest.importorskip("torch")
loading = pytest.importorskip("forebay_loader.loading.web_loader")
forking = pytest.importorskip("forebay_loader.loading.worker_start")

SHARDS = 4
SAMPLE_BYTES = 10
PATTERN = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("shards", "alone")]


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def dataset(**how: Any) -> Any:
    return fb.WebDataset(PATTERN, shardshuffle=False, **how).map(key)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_recipe_is_the_same(workers: int) -> None:
    """unbatched, shuffle, batched, with_epoch, as webdataset's own loader does them on the same data."""
    found = []
    for kind in (fb.WebLoader, wds.WebLoader):
        data = fb.WebDataset(PATTERN, shardshuffle=False).to_tuple("__key__").batched(3)
        made = kind(data, batch_size=None, num_workers=workers)
        assert isinstance(made, wds.WebLoader)
        assert isinstance(made.pipeline[0], torch.utils.data.DataLoader)
        made = made.unbatched().shuffle(8, rng=random.Random(3)).batched(4).with_epoch(7)
        found.append([list(keys) for (keys,) in made])
    assert found[0] == found[1]
    assert [len(keys) for keys in found[0]] == [4] * 7


def test_arguments_by_position() -> None:
    """As torch's DataLoader has them: data set, batch size, shuffle, …"""
    assert [len(batch) for batch in fb.WebLoader(dataset(), 7)] == [7, 7, 6]
    with pytest.raises(TypeError, match="too many positional arguments"):
        fb.WebLoader(dataset(), *[None] * 13)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"equal_steps": "always"}, "'auto', True or False"),
        ({"tail": "keep"}, "'repeat' or 'drop'"),
        ({"batches_per_epoch": 0}, "at least one"),
        ({"batches_per_epoch": "all"}, "batches_per_epoch takes a number of batches, at least one; got 'all'"),
        ({"steps_timeout_s": "1h"}, "steps_timeout_s takes a number of seconds above 0; got '1h'"),
        ({"counts": 7}, "counts takes a dict of samples by URL or file name, or a function of the URLs; got 7"),
    ],
)
def test_mistaken_arguments(how: dict[str, Any], text: str) -> None:
    """Refused where they are written: the argument, what it takes, what it got."""
    with pytest.raises((TypeError, ValueError), match=text):
        fb.WebLoader(dataset(), batch_size=None, **how)


def test_a_length_is_said_and_pickles() -> None:
    """with_length says it; the loader comes through pickle."""
    made = fb.WebLoader(dataset().with_length(20, silent=True), batch_size=None).with_length(9)
    other = pickle.loads(pickle.dumps(made))
    assert (len(other), sorted(other)) == (9, sorted(expected(SHARDS)))


def test_not_false_but_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """equal_steps=False: webdataset's loader, in any world."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    made = fb.WebLoader(dataset(nodesplitter=wds.split_by_node), batch_size=None, equal_steps=False)
    assert sorted(made) == [f"{shard:03d}-{n:03d}" for shard in (1, 3) for n in range(5)]


@pytest.mark.parametrize(
    "data",
    [
        lambda: dataset(nodesplitter=iter),
        lambda: dataset(resampled=True, nodesplitter=wds.split_by_node),
        lambda: dataset(nodesplitter=wds.split_by_node).with_epoch(4),
        lambda: dataset(nodesplitter=wds.split_by_node, data_parallel=(0, 1)),
        lambda: wds.DataPipeline(wds.SimpleShardList(PATTERN), fb.tarfile_to_samples(), wds.map(key)),
        lambda: wds.DataPipeline(wds.ResampledShards(PATTERN), wds.split_by_node, fb.tarfile_to_samples(), wds.map(key)),
        lambda: torch.utils.data.TensorDataset(torch.arange(8)),
    ],
)
def test_where_ranks_cannot_differ(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All read everything, or draw without end, or give a said number: no vote, and no complaint without a process group."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    next(iter(fb.WebLoader(data(), batch_size=None)))


def test_where_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """webdataset's explicit pipeline with split_by_node, a splitter of the user's own, and equal_steps=True where "auto" would not ask."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    split = wds.DataPipeline(wds.SimpleShardList(PATTERN), wds.split_by_node, fb.tarfile_to_samples())
    for data, equal in ((split, "auto"), (dataset(nodesplitter=lambda urls: urls), "auto"), (dataset(nodesplitter=iter), True)):
        with pytest.raises(fb.StepsError, match=r"rank 1 of 2 .* `forebay index` makes this exact"):
            next(iter(fb.WebLoader(data, batch_size=None, equal_steps=equal)))


def local_key() -> Any:
    return lambda sample: sample["__key__"]


def test_what_cannot_be_pickled_is_forked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where Python would start workers otherwise: fork, with one notice. A context that was given is kept, and so is what pickles."""
    monkeypatch.setattr(forking, "get_start_method", lambda allow_none: "forkserver")
    lame = fb.WebDataset(PATTERN, shardshuffle=False).map(local_key())
    for _ in range(2):
        assert sorted(fb.WebLoader(lame, batch_size=None, num_workers=2)) == sorted(expected(SHARDS))
    said = [record.getMessage() for record in caplog.records if "pickled" in record.getMessage()]
    assert len(said) == 1
    assert "as forkserver needs: its workers are forked, unless multiprocessing_context= says otherwise" in said[0]
    assert (
        fb.WebLoader(lame, num_workers=1, multiprocessing_context="spawn").pipeline[0].multiprocessing_context.get_start_method() == "spawn"
    )
    assert fb.WebLoader(dataset().with_length(3), num_workers=1).pipeline[0].multiprocessing_context is None


def test_what_travels_otherwise_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared values and descriptors pickle only while a process is started: a trial knows that."""
    monkeypatch.setattr(forking, "get_start_method", lambda allow_none: "spawn")
    counter = multiprocessing.get_context("spawn").Value("i", 3)
    assert forking.start_method(dataset(epoch=counter)) is None
    assert forking.start_method(lambda: 0) == "fork"


def remember(worker_id: int) -> None:
    os.environ["REMEMBERED"] = str(worker_id)


def told(sample: dict[str, Any]) -> tuple[str | None, ...]:
    enabled = wds.gopen_schemes.get("s3") is not None
    return os.environ.get("REMEMBERED"), os.environ.get("RANK"), os.environ.get("WORLD_SIZE"), str(enabled)


@pytest.mark.usefixtures("warm_starts")
def test_workers_bring_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker started from nothing: Forebay enabled as in its parent, the rank told, then the user's own worker_init_fn."""
    fb.enable()
    pipeline = wds.DataPipeline(wds.SimpleShardList(PATTERN), wds.split_by_worker, wds.tarfile_to_samples(), wds.map(told))
    with monkeypatch.context() as building:
        building.setenv("RANK", "1")
        building.setenv("WORLD_SIZE", "2")
        made = fb.WebLoader(pipeline, batch_size=None, num_workers=1, worker_init_fn=remember, multiprocessing_context="spawn")
    assert set(map(tuple, made)) == {("0", "1", "2", "True")}
