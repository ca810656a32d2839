"""Which sources are lists that are known in full: webdataset's own stages over a list are, what a user wrote is not."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from forebay_loader.dataset.shard_list import NodeSplit, ShardList, ShardOrder, WorkerSplit
from forebay_loader.identity.world import World
from forebay_loader.plan.epochs import Epochs
from forebay_loader.plan.known_lists import is_known_list, lists_shards, passes_shards_on
from forebay_loader.takeover.openers import noted

wds = pytest.importorskip("webdataset")
from webdataset import filters, shardlists  # noqa: E402  # it is there

pytestmark = [pytest.mark.webdataset, pytest.mark.another_python]

URLS = [f"s3://bucket/{number:03d}.tar" for number in range(30)]
ONE = World(0, 1, "data_parallel")
DRAWN_FROM = random.Random(1)


def listed() -> Any:
    return shardlists.SimpleShardList(URLS)


def ours(order: ShardOrder = ShardOrder()) -> ShardList:  # noqa: B008  # frozen
    return ShardList(URLS, order, Epochs(), ONE)


def items_of(*stages: Any) -> Iterator[Any]:
    """What stands before the next stage: each of ``stages`` called as a pipeline does."""
    return wds.DataPipeline(*stages).iterator1()  # type: ignore[no-any-return]


class OpenClips(filters.PipelineStage):  # type: ignore[misc]
    """OpenCLIP's ``detshuffle2``: an order of its own drawing through webdataset's buffer."""

    def run(self, source: Iterator[Any]) -> Any:
        return filters._shuffle(source, 20, 5, random.Random(7))


KNOWN = {
    "a list": [lambda: iter(URLS)],
    "SimpleShardList": [listed()],
    "SimpleShardList, split": [listed(), shardlists.split_by_node, shardlists.split_by_worker],
    "split within a group": [listed(), functools.partial(shardlists.split_by_node, group=None), shardlists.split_by_worker],
    "one node": [listed(), shardlists.single_node_only, shardlists.non_empty],
    "no node splitter": [listed(), iter],
    "shuffle": [listed(), wds.shuffle(10), shardlists.split_by_worker],
    "detshuffle": [listed(), wds.detshuffle(10), shardlists.split_by_worker],
    "OpenCLIP's shuffle": [listed(), OpenClips(), shardlists.split_by_node],
    "ResampledShards": [shardlists.ResampledShards(URLS)],
    "MultiShardSample": [lambda: shardlists.MultiShardSample.__iter__(_Spec())],
    "ours": [lambda: iter(ours()), NodeSplit(ONE, named=True), WorkerSplit()],
    "ours, shuffled": [lambda: iter(ours(ShardOrder(3, shuffled=True))), NodeSplit(ONE, named=True), WorkerSplit()],
    "ours, resampled": [lambda: iter(ours(ShardOrder(3, resampled=True)))],
}

UNKNOWN = {
    "a queue": [lambda: iter(lambda: "s3://bucket/a.tar", None)],
    "a generator": [lambda: (url for url in URLS)],
    "a subclass": [type("Own", (shardlists.SimpleShardList,), {"__iter__": lambda self: (url for url in URLS)})(URLS)],
    "a splitter of one's own": [listed(), lambda source: (item for item in source)],
    "islice": [listed(), lambda source: islice(source, 5)],
    "map": [listed(), lambda source: map(str, source)],
    "select": [listed(), wds.select(bool)],
    "behind a known stage": [lambda: (url for url in URLS), shardlists.split_by_node, shardlists.split_by_worker],
    "ours, behind a queue": [lambda: iter(lambda: {"url": "a"}, None), NodeSplit(ONE, named=True), WorkerSplit()],
    "a shared rng": [listed(), wds.shuffle(10, rng=DRAWN_FROM)],
    "everybody's rng": [listed(), wds.shuffle(10, rng=random)],
}


class _Spec:
    """What ``MultiShardSample`` reads of itself."""

    def get_shards_for_epoch(self) -> list[str]:
        return URLS


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_list(name: str) -> None:
    """Before it is pulled, and in the middle."""
    items = items_of(*KNOWN[name])
    assert is_known_list(items)
    next(items)
    assert is_known_list(items)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_hand_out_work(name: str) -> None:
    """Before it is pulled, and in the middle."""
    items = items_of(*UNKNOWN[name])
    assert not is_known_list(items)
    next(items)
    assert not is_known_list(items)


def test_what_reads_its_source_to_the_end_first_is_known() -> None:
    """Webdataset's ``resampled`` does at its first item, whatever comes before it. (Not pulled here: it leaves a file open.)"""
    assert is_known_list(items_of(lambda: (url for url in URLS), shardlists.resampled(5)))


def test_asking_pulls_nothing_and_what_has_ended_is_not_known() -> None:
    """It looks at the chain; nothing of it runs. A generator without a frame says nothing."""
    items = items_of(listed(), shardlists.split_by_worker)
    assert is_known_list(items)
    assert [item["url"] for item in items] == URLS
    assert not is_known_list(items)


def test_a_splitter_put_in_webdatasets_place_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is webdataset's, its code is not."""

    def split_by_worker(source: Iterator[Any]) -> Iterator[Any]:
        yield from source

    monkeypatch.setattr(shardlists, "split_by_worker", split_by_worker)
    assert not is_known_list(items_of(listed(), shardlists.split_by_worker))


def test_a_list_that_was_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known by the note-taking around it."""
    for kind in (shardlists.SimpleShardList, shardlists.ResampledShards):
        monkeypatch.setattr(kind, "__iter__", noted(kind.__iter__))
        assert is_known_list(items_of(kind(URLS), shardlists.split_by_node))


def test_a_chain_without_an_end_is_not_known() -> None:
    """More stages than any pipeline has."""

    @passes_shards_on
    def stage(items: Iterator[Any]) -> Iterator[Any]:
        yield from items

    @lists_shards
    def source() -> Iterator[str]:
        yield from URLS

    items = source()
    for _ in range(20):
        items = stage(items)
    assert is_known_list(items)
    for _ in range(20):
        items = stage(items)
    assert not is_known_list(items)
