"""An epoch that is begun by four ranks, gone on with by two and ended by three: real loaders, each sample once over all of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.tars import tar_shard

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")
pytest.importorskip("numpy.random")  # forked workers would import it, beside threads that this process has and they do not

pytestmark = [pytest.mark.webdataset, pytest.mark.usefixtures("shards")]

SIZES = [7, 12, 5, 9, 11, 3, 8, 10, 6, 4]
SAMPLE_BYTES = 20
URLS = [f"s3://bucket/{number:03d}.tar" for number in range(len(SIZES))]
KEYS = sorted(f"{shard:03d}-{number:03d}" for shard, count in enumerate(SIZES) for number in range(count))


def loader(rank: int, size: int, workers: int, *, buffer: int = 12, batch: int = 3, **how: Any) -> Any:
    data = fb.WebDataset(URLS, shardshuffle=True, seed=3, nodesplitter=wds.split_by_node, data_parallel=(rank, size), empty_check=False)
    data = data.shuffle(buffer).to_tuple("__key__").batched(batch)
    return fb.WebLoader(data, batch_size=None, num_workers=workers, **{"equal_steps": False, "snapshot_every": 3, **how})


def keys(batch: Any) -> list[str]:
    return [str(key) for field in batch for key in field]


def read(size: int, workers: int, state: dict[str, Any] | None, steps: list[int | None], **how: Any) -> tuple[list[str], list[Any]]:
    """What the ranks of one world hand out, each as many batches as ``steps`` says, and their states."""
    given: list[str] = []
    states = []
    for rank in range(size):
        batches = loader(rank, size, workers, **how)
        if state is not None:
            batches.load_state_dict(json.loads(json.dumps(state)))
        iterator = iter(batches)
        for step, batch in enumerate(iterator, 1):
            given += keys(batch)
            if step == steps[rank]:
                break
        states.append(batches.state_dict())
        del iterator
    return given, json.loads(json.dumps(states))


def twice(given: list[str]) -> list[str]:
    return [key for key, times in Counter(given).items() if times > 1]


@pytest.mark.parametrize(
    "worlds",
    [((4, 0), (2, 2), (3, 0)), pytest.param(((4, 1), (2, 0), (3, 1)), marks=pytest.mark.once)],
)
def test_four_ranks_then_two_then_three(worlds: tuple[tuple[int, int], ...]) -> None:
    """Nothing is missing, nothing comes twice, and the state names what is done, whatever the workers of each world."""
    state, given = None, []
    for (size, workers), steps in zip(worlds[:-1], (2, 4), strict=True):
        handed, states = read(size, workers, state, [steps + rank % 2 for rank in range(size)])
        given += handed
        state = fb.merge_states(states)
        assert twice(given) == []
        assert 0 < len(given) < len(KEYS)
    given += read(*worlds[-1], state, [None] * worlds[-1][0])[0]
    assert twice(given) == []
    assert sorted(given) == KEYS


def test_ranks_that_end_apart() -> None:
    """Some have read all that was theirs, and of the last world some had nothing to read: what the others left comes once."""
    state, given, ended = None, [], []
    for size, steps in ((4, [2, None, 3, None]), (2, [None, 3]), (3, [None, 1, None]), (3, [1, 1, 1])):
        handed, states = read(size, 0, state, steps, batch=2)
        given += handed
        ended.append([(one["over"], bool(one["given"])) for one in states])
        state = fb.merge_states(states)
        assert not state["over"]
    assert ended[0] == [(False, True), (True, True)] * 2
    assert (True, False) in ended[-1]
    given += read(1, 0, state, [None])[0]
    assert sorted(given) == KEYS


def test_the_next_epoch_is_whole() -> None:
    """After the rest of the merged one: another order, all samples."""
    _, states = read(2, 0, None, [3, 3])
    merged = fb.merge_states(states)
    batches = loader(0, 1, 0)
    batches.load_state_dict(merged)
    rest = [key for batch in batches for key in keys(batch)]
    after = [key for batch in batches for key in keys(batch)]
    assert len(rest) < len(KEYS)
    assert sorted(after) == KEYS


def test_shares_of_samples_are_merged_too(shards: FakeServer) -> None:
    """Where samples are counted, each worker reads a piece of the row of all, in the middle of shards."""
    counts = dict(zip(URLS, SIZES, strict=True))
    how: dict[str, Any] = {"equal_steps": "auto", "counts": counts, "tail": "drop"}
    given, states = read(3, 0, None, [4, 4, 4], **how)
    rest, _ = read(2, 0, fb.merge_states(states), [None, None], equal_steps=False)
    assert twice(given + rest) == []
    assert sorted(given + rest) == KEYS


def test_the_rest_is_shared_out_by_shards() -> None:
    """Also where their samples are counted: an error that ranks may differ says so, and not that nobody counted."""
    merged = fb.merge_states(read(2, 0, None, [3, 3])[1])
    batches = loader(0, 2, 0, equal_steps=True, counts=dict(zip(URLS, SIZES, strict=True)))
    batches.load_state_dict(merged)
    with pytest.raises(fb.StepsError, match=r"a merged state is shared out by shards, for which counts= are not used"):
        next(iter(batches))


def test_of_another_data_set() -> None:
    """A merged state and another list of shards, or another seed: the difference is named, when it is read at the latest."""
    merged = fb.merge_states(read(2, 0, None, [2, 2])[1])
    data = fb.WebDataset(URLS[1:], shardshuffle=True, seed=3)
    batches = fb.WebLoader(data, batch_size=None, num_workers=0)
    with pytest.raises(ValueError, match="shards was 10 and is 9"):
        _ = batches.load_state_dict(merged) or next(iter(batches))


def test_a_shard_that_changed_is_refused(shards: FakeServer) -> None:
    """Its samples have other numbers now: the shard and both versions are named."""
    merged = fb.merge_states(read(2, 0, None, [3, 3])[1])
    again = fb.merge_states(read(3, 0, merged, [1, 1, 1])[1])
    for number, count in enumerate(SIZES):
        shards.put(f"/s3/bucket/{number:03d}.tar", tar_shard(number, samples=count, size=21))
    for state in (merged, again):
        with pytest.raises(ValueError, match=r"shard s3://bucket/0\d\d\.tar has changed"):
            read(1, 0, state, [None])
