"""States of all ranks as one: what is left of the epoch is exact in any world, and what cannot be shared out is refused in words."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.made_worlds import MadeSet, is_done, loader_state, stopped, world

import forebay_loader as fb
from forebay_loader.resume.pass_state import packed
from forebay_loader.resume.state_parts import sealed

sets = st.builds(
    MadeSet, st.lists(st.integers(0, 30), min_size=1, max_size=9), st.sampled_from([0, 0, 3]), st.sampled_from([1, 2, 10, 1000]), st.just(2)
)
worlds = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3)


def merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    """As a checkpoint keeps it."""
    return dict(json.loads(json.dumps(fb.merge_states(json.loads(json.dumps(states))))))


@given(sets, worlds, st.integers(0, 40), st.randoms(use_true_random=False))
@settings(max_examples=examples(200), deadline=None)
def test_any_row_of_worlds_reads_each_sample_once(data: MadeSet, row: list[tuple[int, int]], most: int, rng: random.Random) -> None:
    """Stopped anywhere, merged, gone on in another world, stopped and merged again: all worlds together read the epoch, nothing twice."""
    done: dict[str, Any] = {}
    given: list[tuple[int, int]] = []
    for size, workers in row:
        handed, states = stopped(world(data, size, workers, done), rng, most)
        given += handed
        done = merged(states)["done"]
        assert {sample for sample in data.all() if is_done(done, sample)} == set(given)
    given += stopped(world(data, 1, 2, done), rng, None)[0]
    assert sorted(given) == sorted(data.all())


def one_state(**more: Any) -> dict[str, Any]:
    """Of the only worker of the only rank: shard 2 of six samples and shard 0 of four are behind it, of shard 1 two were read."""
    state = {
        "format": 3, "epoch": 1, "turn": 0, "over": False, "stripe": [0, 1], "read": 12,
        "buffers": [{"refs": packed([3, 11]), "rng": ""}, {"count": 2}],
        "shards": packed([2, 0, 1]), "firsts": packed([0, 0, 0]), "ordinals": packed([0, 6, 10]), "etags": {"2": '"b"'},
        "made_of": {"shards": 4, "rank": "0 of 1", "worker": "0 of 1", "stages": [], "passes": "1 of -1 each"},
    }  # fmt: skip
    return sealed({**state, **more})


def of_loader(*states: dict[str, Any], **more: Any) -> dict[str, Any]:
    entries = [{"worker": at, "state": state, "handed": ""} for at, state in enumerate(states)]
    found = {"format": 3, "kind": "loader", "rank": 0, "size": 1, "workers": len(states), "epoch": 1, "states": entries}
    return sealed({**found, **more})


def test_what_is_done_is_told_shard_by_shard() -> None:
    """A shard that was read to its end is "all"; a sample in a buffer makes a hole; a shard that nobody began is not named."""
    assert fb.merge_states([one_state()])["done"] == {"0": "all", "1": [[0, 1]], "2": [[0, 3], [4, 6]]}
    before = {"1": [[0, 2]], "2": [[3, 4]], "3": "all"}
    assert fb.merge_states([one_state(done=before)])["done"] == {"0": "all", "1": [[0, 2]], "2": "all", "3": "all"}


def test_what_was_handed_out_since_counts_too() -> None:
    """Out of the buffer, read since, and of a shard that was begun since."""
    state = of_loader(one_state())
    state["states"][0] |= {"handed": packed([3, 12, 15]), "shards": packed([3]), "firsts": packed([0]), "ordinals": packed([14])}
    assert fb.merge_states([sealed(state)])["done"] == {"0": "all", "1": [[0, 1], [2, 3]], "2": "all", "3": [[1, 2]]}


def test_a_stripe_is_every_third_sample() -> None:
    """Counted through the whole pass, whatever shard it is in; the others belong to the workers that share it."""
    state = one_state(stripe=[1, 3], buffers=[])
    assert fb.merge_states([state])["done"] == {"0": [[1, 2]], "1": [[0, 1]], "2": [[1, 2], [4, 5]]}


def test_the_end_of_a_piece_is_not_the_end_of_its_shard() -> None:
    """Workers that read pieces of shards leave ranges, from where each piece begins."""
    made_of = {"shards": 4, "rank": "0 of 1", "stages": ["SharedOut"]}
    one = one_state(buffers=[], firsts=packed([5, 0, 0]), made_of={**made_of, "worker": "0 of 2"})
    other = one_state(buffers=[], shards=packed([1, 2, 3]), made_of={**made_of, "worker": "1 of 2"})
    assert fb.merge_states([of_loader(one, other)])["done"] == {"0": [[0, 4]], "1": [[0, 6]], "2": [[0, 4], [5, 11]], "3": [[0, 2]]}


def test_every_form_of_a_state() -> None:
    """The loader's, a data set's own, and torchdata's: the same is done; and versions stay known by shard."""
    stateful = {
        "_snapshot": {"_worker_snapshots": {"worker_0": {"dataset_state": one_state(), "fetcher_state": None}}},
        "_steps_since_snapshot": 0,
    }
    found = [fb.merge_states([each]) for each in (one_state(), of_loader(one_state()), stateful)]
    assert found[0] == found[1] == found[2]
    assert found[0]["etags"] == {"1": '"b"'}
    assert "rank" not in found[0]["made_of"]
    assert "worker" not in found[0]["made_of"]


