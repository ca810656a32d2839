"""States cut anywhere in the passes of ``repeat(n)``: each sample comes exactly once in each pass, or the merge is refused in words."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.tars import shard_files

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")
pytest.importorskip("numpy.random")  # forked workers would import it, beside threads that this process has and they do not

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore")]

COUNTS = (4, 2, 7, 3, 9, 2, 5, 6)
KEYS = [f"{shard:03d}-{number:03d}" for shard, count in enumerate(COUNTS) for number in range(count)]
REFUSED = re.compile("pass within the epoch is|epoch is .* on rank|pass of the loader is|wait in its loader's shuffle buffer")
BEHIND: dict[str, Any] = {
    "nothing": lambda loader: loader,
    "batches": lambda loader: loader.batched(3),
    "a buffer of rows": lambda loader: loader.unbatched().shuffle(6),
    "rows in batches": lambda loader: loader.unbatched().batched(5),
    "all three": lambda loader: loader.unbatched().shuffle(4).batched(3),
}


class Made(NamedTuple):
    """``passes`` of the data set, or of the loader (``outer``); ``batch`` samples in each, put together by torch (``auto``) or before."""

    passes: int = 2
    outer: bool = False
    behind: str = "a buffer of rows"
    batch: int = 2
    auto: bool = False
    every: int = 50
    buffer: int = 0
    shuffled: bool = True

    def loader(self, urls: list[str], rank: int, size: int, workers: int) -> Any:
        split: dict[str, Any] = {"nodesplitter": wds.split_by_node, "data_parallel": (rank, size), "empty_check": False}
        data = fb.WebDataset(urls, shardshuffle=self.shuffled, **split).shuffle(self.buffer).to_tuple("__key__")
        data = (data if self.auto else data.batched(self.batch)).repeat(1 if self.outer else self.passes)
        how = {"num_workers": workers, "equal_steps": False, "snapshot_every": self.every}
        loader = BEHIND[self.behind](fb.WebLoader(data, batch_size=self.batch if self.auto else None, **how))
        return loader.repeat(self.passes) if self.outer else loader


MADE = st.builds(
    Made, st.integers(1, 3), st.sampled_from([False, False, True]), st.sampled_from(sorted(BEHIND)), st.integers(1, 4), st.booleans(),
    st.sampled_from([1, 3, 50]), st.sampled_from([0, 3, 40]), st.booleans(),
)  # fmt: skip


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return shard_files(tmp_path_factory.mktemp("shards"), COUNTS)


def keys(found: Any) -> list[str]:
    """Of the samples in it, however they lie."""
    return [found] if isinstance(found, str) else [key for each in found for key in keys(each)]


def read(loader: Any, steps: int | None) -> list[str]:
    return [key for batch in islice(loader, steps) for key in keys(batch)]


def taken(made: Made, urls: list[str], size: int, workers: int, steps: int, state: Any) -> tuple[list[str], list[Any]]:
    """What ``size`` ranks give in so many ``steps``, and their states, of which each is loaded once more where it was taken."""
    found: list[str] = []
    states = []
    for rank in range(size):
        loader = made.loader(urls, rank, size, workers)
        if state is not None:
            loader.load_state_dict(state)
        found += read(loader, steps)
        state_of = json.loads(json.dumps(loader.state_dict()))
        if steps % 2 and not state_of["over"]:
            loader.load_state_dict(state_of)
            state_of = json.loads(json.dumps(loader.state_dict()))
        states.append(state_of)
    return found, states


def check_worlds(made: Made, urls: list[str], worlds: list[tuple[int, int, int]]) -> bool:
    """Whether all of them were merged, and none was refused."""
    found: list[str] = []
    state = None
    for size, workers, steps in worlds:
        given, states = taken(made, urls, size, workers, steps, state)
        found += given
        try:
            state = json.loads(json.dumps(fb.merge_states(states)))
        except ValueError as error:
            if REFUSED.search(str(error)):
                return False
            raise
        if state["over"]:
            break
    if state is not None and not state["over"]:
        loader = made.loader(urls, 0, 1, 0)
        loader.load_state_dict(state)
        found += read(loader, None)
    assert Counter(found) == dict.fromkeys(KEYS, made.passes)
    return True


@given(MADE, st.lists(st.tuples(st.integers(1, 3), st.just(0), st.integers(0, 60)), min_size=1, max_size=2))
@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_sample_once_in_each_pass(urls: list[str], made: Made, worlds: list[tuple[int, int, int]]) -> None:
    """Of any pipeline, over worlds of any size, stopped and merged anywhere; or in words that it is two passes."""
    check_worlds(made, urls, worlds)


@given(MADE, st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 60)), min_size=1, max_size=2))
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_sample_once_in_each_pass_of_workers(urls: list[str], made: Made, worlds: list[tuple[int, int, int]]) -> None:
    """The same, read by workers."""
    check_worlds(made, urls, worlds)


# A buffer is webdataset's, of either version; which pass waits in it is counted by ours.
_REFUSED = [
    Made(),
    *(pytest.param(made, marks=pytest.mark.once) for made in (Made(outer=True), Made(behind="batches", auto=True, batch=3))),
]


@pytest.mark.parametrize("made", _REFUSED, ids=str)
def test_refused_only_where_a_pass_waits_beside_another(urls: list[str], made: Made) -> None:
    """Cut behind each batch: merged in the first pass and in the second, and refused at most while rows of both are in the buffer."""
    steps = len(list(made.loader(urls, 0, 1, 0)))
    merged = [check_worlds(made, urls, [(1, 0, step)]) for step in range(steps)]
    assert all(merged[: steps // 2 - 6])
    assert all(merged[-8:])
    assert merged.count(False) <= 30 * (made == Made())


@given(MADE, st.integers(0, 40))
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_sound_state_goes_on(urls: list[str], made: Made, steps: int) -> None:
    """In its own world: the very samples that would have come, in their order, whatever pass it was cut in. Of three shards, so that a
    later pass has begun as many as the one that is read again."""
    check_goes_on(made, urls[:3], steps)


def test_a_shard_of_a_later_pass_is_not_taken_for_one_that_changed(urls: list[str]) -> None:
    """Where the loader reads again from a pass before the one that it has come to, behind each of its batches."""
    for steps in range(13):
        check_goes_on(Made(passes=3, behind="batches", auto=False, batch=1), urls[:3], steps)


def check_goes_on(made: Made, urls: list[str], steps: int) -> None:
    whole = read(made.loader(urls, 0, 1, 0), None)
    loader = made.loader(urls, 0, 1, 0)
    found = read(loader, steps)
    state = json.loads(json.dumps(loader.state_dict()))
    loader = made.loader(urls, 0, 1, 0)
    loader.load_state_dict(state)
    assert found + ([] if state["over"] else read(loader, None)) == whole
