"""``fb.WebLoader.state_dict``: stopped after any batch, the loader goes on with the batches that would have come.

Each "new process" is a new loader, and a state is what JSON makes of it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import LONG, ordinarily
from support.tars import tar_shard

import forebay_loader as fb
from forebay_loader.loading.batch_ladder import BatchJoin, BatchLadder
from forebay_loader.resume.state_parts import sealed

wds = pytest.importorskip("webdataset")
torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore")]

SIZES = (7, 3, 9, 1, 6, 4)  # samples of each shard: workers end at different times
LISTED: list[str] = []  # of files: by the hundreds of passes of the long run, a server of Python's would cost minutes
EPOCHS = 3


BEHIND: dict[str, Callable[[Any], Any]] = {
    "": lambda made: made,
    "shuffled": lambda made: made.unbatched().shuffle(9, initial=4).batched(3),
    "put together": lambda made: made.unbatched().map(copied).batched(4, partial=False),
    "batches shuffled": lambda made: made.shuffle(3),
    "rows": lambda made: made.unbatched().select(is_wanted).shuffle(8, seed=5),
}


def copied(row: Any) -> Any:
    return tuple(row)


def is_wanted(row: tuple[str]) -> bool:
    return not row[0].endswith("-002")


class Case(NamedTuple):
    """A pipeline and its loader."""

    workers: int = 0
    buffer: int = 5
    batch: int = 2
    partial: bool = True
    collated: bool = False  # by torch, of single samples
    persistent: bool = False
    every: int = 2
    fixed: int = 0  # batches an epoch
    main: str = ""  # what comes behind torch's loader

    def loader(self, **how: Any) -> Any:
        data = fb.WebDataset(LISTED, shardshuffle=True, seed=3).shuffle(self.buffer, initial=3).to_tuple("__key__")
        given = {"num_workers": self.workers, "persistent_workers": self.persistent, "snapshot_every": self.every, **how}
        if self.collated:
            made = fb.WebLoader(data, batch_size=self.batch, drop_last=not self.partial, **given)
        else:
            made = fb.WebLoader(data.batched(self.batch, partial=self.partial), batch_size=None, **given)
        made = BEHIND[self.main](made)
        return made.with_epoch(self.fixed) if self.fixed else made


@pytest.fixture(autouse=True, scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("bucket")
    for number, samples in enumerate(SIZES):
        (folder / f"{number:03d}.tar").write_bytes(tar_shard(number, samples=samples, size=10))
    LISTED[:] = sorted(str(path) for path in folder.iterdir())


def keys(batch: Any) -> list[str]:
    (found,) = batch
    return [found] if isinstance(found, str) else list(found)


def whole(loader: Any, epochs: int = EPOCHS) -> list[list[list[str]]]:
    return [[keys(batch) for batch in loader] for _ in range(epochs)]


def stopped(loader: Any, epoch: int, after: int) -> tuple[list[list[str]], dict[str, Any]]:
    """What came of ``epoch`` in its first ``after`` batches, and the state then, as a checkpoint keeps it."""
    whole(loader, epoch)
    seen = []
    iterator = iter(loader)
    while len(seen) < after:
        seen.append(keys(next(iterator)))
    return seen, json.loads(json.dumps(loader.state_dict()))


def resumed(case: Case, state: dict[str, Any]) -> Any:
    made = case.loader()
    made.load_state_dict(state)
    return made


def goes_on(case: Case, epoch: int, share: float) -> dict[str, Any]:
    """Stopped after that share of the batches of ``epoch``, what comes is the rest of it, and then the next one; the state then."""
    expected = whole(case.loader())
    after = round(share * len(expected[epoch]))
    before, state = stopped(case.loader(), epoch, after)
    assert state["given"] == after
    loader = resumed(case, state)
    found = whole(loader, EPOCHS - epoch)
    assert [before + found[0], *found[1:]] == expected[epoch:]
    return state


CASES = st.builds(
    Case,
    workers=st.just(0),
    persistent=st.just(False),
    buffer=st.integers(1, 40),
    batch=st.integers(1, 5),
    partial=st.booleans(),
    collated=st.booleans(),
    every=st.integers(1, 6),
    fixed=st.sampled_from([0, 0, 4, 17]),
    main=st.sampled_from([*BEHIND]),
)
STOPS = {"epoch": st.integers(0, EPOCHS - 1), "share": st.floats(0, 1)}
REPEATED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.timeout(1100)  # of all 150, beside other tests
@settings(REPEATED, max_examples=ordinarily(5, of=150, what="pipelines that go on in the training process"))
@given(case=CASES, **STOPS)
def test_it_goes_on_in_the_training_process(case: Case, epoch: int, share: float) -> None:
    """Whatever the buffer, the batches, the snapshots and the place."""
    goes_on(case, epoch, share)


@pytest.mark.parametrize("main", [name for name in BEHIND if name])
def test_what_stages_of_the_training_process_hold(main: str) -> None:
    """Rows in their buffer, and in the batch that is being taken apart; a state taken again where it was loaded is as good."""
    case = Case(main=main, every=3)
    (expected,) = whole(case.loader(), 1)
    for after in range(0, len(expected) - 1, 3):
        before, state = stopped(case.loader(), 0, after)
        again = resumed(case, state)
        more = [keys(batch) for _, batch in zip(range(2), again, strict=False)]
        assert before + more + whole(resumed(case, json.loads(json.dumps(again.state_dict()))), 1)[0] == expected


@pytest.mark.timeout(1100)
@settings(REPEATED, max_examples=50)
@given(case=st.builds(Case._replace, CASES, workers=st.integers(1, 3), persistent=st.booleans()), **STOPS)
@pytest.mark.skipif(not LONG, reason="50 sets of workers are started in scripts/test --long; four of them below")
def test_it_goes_on_in_workers(case: Case, epoch: int, share: float) -> None:
    """The same, in one to three workers, which may stay."""
    goes_on(case, epoch, share)


@pytest.mark.parametrize(
    ("case", "epoch", "share"),
    [
        (Case(3), 0, 0.5),
        pytest.param(Case(2, persistent=True), 1, 0.6, marks=pytest.mark.once),
        pytest.param(Case(2, collated=True, partial=False), 1, 0.9, marks=pytest.mark.once),  # one worker has ended
        pytest.param(Case(2, fixed=17), 1, 0.8, marks=pytest.mark.once),  # in the second of the passes that make the epoch
        pytest.param(Case(2, main="shuffled"), 0, 0.6, marks=pytest.mark.once),
    ],
)
def test_whose_turn_it_was_is_whose_turn_it_is(case: Case, epoch: int, share: float) -> None:
    """Workers take turns on, as they would have: in the first cases from another one than torch begins with."""
    state = goes_on(case, epoch, share)
    assert state["next"] or case not in (Case(3), Case(2, persistent=True))


def test_before_the_first_batch_and_after_the_last() -> None:
    """A state that nothing was handed out of begins its epoch; behind the last one comes the next epoch."""
    case = Case(fixed=4)
    expected = whole(case.loader())
    loader = case.loader()
    assert whole(resumed(case, loader.state_dict())) == expected
    whole(loader, 1)
    state = loader.state_dict()
    assert (state["over"], state["upcoming"], state["given"]) == (True, 1, 4)
    assert whole(resumed(case, state), 2) == expected[1:]
    again = resumed(case, state)
    assert whole(resumed(case, again.state_dict()), 2) == expected[1:]


@pytest.mark.parametrize("fixed", [4, 40])
def test_behind_the_last_batch_of_an_epoch_of_so_many(fixed: int) -> None:
    """Its end was not seen, nothing of it is left, and what comes behind is the next one: also where it was made of several passes."""
    goes_on(Case(fixed=fixed), 0, 1.0)
    goes_on(Case(fixed=fixed), 1, 1.0)


def test_what_was_fetched_and_not_seen_comes_again() -> None:
    """One of the last eight states; not one before, nor one to come. A number is never behind the epoch's end."""
    case = Case(buffer=12, every=3)
    (expected,) = whole(case.loader(), 1)
    loader = case.loader()
    for _ in zip(range(12), loader, strict=False):
        pass
    for seen in range(4, 13):
        assert whole(resumed(case, loader.state_dict(seen=seen)), 1) == [expected[seen:]]
    for seen in (3, 13):
        with pytest.raises(ValueError, match=f"seen={seen}, and 12 batches of this epoch .* from seen=4 on"):
            loader.state_dict(seen=seen)
    whole(loader, 1)
    assert whole(resumed(case, loader.state_dict(seen=len(expected))), 1) == [[]]


