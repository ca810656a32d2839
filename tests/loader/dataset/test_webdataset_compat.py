"""What stays webdataset's own, and what the argument ``urls`` may be."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from forebay_loader.dataset.shard_list import NodeSplit
from forebay_loader.identity.world import World

wds = pytest.importorskip("webdataset")
stock = pytest.importorskip("forebay_loader.dataset.webdataset_compat")

pytestmark = pytest.mark.webdataset

HERE = World(1, 2, "data_parallel")


def test_patterns_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern is expanded as webdataset does; anything that gives strings is taken as it is."""
    monkeypatch.setenv("WDS_ROOT", "s3://b")
    assert stock.listed("${ROOT}/{0..1}.tar::x.tar") == ["s3://b/0.tar", "s3://b/1.tar", "x.tar"]
    for urls in (["a{0..1}.tar", "b"], ("a{0..1}.tar", "b"), iter(["a{0..1}.tar", "b"])):
        assert stock.listed(urls) == ["a{0..1}.tar", "b"]


@pytest.mark.parametrize("urls", [[], (), "", [""], iter(())])
def test_an_empty_list(urls: Any) -> None:
    """No shards at all is said so, before anything is read."""
    with pytest.raises(ValueError, match="the list of shards is empty"):
        stock.listed(urls)


@pytest.mark.parametrize("urls", [None, 3, b"a.tar"])
def test_not_a_list(urls: Any) -> None:
    """What cannot name shards is refused by its type."""
    with pytest.raises(ValueError, match="cannot handle urls of type"):
        stock.listed(urls)


def test_an_entry_that_is_no_string() -> None:
    """The entry is named by its number."""
    with pytest.raises(TypeError, match="entry 1 of 2 is PosixPath"):
        stock.listed(["a.tar", Path("b.tar")])


def test_repeated_shards_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One notice with numbers, not with URLs, which may hold a token; the list stays as it is."""
    urls = ["http://h/a.tar?token=secret", "b", "http://h/a.tar?token=secret", "b", "b"]
    assert stock.listed(urls) == urls
    assert stock.listed(urls) == urls
    assert [record.getMessage() for record in caplog.records] == [
        "3 of 5 shards are listed again (entry 2 is entry 0); each pass reads each as often"
    ]


@pytest.mark.parametrize("splitter", [None, False, wds.shardlists.single_node_only])
def test_no_splitter(splitter: Any) -> None:
    """None, and what webdataset puts there by default, refuse a world of two, and leave a world of one."""
    with pytest.raises(ValueError, match="explicit nodesplitter"):
        list(stock.node_stage(splitter, HERE, False)([{}]))
    assert list(stock.node_stage(splitter, World(0, 1, "data_parallel"), False)([1, 2])) == [1, 2]


@pytest.mark.parametrize("splitter", [wds.split_by_node, functools.partial(wds.split_by_node, group="g")])
def test_split_by_node_is_ours(splitter: Any) -> None:
    """webdataset's splitter, which asks again in every worker, becomes one that was told."""
    made = stock.node_stage(splitter, HERE, False)
    assert isinstance(made, NodeSplit)
    assert list(made([0, 1, 2, 3])) == [1, 3]


def test_the_group_of_a_splitter() -> None:
    """The group named to webdataset's splitter is the one that is asked."""
    assert stock.group_of(functools.partial(wds.split_by_node, group="g")) == "g"
    assert stock.group_of(wds.split_by_node) is None
    assert stock.group_of(functools.partial(print, group="g")) is None


def test_a_splitter_of_the_users() -> None:
    """Anything else stands where it was put."""
    assert stock.node_stage(iter, HERE, False) is iter


def test_draws_need_no_splitter() -> None:
    """Draws are a rank's own from the start: nothing is split, and nothing refused."""
    assert stock.node_stage(None, HERE, True) is stock.node_stage(wds.split_by_node, HERE, True) is None
