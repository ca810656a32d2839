"""A broken-off iteration that another process goes on with: torchdata's ``StatefulDataLoader``, as trainers use it; exactly, or refused in
words. Each "new process" is a new data set, which has counted no epoch."""

from __future__ import annotations

import functools
import os
import pickle
import random
import re
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.lengths import ordinarily
from support.tars import tar_shard

import forebay_loader as fb
from forebay_loader.dataset.resume import made_of
from forebay_loader.identity.world import World

wds = pytest.importorskip("webdataset")
pytest.importorskip("numpy.random")  # torchdata's forked workers would import it, beside threads that this process has and they do not
stateful = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = [pytest.mark.webdataset, pytest.mark.usefixtures("shards")]

SHARDS = 8
SAMPLE_BYTES = 30
SAMPLES = 5 * SHARDS
PATTERN = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
LISTED = [PATTERN.replace("{000..007}", f"{number:03d}") for number in range(SHARDS)]
OVER = 10**6  # batches: more than there are
Made = Callable[[], Any]


def shuffled(**how: Any) -> Any:
    return fb.WebDataset(PATTERN, **{"shardshuffle": True, **how})


PIPELINES: dict[str, Made] = {
    "shards shuffled": lambda: shuffled().to_tuple("__key__"),
    "samples shuffled": lambda: shuffled().shuffle(20, initial=10).to_tuple("__key__"),
    "deterministic buffers": lambda: shuffled(shardshuffle=4, detshuffle=True).compose(wds.detshuffle(20)).to_tuple("__key__"),
    "several passes an epoch": lambda: shuffled().shuffle(10).to_tuple("__key__").with_epoch(SAMPLES + 7),
    "drawn without end": lambda: shuffled(resampled=True).shuffle(10).to_tuple("__key__").with_epoch(30),
}


def loader(data: Any, workers: int, *, persistent: bool = False) -> Any:
    return stateful.StatefulDataLoader(data, batch_size=3, num_workers=workers, persistent_workers=persistent)


def keys(batches: Any) -> list[str]:
    return [key for batch in batches for fields in batch for key in fields]


def epochs(batches: Any, count: int) -> list[list[str]]:
    return [keys(batches) for _ in range(count)]


def broken_off(batches: Any, epoch: int, after: int) -> tuple[list[str], dict[str, Any]]:
    """What came of ``epoch`` in its first ``after`` batches, and the state then, as a checkpoint keeps it."""
    epochs(batches, epoch)
    seen, iterator = [], iter(batches)
    for at, batch in enumerate(iterator, 1):
        seen.append(batch)
        if at == after:
            break
    return keys(seen), pickle.loads(pickle.dumps(batches.state_dict()))


@functools.cache
def uninterrupted(name: str, workers: int, persistent: bool = False) -> list[list[str]]:
    """Three epochs."""
    return epochs(loader(PIPELINES[name](), workers, persistent=persistent), 3)


# In workers that stay, `detshuffle` counts its passes on, and several passes may be begun for one epoch; the others know epochs alone.
STAYING = sorted(PIPELINES, key=lambda name: name not in ("several passes an epoch", "deterministic buffers"))
STAYING = STAYING[: ordinarily(2, of=len(PIPELINES), what="pipelines resumed in workers that stay")]
_IN_BOTH = ("samples shuffled", "several passes an epoch")  # of those in workers, whose forks take long; the others are in one version
_LATER = [(name, 0, False) for name in PIPELINES]
# What the others draw is told without workers.
_STARTED = sorted(PIPELINES, key=lambda name: name not in (*_IN_BOTH, "deterministic buffers"))
_STARTED = _STARTED[: ordinarily(3, of=len(PIPELINES), what="pipelines resumed in workers")]
_LATER += [pytest.param(name, 2, False, marks=[] if name in _IN_BOTH else pytest.mark.once) for name in _STARTED]
_LATER += [pytest.param(name, 2, True, marks=pytest.mark.once) for name in STAYING]