def test_a_state_of_other_ranks_or_workers_is_refused() -> None:
    """With both worlds named, and what can be done about it; so are the state of a data set, and that of another data set."""
    _, state = stopped(Case().loader(), 0, 3)
    for other in ({"size": 4, "rank": 1}, {"workers": 2}):
        with pytest.raises(ValueError, match=r"of rank . of . with . workers, and this is rank 0 of 1 with 0\. fb\.merge_states"):
            Case().loader().load_state_dict(sealed({**state, **other}))
    with pytest.raises(ValueError, match="it is a data set's, and a loader takes its own"):
        Case().loader().load_state_dict(sealed(state["states"][0]["state"]))
    with pytest.raises(ValueError, match="it is of another data set or split: stages was"):
        whole(resumed(Case(buffer=6), state), 1)


def test_no_state_where_none_is_kept() -> None:
    """Of another data set NotResumable, which says of which; with snapshot_every=0 an empty one, which may be loaded."""
    other = fb.WebLoader(wds.DataPipeline(wds.SimpleShardList(LISTED), fb.tarfile_to_samples()), batch_size=None)
    with pytest.raises(fb.NotResumable, match=r"is a webdataset\.pipeline\.DataPipeline, which does not say where it stands"):
        other.state_dict()
    silent = Case(every=0).loader()
    assert silent.state_dict() == {}
    silent.load_state_dict({})
    assert whole(silent) == whole(Case().loader())
    with pytest.raises(ValueError, match="snapshot_every=0, which keeps no state"):
        silent.load_state_dict(Case().loader().state_dict())


