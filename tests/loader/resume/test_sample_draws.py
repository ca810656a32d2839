"""fb.rng and fb.video: a function of seed, epoch, shard, key and visit, whoever reads the sample and when."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tarmaking import written
from support.tars import shard_files

import forebay_loader as fb
from forebay_loader.samples.shard_name import drawn_as

pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

SAMPLES = 12


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return shard_files(tmp_path, [SAMPLES] * 2)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Six shards, each of the same three names, one of which is no UTF-8."""
    folder = tmp_path_factory.mktemp("alike")
    for number in range(6):
        members = [(f"{name}.txt", b"%d" % number) for name in ("000", "001", "f\udce4hre")]
        (folder / f"{number}.tar").write_bytes(written(members))
    return [str(folder / f"{number}.tar") for number in range(6)]


def drawn(sample: Any) -> tuple[str, float]:
    return sample["__key__"], fb.rng(sample).random()


def made(urls: list[str], buffer: int = 5, **how: Any) -> Any:
    return fb.WebDataset(urls, shardshuffle=True, **how).map(drawn).shuffle(buffer)


def test_alike_in_any_order_and_other_in_the_next_epoch(urls: list[str]) -> None:
    """The place of a sample does not count; seed and epoch do."""
    data, other = made(urls), made(urls, buffer=9)
    first = dict(data)
    assert dict(other) == first
    assert set(dict(data).values()).isdisjoint(first.values())
    assert set(dict(made(urls, seed=7)).values()).isdisjoint(first.values())


PASSES = {
    "names that begin anew in each shard": ({}, lambda data: data),
    "a shard that is listed three times": ({"listed": 3}, lambda data: data),
    "drawn with replacement": ({"resampled": True}, lambda data: data),
    "drawn with replacement, in epochs": ({"resampled": True}, lambda data: data.with_epoch(40)),
    "several passes": ({}, lambda data: data.repeat(3)),
    "an epoch of samples": ({}, lambda data: data.with_epoch(40)),
}


def passes(alike: list[str], name: str, worker: int = 0, workers: int = 1, **more: Any) -> Iterator[Any]:
    how, ends = PASSES[name]
    given = {**how, **more}
    listed = alike * given.pop("listed", 1)
    data = ends(fb.WebDataset(listed, shardshuffle=True, **given).shuffle(4).map(lambda sample: fb.rng(sample).random()).shuffle(5))
    before = {name: os.environ.get(name) for name in ("WORKER", "NUM_WORKERS")}
    os.environ.update(WORKER=str(worker), NUM_WORKERS=str(workers))
    try:
        yield from islice(data, 54)
    finally:
        for variable, value in before.items():
            os.environ.pop(variable) if value is None else os.environ.update({variable: value})


@pytest.mark.parametrize("name", PASSES)
def test_each_visit_draws_anew(alike: list[str], name: str) -> None:
    """Over all workers: no draw comes twice."""
    for workers in (1, 3):
        found = [one for worker in range(workers) for one in passes(alike, name, worker, workers)]
        assert len(found) == len(set(found)) >= 18


def test_data_sets_of_a_mix_draw_for_themselves(alike: list[str]) -> None:
    """Each is the first shard of its list, and their samples have the same names."""
    found = [one for url in alike for one in fb.WebDataset([url], shardshuffle=True).map(lambda sample: fb.rng(sample).random())]
    assert len(set(found)) == len(found) == 18


def test_each_that_reads_everything_draws_for_itself(alike: list[str]) -> None:
    """Where shards are not shared out among workers. Ranks that each read everything are alike: they may be parts of one model."""
    name = "names that begin anew in each shard"
    found = [one for worker in range(2) for one in passes(alike, name, worker, 2, workersplitter=None)]
    assert len(found) == len(set(found)) == 36
    found = [set(passes(alike, name, nodesplitter=iter, data_parallel=(rank, 2))) for rank in range(2)]
    assert found[0] == found[1]


