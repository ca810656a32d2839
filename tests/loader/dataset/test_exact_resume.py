"""An iteration broken off anywhere goes on with exactly what would have come, whatever its stages hold; in one process, of files."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.tars import shard_files

import forebay_loader as fb
from forebay_loader.dataset.sample_shares import shareable, shared_out

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

COUNTS = (4, 2, 7, 3, 9, 2)  # samples of each shard; 0.2.86 takes one that comes twice in a row for a fault
ENDLESS = 60  # outputs of what never ends
Made = Callable[[], Any]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return shard_files(tmp_path_factory.mktemp("shards"), COUNTS)


def key(sample: Any) -> str:
    return str(sample["__key__"])


def length(sample: Any) -> int:
    return int(key(sample)[-1]) + 1


def keys(samples: list[Any]) -> list[str]:
    return list(map(key, samples))


SOURCES: dict[str, dict[str, Any]] = {
    "shuffled": {"shardshuffle": True},
    "as listed": {"shardshuffle": False},
    "drawn without end": {"resampled": True},
    "webdataset's buffer of shards": {"shardshuffle": 3, "detshuffle": True},
    "some files": {"shardshuffle": True, "select_files": lambda name: "2." not in name},
}
PIPELINES: dict[str, Callable[[Any], Any]] = {
    "nothing held": lambda data: data.map(key),
    "two buffers, a filter between": lambda data: data.shuffle(5).select(lambda one: length(one) != 3).shuffle(6, initial=2).map(key),
    "partial batches": lambda data: data.shuffle(7, initial=3).map(key).batched(3, collation_fn=list),
    "full batches": lambda data: data.shuffle(7).map(key).batched(4, collation_fn=list, partial=False),
    "rows of batches": lambda data: data.shuffle(7, initial=3).map(key).listed(4).map(list).unlisted(),
    "batches of rows": lambda data: data.shuffle(7, initial=3).map(key).listed(4).unlisted().listed(3),
    "passes of an epoch": lambda data: data.shuffle(7, initial=3).map(key).with_epoch(43),
    "two passes": lambda data: data.shuffle(4).map(key).repeat(2),
    "stock stages that draw": lambda data: data.compose(wds.shuffle(6)).rsample(0.7).map(key),
    "batches within a budget": lambda data: data.shuffle(5).compose(fb.batched(max_samples=3, buckets=(2, 4), length=length, collate=keys)),
    "batches of one shape": lambda data: data.shuffle(5).compose(fb.batched(max_samples=3, shape=length, max_waiting=2, collate=keys)),
    "a slice": lambda data: data.compose(wds.detshuffle(6)).slice(2, 15, 2).map(key),
}


def first(outputs: Any) -> list[Any]:
    return list(islice(outputs, ENDLESS))


@functools.cache
def uninterrupted(source: str, pipeline: str, urls: tuple[str, ...]) -> tuple[list[Any], list[Any]]:
    """Two epochs."""
    data = PIPELINES[pipeline](fb.WebDataset(list(urls), **SOURCES[source]))
    return first(data), first(data)


def kept(data: Any) -> dict[str, Any]:
    """Its state, as a checkpoint keeps it."""
    state: dict[str, Any] = json.loads(json.dumps(data.state_dict()))
    return state


@given(st.sampled_from(sorted(SOURCES)), st.sampled_from(sorted(PIPELINES)), st.integers(0, 10**6), st.integers(0, 5))
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_comes_is_what_would_have_come(urls: list[str], source: str, pipeline: str, stop: int, further: int) -> None:
    """Broken off anywhere in its first epoch, and again soon after; the second epoch too."""
    made = lambda: PIPELINES[pipeline](fb.WebDataset(urls, **SOURCES[source]))  # noqa: E731
    whole, second = uninterrupted(source, pipeline, tuple(urls))
    stop = 1 + stop % len(whole)
    data = made()
    outputs = iter(data)
    assert list(islice(outputs, stop)) == whole[:stop]
    data, outputs = resumed(made, kept(data))
    found = list(islice(outputs, further))
    data, outputs = resumed(made, kept(data))
    assert (found + first(outputs))[: len(whole) - stop] == whole[stop:]
    if len(whole) < ENDLESS:
        assert first(data) == second


@pytest.mark.parametrize("size", [1, 2])
def test_samples_that_became_several_rows(urls: list[str], size: int) -> None:
    """Wherever it is broken off: also between two rows of one sample."""
    grown = lambda batch: [f"{one}/{row}" for one in batch for row in range(3)]  # noqa: E731
    made = lambda: fb.WebDataset(urls, shardshuffle=True).shuffle(5).map(key).listed(size).map(grown).unlisted()  # noqa: E731
    whole = list(made())
    for stop in range(1, len(whole) + 1):
        data = made()
        assert list(islice(data, stop)) == whole[:stop]
        assert list(resumed(made, kept(data))[1]) == whole[stop:]


def resumed(made: Made, state: dict[str, Any]) -> tuple[Any, Iterator[Any]]:
    data = made()
    data.load_state_dict(state)
    return data, iter(data)


def broken_off_everywhere(made: Made) -> None:
    whole = list(made())
    assert whole
    for stop in range(1, len(whole) + 1):
        data = made()
        outputs = iter(data)
        list(islice(outputs, stop))
        assert list(resumed(made, kept(data))[1]) == whole[stop:], stop


@pytest.mark.parametrize("worker", range(4))
def test_stripes_of_a_shard(urls: list[str], monkeypatch: pytest.MonkeyPatch, worker: int) -> None:
    """Three shards for four workers: two share one, sample by sample, and each goes on with its own."""
    monkeypatch.setenv("WORKER", str(worker))
    monkeypatch.setenv("NUM_WORKERS", "4")
    broken_off_everywhere(lambda: fb.WebDataset(urls[2:5], shardshuffle=True).map(key).shuffle(2))


@pytest.mark.parametrize("rank", range(2))
def test_shares_of_samples(urls: list[str], rank: int) -> None:
    """A share begins, and ends, in the middle of a shard."""
    counts = dict(zip(urls, COUNTS, strict=True))

    def made() -> Any:
        data = fb.WebDataset(urls, shardshuffle=True, nodesplitter=wds.split_by_node, data_parallel=(rank, 2)).map(key).shuffle(3)
        data = shareable(data, drop=False)
        shared_out(data).by_samples(counts)  # type: ignore[union-attr]  # it is shareable
        return data

    broken_off_everywhere(made)