def test_the_size_that_a_batch_ladder_has_come_to_is_kept() -> None:
    """And where it stands is counted in batches of the user's own size."""
    case = Case(buffer=12)
    (expected,) = whole(case.loader(), 1)
    loader = case.loader(batch_ladder=(2, 4), on_batch_size=lambda size: None)
    loader.ladder.load_state_dict({**loader.ladder.state_dict(), "controller": {**loader.ladder.state_dict()["controller"], "rung": 1}})
    given = [keys(batch) for _, batch in zip(range(3), loader, strict=False)]
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["given"], state["made"], [len(batch) for batch in given]) == (3, 6, [4, 4, 4])
    after = case.loader(batch_ladder=(2, 4))
    after.load_state_dict(state)
    found = [keys(batch) for batch in after]
    assert len(found[0]) == 4
    assert [key for batch in given + found for key in batch] == [key for batch in expected for key in batch]


def test_batches_that_do_not_fit_together_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder had four in hand to put together: a state between them has those that were handed out, and the next ones come."""
    monkeypatch.setattr(BatchJoin, "__call__", lambda join, parts: refuse() if len(parts) > 1 else parts[0])
    monkeypatch.setattr(BatchLadder, "_try_early", lambda ladder, join, batch: None)
    case = Case(buffer=12)
    (expected,) = whole(case.loader(), 1)
    loader = case.loader(batch_ladder=(2, 4, 8))
    loader.ladder.load_state_dict({**loader.ladder.state_dict(), "steps": 5})
    loader.ladder._controller.rung = 2
    given, states = [], []
    for batch in loader:
        given.append(keys(batch))
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert given == expected
    for number, state in enumerate(states[:6], 1):
        assert whole(resumed(case, state), 1) == [expected[number:]]


def refuse() -> None:
    raise ValueError("these do not fit")


def test_what_may_hold_rows_unseen_is_named() -> None:
    """A stage of one's own behind the loader, or a known one where it cannot be known: training goes on, and only a state is refused."""
    for behind, name in (
        (lambda made: made.compose(lambda rows: rows), "<lambda>"),
        (lambda made: made.unbatched().shuffle(3).shuffle(3), "shuffle"),
        (lambda made: made.shuffle(3, rng=random.Random(1)), "shuffle"),
    ):
        loader = behind(Case().loader())
        loader.state_dict()
        next(iter(loader))
        with pytest.raises(fb.NotResumable, match=f"cannot go on exactly: its stage {name}, in the training process"):
            loader.state_dict()


@pytest.mark.once
def test_a_killed_worker_costs_no_batch() -> None:
    """``kill -9``: the loader raises, and its state is where the last batch was handed out."""
    case = Case(2, buffer=12)
    expected = whole(case.loader())
    loader = case.loader()
    before = []
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (killed|exited unexpectedly)"):  # noqa: PT012 -- wherever it notices
        for batch in loader:
            before.append(keys(batch))
            if len(before) == 3:
                os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    assert 3 <= len(before) < len(expected[0])
    rest = whole(resumed(case, loader.state_dict()), 2)
    assert [before + rest[0], rest[1]] == expected[:2]


@pytest.mark.once
@pytest.mark.skipif(not LONG, reason="spawned workers import torch for seconds; scripts/test --long starts them")
def test_spawned_workers_take_their_turns_too() -> None:
    """The state reaches them by pickle, and so does what their batches carry."""
    case = Case(2, main="shuffled")
    (expected,) = whole(case.loader(), 1)
    loader = case.loader(multiprocessing_context="spawn")
    before = [keys(batch) for _, batch in zip(range(3), loader, strict=False)]
    after = case.loader(multiprocessing_context="spawn")
    after.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert before + whole(after, 1)[0] == expected
