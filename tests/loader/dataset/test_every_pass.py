"""Over passes, workers, empty and broken shards and stages each sample comes as often as webdataset gives it; and what has none ends."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.tars import tar_shard

import forebay_loader as fb
from forebay_loader.dataset import web_dataset

wds = pytest.importorskip("webdataset")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # webdataset leaves files to the collector

BROKEN, CUT = -1, -2  # instead of a number of samples
SHARDS = st.lists(st.sampled_from([0, 0, 1, 1, 2, 5, 9, BROKEN, CUT]), min_size=1, max_size=8)
ALL_EMPTY = [0, BROKEN, 0]
STAGES: dict[str, Callable[[Any], Any]] = {
    "none": lambda data: data,
    "shuffle": lambda data: data.shuffle(4, initial=2),
    "select": lambda data: data.select(lambda sample: not sample["__key__"].endswith("1")),
    "shuffle, select, batched": lambda data: STAGES["select"](data.shuffle(3)).batched(2, collation_fn=None),
    "batched, unlisted": lambda data: data.batched(3, collation_fn=None).unlisted(),
    "rsample of all": lambda data: data.rsample(1.0),
}


class Sets:
    """Shards as files, each kind written once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def urls(self, kinds: list[int]) -> list[str]:
        found = [self._folder / f"{at}-{kind}.tar" for at, kind in enumerate(kinds)]
        for at, kind in enumerate(kinds):
            if not found[at].exists():
                cut = tar_shard(at, 3, size=2000)
                found[at].write_bytes(b"no tar" * 200 if kind == BROKEN else cut[:-11_000] if kind == CUT else tar_shard(at, kind, size=20))
        return list(map(str, found))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    return Sets(tmp_path_factory.mktemp("shards"))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    monkeypatch.setattr(web_dataset, "in_worker", lambda: True)  # a state without a sample is loaded there, too

    def at(worker: int, workers: int) -> None:
        monkeypatch.setenv("WORKER", str(worker))
        monkeypatch.setenv("NUM_WORKERS", str(workers))

    return at


def ours(urls: list[str], **how: Any) -> Any:
    return fb.WebDataset(urls, handler=wds.ignore_and_continue, empty_check=False, **{"shardshuffle": True, "seed": 3, **how})


def keys(outputs: Any) -> list[str]:
    return [key for one in outputs for key in ([one["__key__"]] if isinstance(one, dict) else keys(one))]


def webdatasets(urls: list[str], stages: Callable[[Any], Any]) -> Counter[str]:
    """How often each sample comes in one pass of one worker."""
    found = Counter[str]()
    with contextlib.suppress(ValueError):  # 1.0.2 says so where nothing is there
        found.update(keys(stages(wds.WebDataset(urls, handler=wds.ignore_and_continue, shardshuffle=False))))
    return found


EVERYWHERE = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@given(SHARDS, st.integers(1, 6), st.integers(1, 8), st.sampled_from(sorted(STAGES)), st.booleans())
@example([9, 9, 9, 0, 9, 9, 9, 9], 10, 8, "none", True)
@example([9, 9, 9, BROKEN, 9, 9, 9, 9], 10, 8, "none", True)
@example([9, 1], 10, 4, "none", True)
@EVERYWHERE
def test_repeated_passes(
    sets: Sets, place: Callable[[int, int], None], kinds: list[int], passes: int, workers: int, stages: str, shuffled: bool
) -> None:
    """``repeat(n)`` of all workers gives each sample n times as often as one pass of webdataset's does."""
    urls, found = sets.urls(kinds), Counter[str]()
    place(0, 1)
    once = webdatasets(urls, STAGES[stages])
    for worker in range(workers):
        place(worker, workers)
        found.update(keys(STAGES[stages](ours(urls, shardshuffle=shuffled)).repeat(passes)))
    assert found == Counter({key: count * passes for key, count in once.items()})