@pytest.mark.parametrize(("name", "workers", "persistent"), _LATER)
def test_a_later_epoch_goes_on_exactly(name: str, workers: int, persistent: bool) -> None:
    """What had come and what comes are the epoch, in its order; the epoch after it is the next one, too."""
    made = PIPELINES[name]
    before, state = broken_off(loader(made(), workers, persistent=persistent), 1, 3)
    resumed = loader(made(), workers, persistent=persistent)
    resumed.load_state_dict(state)
    assert [before + keys(resumed), keys(resumed)] == uninterrupted(name, workers, persistent)[1:]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.once)])
@pytest.mark.parametrize("after", [1, OVER])
def test_wherever_it_broke_off(workers: int, after: int) -> None:
    """After its first batch; and behind its last, where what comes is the next epoch."""
    name = "deterministic buffers"
    before, state = broken_off(loader(PIPELINES[name](), workers), 1, after)
    resumed = loader(PIPELINES[name](), workers)
    resumed.load_state_dict(state)
    if after != OVER:
        assert before + keys(resumed) == uninterrupted(name, workers)[1]
    assert keys(resumed) == uninterrupted(name, workers)[2]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.once)])
def test_a_state_taken_before_the_first_batch_and_one_right_after_resuming(workers: int) -> None:
    """It says where the iteration stands, not what it has given since."""
    name = "samples shuffled"
    made = PIPELINES[name]
    first = loader(made(), workers)
    keys(first)
    iter(first)
    begun = loader(made(), workers)
    begun.load_state_dict(first.state_dict())
    before, state = broken_off(begun, 0, 2)
    between = loader(made(), workers)
    between.load_state_dict(state)
    last = loader(made(), workers)
    last.load_state_dict(between.state_dict())
    assert before + keys(last) == uninterrupted(name, workers)[1]


@pytest.mark.once
def test_back_in_the_same_process() -> None:
    """A data set that has gone on may be sent back; what follows is counted from there."""
    batches = loader(shuffled().to_tuple("__key__"), 2)
    before, state = broken_off(batches, 1, 3)
    keys(batches)
    batches.load_state_dict(state)
    assert [before + keys(batches), keys(batches)] == uninterrupted("shards shuffled", 2)[1:]


def drawn_by_own(made: Callable[..., Any]) -> Any:
    return made(resume="replay").shuffle(9, rng=random.Random(1))


