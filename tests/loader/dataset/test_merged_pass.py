"""What is left of an epoch, read by another number of ranks: from ``fb.merge_states``, each sample once over all of them."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.tars import shard_files

import forebay_loader as fb
from forebay_loader.resume.state_parts import sealed

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

COUNTS = (4, 2, 7, 3, 9, 2, 5)
KEYS = sorted(f"{shard:03d}-{number:03d}" for shard, count in enumerate(COUNTS) for number in range(count))


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return shard_files(tmp_path_factory.mktemp("shards"), COUNTS)


def rank_of(urls: list[str], rank: int, size: int, buffer: int = 4) -> Any:
    data = fb.WebDataset(urls, shardshuffle=True, nodesplitter=wds.split_by_node, data_parallel=(rank, size), empty_check=False)
    return data.shuffle(buffer).map(lambda sample: sample["__key__"])


def world(urls: list[str], size: int, stops: list[int], state: dict[str, Any] | None, passes: int = 1) -> tuple[list[str], dict[str, Any]]:
    """What ``size`` ranks give, each as many samples as its stop says, and the merged state of them all."""
    found, states = [], []
    for rank in range(size):
        data = rank_of(urls, rank, size).repeat(passes)
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))
        given = iter(data)
        found += islice(given, stops[rank])
        states.append(data.state_dict())
    return found, fb.merge_states(states)


STOPS = st.lists(st.integers(0, 9), min_size=4, max_size=4)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), STOPS, STOPS)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_twice_and_nothing_missing(urls: list[str], first: int, then: int, last: int, stops: list[int], more: list[int]) -> None:
    """Over three worlds, whatever waited in their buffers."""
    found, state = world(urls, first, stops, None)
    again, state = world(urls, then, more, state)
    rest, _ = world(urls, last, [10**6] * last, state)
    assert sorted(found + again + rest) == KEYS


@pytest.mark.parametrize(("stop", "turn"), [(2, 0), (20, 1)])
def test_passes_of_an_epoch(urls: list[str], stop: int, turn: int) -> None:
    """Stopped where all ranks are in the first of two, or in the second: what is left of that is read, and then the one behind it."""
    found, state = world(urls, 2, [stop, stop], None, 2)
    assert state["turn"] == turn
    again, state = world(urls, 3, [2, 2, 3], state, 2)
    rest, _ = world(urls, 1, [10**6], state, 2)
    assert sorted(found + again + rest) == sorted(KEYS * 2)


def test_ranks_in_different_passes(urls: list[str]) -> None:
    """What one has read of the second is read by another in the first: refused; so are fewer passes than were begun."""
    with pytest.raises(ValueError, match="pass within the epoch is 1 on rank 0, worker 0 and 0 on rank 1"):
        world(urls, 2, [20, 2], None, 2)
    with pytest.raises(ValueError, match="passes was '2 of -1 each' and is '1 of -1 each'"):
        world(urls, 1, [1], world(urls, 2, [20, 20], None, 2)[1])


@pytest.mark.once
def test_loaded_before_workers_start(urls: list[str]) -> None:
    """By the process that only holds a ``DataLoader``; workers of the next epoch, which are started from it too, read all."""
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader  # noqa: PLC0415  # where there is torch

    found, state = world(urls, 2, [5, 3], None)
    data = rank_of(urls, 0, 1)
    data.load_state_dict(state)
    loader = DataLoader(data, batch_size=None, num_workers=2)
    assert sorted(found + list(loader)) == KEYS
    assert sorted(loader) == KEYS


def test_draws_without_end_are_not_merged(urls: list[str]) -> None:
    """Their rest is no set: they resume on the same ranks only."""
    _, state = world(urls, 1, [5], None)
    data = fb.WebDataset(urls, resampled=True)
    state = sealed({**state, "made_of": data._made_of()})
    with pytest.raises(ValueError, match="drawn without end resume on the same ranks and workers only"):
        data.load_state_dict(state)