@given(SHARDS, st.integers(1, 40), st.integers(1, 6))
@example([0, 6, 6], 4, 3)
@example(ALL_EMPTY, 4, 2)
@EVERYWHERE
def test_endless_passes(sets: Sets, place: Callable[[int, int], None], kinds: list[int], wanted: int, workers: int) -> None:
    """``.repeat()`` and ``with_epoch(n)`` go on for each worker that may have any sample in any pass, and end for those that may not."""
    urls = sets.urls(kinds)
    most = max(2 if kind == CUT else kind for kind in kinds)
    for worker in range(workers):
        place(worker, workers)
        stripe = worker // len(kinds) if workers > len(kinds) else 0
        expected = wanted if most > stripe else 0
        for data in (ours(urls).repeat(), ours(urls).with_epoch(wanted)):
            assert len(list(islice(data, wanted))) == expected


@given(SHARDS, st.integers(1, 4), st.integers(0, 10**6), st.sampled_from(["repeat", "with_epoch", "loaded first"]))
@example([0, 6, 6], 3, 1, "loaded first")
@EVERYWHERE
def test_resumed_over_empty_passes(
    sets: Sets, place: Callable[[int, int], None], kinds: list[int], workers: int, stop: int, way: str
) -> None:
    """A worker goes on as it would have, also from the state that it had before its first sample."""
    urls = sets.urls(kinds)

    def made() -> Any:
        return ours(urls).shuffle(3).repeat(3) if way == "repeat" else ours(urls).shuffle(3).with_epoch(7)

    for worker in range(workers):
        place(worker, workers)
        whole, data = keys(made()), made()
        at = 0 if way == "loaded first" else stop % (len(whole) + 1)
        outputs = iter(data)
        assert keys(islice(outputs, at)) == whole[:at]
        state = json.loads(json.dumps(data.state_dict()))
        data = made()
        data.load_state_dict(state)
        assert keys(data) == whole[at:]


@given(SHARDS, st.integers(1, 5), st.integers(1, 3))
@example([0, 5], 8, 2)
@EVERYWHERE
def test_repeated_passes_of_ranks(sets: Sets, kinds: list[int], passes: int, ranks: int) -> None:
    """``fb.WebLoader(…).repeat(n)`` of all ranks does, and its ``with_epoch(n)`` goes on where any shard has a sample."""
    urls, found = sets.urls(kinds), Counter[str]()
    for rank in range(ranks):
        data = ours(urls, nodesplitter=wds.split_by_node, data_parallel=(rank, ranks))
        made = fb.WebLoader(data, batch_size=None, equal_steps=False)
        found.update(keys(made.repeat(passes)))
        if rank < len(kinds):
            steps = fb.WebLoader(data, batch_size=None).with_epoch(6)
            with contextlib.nullcontext() if set(kinds) - {0, BROKEN} else pytest.raises(fb.StepsError):
                assert len(list(steps)) == 6
    assert found == Counter({key: count * passes for key, count in webdatasets(urls, lambda data: data).items()})


@pytest.mark.once  # what a share draws is ours; ``rsample`` of all is among the stages above
@pytest.mark.parametrize("how", [{"resampled": True}, {}])
def test_a_share_drawn_at_each_visit(sets: Sets, how: dict[str, Any]) -> None:
    """Over many visits each sample comes at the rate that ``rsample`` was given."""
    urls, visits = sets.urls([9, 9, 0, 9, 9]), 400
    found = Counter(keys(islice(ours(urls, **how).rsample(0.1).repeat(), 36 * visits // 10)))
    assert len(found) == 36
    assert all(0.04 < count / visits < 0.18 for count in found.values())


@pytest.mark.once
def test_a_share_of_few_samples_is_met(sets: Sets) -> None:
    """Two samples of which a draw takes none at first come later, however shards are drawn."""
    for how in ({"resampled": True}, {}):
        for seed in range(5):
            data = ours(sets.urls([0, 2, BROKEN, BROKEN]), **{**how, "seed": seed}).rsample(0.02)
            assert len(list(data.with_epoch(4))) == 4


@pytest.mark.parametrize("how", [{"resampled": True}, {}])
def test_what_is_empty_ends(sets: Sets, how: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Shards without a sample end what repeats them without end."""
    assert list(ours(sets.urls(ALL_EMPTY), **how).repeat()) == []
    assert list(ours(sets.urls(ALL_EMPTY), **how).with_epoch(5)) == []


def test_a_stage_that_leaves_all_out_ends(sets: Sets) -> None:
    """Passes of which a stage leaves out every sample end."""
    assert list(ours(sets.urls([9, 9])).select(lambda sample: False).repeat()) == []