def test_a_source_of_ones_own(alike: list[str]) -> None:
    """Which has no list: a shard goes by its name then, and visits are counted."""
    from webdataset.pytorch import IterableDataset  # noqa: PLC0415

    class Source(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            yield from ({"url": url} for url in alike * 2)

    found = [one for _, one in fb.WebDataset(Source()).map(drawn)]
    assert len(found) == len(set(found)) == 36


@given(st.sampled_from(sorted(PASSES)), st.lists(st.integers(1, 20), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_resumed_run_draws_what_would_have_come(alike: list[str], name: str, cuts: list[int]) -> None:
    """Wherever it is cut, however often: visits before the cut count."""

    def data() -> Any:
        how, ends = PASSES[name]
        given = dict(how)
        listed = alike * given.pop("listed", 1)
        return ends(fb.WebDataset(listed, shardshuffle=True, **given).shuffle(4).map(drawn).shuffle(5))

    whole = list(islice(data(), 60))
    found: list[Any] = []
    state: Any = None
    for cut in [*cuts, None]:
        part = data()
        if state is not None:
            part.load_state_dict(state)
        found += islice(part, cut if cut is not None else max(0, 60 - len(found)))
        state = part.state_dict()
        if len(found) >= len(whole):
            break
    assert found[: len(whole)] == whole


@given(st.integers(1, 11), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_a_merged_state_draws_what_would_have_come(alike: list[str], cut: int, ranks: int) -> None:
    """In another world, of shards that were listed twice, and in part done."""

    def data(rank: int, size: int) -> Any:
        import webdataset as wds  # noqa: PLC0415

        splitter = {"nodesplitter": wds.split_by_node, "data_parallel": (rank, size), "empty_check": False}
        return fb.WebDataset(alike * 2, shardshuffle=True, **splitter).shuffle(4).map(drawn)

    whole = sorted(one for rank in range(2) for one in data(rank, 2))
    first = [data(rank, 2) for rank in range(2)]
    found = [one for part in first for one in islice(part, cut)]
    merged = fb.merge_states([part.state_dict() for part in first])
    for rank in range(ranks):
        part = data(rank, ranks)
        part.load_state_dict(merged)
        found += part
    assert sorted(found) == whole


def test_two_data_sets_at_a_time(urls: list[str]) -> None:
    """Each draws by its own seed, whichever was asked before."""
    one, other = made(urls, 0), made(urls, 0, seed=7)
    apart = list(one), list(other)
    one.set_epoch(0)
    other.set_epoch(0)
    pairs = list(zip(one, other, strict=True))
    assert ([first for first, _ in pairs], [second for _, second in pairs]) == apart


def test_samples_have_their_url_as_it_was(urls: list[str]) -> None:
    """What is known of the visit goes with it, to another process too."""
    sample = next(iter(fb.WebDataset(urls, shardshuffle=False)))
    assert sample["__url__"] == urls[0]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert drawn_as(pickle.loads(pickle.dumps(sample, protocol))) == drawn_as(sample) == f"0/{urls[0]}/{sample['__key__']}"


def test_a_forked_child_is_in_no_pass(urls: list[str]) -> None:
    """Its parent is: what the child draws outside a pass of its own would be the parent's."""
    given = iter(made(urls))
    next(given)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            fb.rng({"__key__": "a", "__url__": "b"})
        except RuntimeError:
            os.write(write, b"refused")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 9) == b"refused"
    os.close(read)


def test_refused_in_words(urls: list[str]) -> None:
    """Where nobody knows the epoch, the shard, or the key."""
    for wrong, got in ((("a",), "tuple"), ("000-001", "str"), ({"jpg": b""}, "a dict of jpg"), ({"__key__": "a"}, "a dict of __key__")):
        with pytest.raises(TypeError, match=rf"takes a sample with its '__key__' and '__url__'.*got (a )?{got}: call it before to_tuple"):
            fb.rng(wrong)
    list(made(urls))
    with pytest.raises(RuntimeError, match=r"functions in \.map and the like of an fb\.WebDataset"):
        fb.rng({"__key__": "000-001", "__url__": urls[0]})