def test_the_end_of_all_is_the_end() -> None:
    """Every worker is behind its last sample: the merged state says so, and the next epoch follows."""
    assert fb.merge_states([one_state(over=True, buffers=[])])["over"]
    assert not fb.merge_states([one_state()])["over"]
    assert fb.merge_states([of_loader(workers=2, over=True)])["over"]


def two(change: Callable[[list[dict[str, Any]]], Any]) -> list[dict[str, Any]]:
    """The states of two ranks of one world, changed."""
    rng = random.Random(1)
    ranks = world(MadeSet([9] * 6, buffer=4), 2, 1, {})
    for (worker,) in ranks:
        samples = worker.samples(rng)
        for _ in range(12):
            next(samples)
            worker.snapshot()
    states: list[dict[str, Any]] = json.loads(json.dumps([loader_state(rank) for rank in ranks]))
    change(states)
    return [sealed(state) for state in states]


def first(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The worker's state of rank 0."""
    found: dict[str, Any] = states[0]["states"][0]["state"]
    return found


def of_all(states: list[dict[str, Any]], **made_of: Any) -> None:
    for state in states:
        state["states"][0]["state"]["made_of"].update(made_of)


REFUSED: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "a rank is missing": (lambda states: states.pop(), "of 2 ranks rank 1 is missing"),
    "a rank is there twice": (lambda states: states.append(states[0]), "rank 0 is there more than once"),
    "worlds differ": (lambda states: states[1].update(size=3), "the number of ranks is 2 on rank 0 and 3 on rank 1"),
    "workers differ": (lambda states: states[1].update(workers=2), "the number of workers is 1 on rank 0 and 2 on rank 1"),
    "epochs differ": (lambda states: states[1].update(epoch=5), "epoch is 0 on rank 0 and 5 on rank 1"),
    "turns differ": (lambda states: first(states).update(turn=1), "pass within the epoch is 1 on rank 0, worker 0 and 0 on rank 1"),
    "nobody says what was read": (lambda states: states[0].update(given=3, states=[]), "rank 0 handed out 3 batches, and none of its"),
    "data sets differ": (lambda states: first(states)["made_of"].update(shards=7), "is {'shards': 7} on rank 0, worker 0 and {"),
    "drawn with replacement": (lambda states: of_all(states, order="ShardOrder(resampled=True)"), "shards are drawn with replacement"),
    "a source of its own": (lambda states: of_all(states, shards=None), "shards come from a source of their own"),
    "samples are counted": (lambda states: of_all(states, passes="9 of 50 each"), "with_epoch(n) on the data set counts"),
    "replay": (lambda states: first(states).update(resume="replay"), 'rank 0, worker 0 has a state of resume="replay"'),
    "nothing is shared": (lambda states: first(states).update(shards=states[1]["states"][0]["state"]["shards"]), "both read all of shard"),
    "another version": (
        lambda states: first(states).update(shards=packed([0, 0]), stripe=[0, 2], etags={"0": "a", "1": "b"}), "it changed in between",
    ),
    "an older format": (lambda states: states[0].update(format=1), "format 1, written by an older Forebay"),
    "a newer format": (lambda states: states[0].update(format=4), "format 4, and this Forebay reads 3: a newer one wrote it"),
    "merged twice": (lambda states: states[0].update(kind="merged"), "merged already"),
    "none of ours": (lambda states: states.append({"model": 1}), "no state of fb.WebLoader or fb.WebDataset"),
    "nothing": (lambda states: states.clear(), "the list is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_words(name: str) -> None:
    """What cannot be shared out again, or is not all there, names what differs: nothing is read twice or lost without a word."""
    change, words = REFUSED[name]
    assert fb.merge_states(two(lambda states: None))["size"] == 2
    with pytest.raises(ValueError, match=re.escape(words)):
        fb.merge_states(two(change))


def test_a_worker_of_several_is_not_a_rank() -> None:
    """A data set's own state in one of two workers: the other one's is missing."""
    with pytest.raises(ValueError, match=r"worker 1 is missing: fb\.WebLoader and StatefulDataLoader give those of all workers"):
        fb.merge_states([one_state(made_of={"shards": 4, "rank": "0 of 1", "worker": "0 of 2"})])


@pytest.mark.parametrize("given", [one_state(), "states", 7])
def test_only_a_list_of_states(given: Any) -> None:
    """A single state is no list, though a dictionary can be iterated."""
    with pytest.raises(TypeError, match="merge_states takes a list of states, one of each rank"):
        fb.merge_states(given)


def test_a_checkpoint_is_no_state() -> None:
    """It says which part of it is."""
    with pytest.raises(ValueError, match=r"the state of a loader stands at loader: give that part of it"):
        fb.merge_states([{"model": 1, "loader": state} for state in two(lambda states: None)])


def test_torchdata_must_keep_up() -> None:
    """Its state between two snapshots counts steps, which nobody can turn into samples."""
    with pytest.raises(ValueError, match="3 steps behind its loader: snapshot_every_n_steps=1"):
        fb.merge_states([{"_snapshot": {}, "_steps_since_snapshot": 3}])