REFUSED: list[tuple[Made, Made, str]] = [
    (shuffled, lambda: fb.WebDataset(PATTERN.replace("7", "6"), shardshuffle=True), "shards was 8 and is 7"),
    (shuffled, lambda: shuffled(seed=3), "seed=3"),
    (shuffled, lambda: shuffled(shardshuffle=False), "shuffled=False"),
    (shuffled, lambda: shuffled(data_parallel=(0, 2), nodesplitter=wds.split_by_node), "rank was '0 of 1' and is '0 of 2'"),
    (shuffled, lambda: shuffled().shuffle(10), "stages was"),
    (lambda: shuffled().shuffle(10), lambda: shuffled().shuffle(20), "SampleShuffle 20"),
    (lambda: shuffled().compose(wds.detshuffle(10)), lambda: shuffled().compose(wds.detshuffle(20)), "detshuffle 20"),
    (lambda: shuffled().batched(2).unbatched(), lambda: shuffled().batched(3).unbatched(), "_batched 3"),
    (lambda: fb.WebDataset(LISTED), lambda: fb.WebDataset([*LISTED[4:], *LISTED[:4]]), "their names was"),
    (lambda: drawn_by_own(shuffled), lambda: drawn_by_own(shuffled), "draws from your own generator"),
    (shuffled, lambda: shuffled(epoch=0), "is of epoch 1, and what epoch= names says 0"),
]  # fmt: skip
IN_WORKERS = ordinarily(2, of=len(REFUSED), what="refusals of a state in workers")
_PLACES = [(*each, 0) for each in REFUSED]
_PLACES += [pytest.param(*each, 2, marks=pytest.mark.once) for each in REFUSED[:: len(REFUSED) // IN_WORKERS]]


@pytest.mark.parametrize(("was", "now", "words", "workers"), _PLACES)
def test_refused_in_words(was: Made, now: Made, words: str, workers: int) -> None:
    """Other data, another split or an order that nobody can repeat: samples would be lost without a word."""
    if "_batched" in words and version("webdataset").startswith("0."):
        pytest.skip("0.2.86 batches no dicts")
    _, state = broken_off(loader(was().to_tuple("__key__"), workers), 1, 2)
    resumed = loader(now().to_tuple("__key__"), workers)
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match=re.escape(words)):
        keys(resumed)


def test_what_only_signs_a_url_may_be_another() -> None:
    """URLs signed anew, a token renewed, a store that moved: the same shards in the same order go on."""
    was, now = (
        [f"pipe:curl -sL -H 'Authorization: Bearer {word}' {base}/data/{number:03d}.tar?sig={word}" for number in range(SHARDS)]
        for word, base in (("one", "https://near"), ("two", "https://far:8443/mirror"))
    )
    world = World.here(None, None)
    assert made_of(was, None, world, ()) == made_of(now, None, world, ())
    assert made_of(was, None, world, ()) != made_of(was[::-1], None, world, ())
    many = [f"s3://bucket/{number:06d}.tar" for number in range(100_000)]
    assert made_of(many, None, world, ()) != made_of(many[::-1], None, world, ())


def test_fewer_samples_than_had_come(shards: FakeServer) -> None:
    """Shards that lost samples since: an error, not a short epoch."""
    _, state = broken_off(loader(shuffled().to_tuple("__key__"), 0), 1, 12)
    for number in range(SHARDS):
        shards.put(f"/s3/bucket/{number:03d}.tar", tar_shard(number, samples=1))
    resumed = loader(shuffled().to_tuple("__key__"), 0)
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match="has changed: the state that was loaded was taken in its version"):
        keys(resumed)
    resumed = loader(shuffled(resume="replay").to_tuple("__key__"), 0)
    resumed.load_state_dict(state)
    with pytest.raises(ValueError, match="had yielded 36 of epoch 1, which has 8 now"):
        keys(resumed)


def test_not_by_hand_across_processes() -> None:
    """The process that holds a DataLoader does not read: it has no state to give, and what it loads is refused in a worker."""
    with pytest.raises(RuntimeError, match="no iteration of this data set was begun in this process"):
        shuffled().state_dict()
    data = shuffled()
    next(iter(data))
    state = data.state_dict()
    resumed = shuffled()
    resumed.load_state_dict(state)
    child = os.fork()
    if not child:
        try:
            list(resumed)
        except ValueError as error:
            os._exit(0 if "in another process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_the_order_of_samples_is_of_seed_epoch_and_worker() -> None:
    """The same in another process; another one in the next epoch, with another seed, and with webdataset's own arguments left to it."""
    first = epochs(loader(shuffled().shuffle(20).to_tuple("__key__"), 2), 2)
    again = epochs(loader(shuffled().shuffle(20).to_tuple("__key__"), 2), 2)
    assert first == again
    assert first[0] != first[1]
    assert sorted(first[0]) == sorted(first[1])
    listed = fb.WebDataset(PATTERN, shardshuffle=False)
    assert [s["__key__"] for s in listed.shuffle(20)] != [
        s["__key__"] for s in fb.WebDataset(PATTERN, shardshuffle=False, seed=1).shuffle(20)
    ]
    own = listed.shuffle(20, rng=random.Random(5))
    theirs = wds.shuffle(20, rng=random.Random(5))(iter(list(listed)))
    assert [sample["__key__"] for sample in own] == [sample["__key__"] for sample in theirs]
    assert listed.shuffle(0) is listed
