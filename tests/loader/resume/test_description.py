"""A state in words: the epoch, the shards, the samples and the bytes, of every form of it."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from support.made_worlds import MadeSet, stopped, world

import forebay_loader as fb
from forebay_loader.resume.pass_state import packed
from forebay_loader.resume.state_parts import sealed

WORKER = sealed({
    "format": 3, "epoch": 1, "turn": 0, "over": False, "stripe": [0, 1], "read": 12, "buffers": [{"refs": packed([3, 11]), "rng": ""}],
    "shards": packed([2, 0, 1]), "firsts": packed([0, 0, 0]), "ordinals": packed([0, 6, 10]), "etags": {},
    "made_of": {"shards": 4000, "rank": "0 of 1", "worker": "0 of 1", "stages": []},
})  # fmt: skip
LOADER = sealed(
    {
        "format": 3,
        "kind": "loader",
        "rank": 3,
        "size": 8,
        "workers": 2,
        "epoch": 1,
        "given": 1,
        "states": [{"worker": 1, "state": WORKER}],
    }
)


def lines(state: Any) -> list[str]:
    return fb.describe_state(state).splitlines()


def test_of_a_data_set() -> None:
    """Four lines, counts and all."""
    assert lines(WORKER)[:3] == [
        "epoch 1, rank 0 of 1, 1 worker",
        "2 shards read to the end and 1 in part, of 4,000 in the list; 10 samples done",
        "2 samples in 1 buffer: they are read again",
    ]
    assert re.fullmatch(r"\d+ B as JSON", lines(WORKER)[3])


def test_of_a_loader() -> None:
    """Its rank, its workers, those that have begun nothing among them, and the batches."""
    assert lines(LOADER)[0] == "epoch 1, rank 3 of 8, 2 workers, 1 batch handed out"
    assert lines(LOADER)[1:3] == lines(WORKER)[1:3]
    assert lines(sealed({**LOADER, "over": True, "given": 1234, "states": []}))[:3] == [
        "epoch 1 (over), rank 3 of 8, 2 workers, 1,234 batches handed out",
        "0 shards read to the end and 0 in part; 0 samples done",
        "0 samples in 0 buffers: they are read again",
    ]


def test_of_a_merged_state() -> None:
    """From how many ranks it comes, and what is done."""
    states = stopped(world(MadeSet([5] * 40, buffer=3), 2, 2, {}), random.Random(2), 40)[1]
    merged = fb.merge_states(states)
    whole = sum(told == "all" for told in merged["done"].values())
    part = [stop - start for told in merged["done"].values() if told != "all" for start, stop in told]
    assert lines(merged)[:2] == [
        "epoch 0, merged from 2 ranks with 2 workers each: goes on in a world of any size",
        f"{whole} shards read to the end and {len(merged['done']) - whole} in part, of 40 in the list; "
        f"{sum(part)} samples of those that are done in part",
    ]


def test_of_a_replay() -> None:
    """What it counts; in a loader too."""
    state = sealed({**WORKER, "yielded": 1, "resume": "replay"})
    assert lines(state)[1] == "1 output of its workers' data sets: resumed by replay, which makes them again"
    held = sealed({**LOADER, "states": [{"worker": at, "state": state, "outputs": 4} for at in range(2)]})
    assert lines(held)[1].startswith("10 outputs of its workers' data sets")


def test_of_a_checkpoint() -> None:
    """Each state after its name; torchdata's as one state."""
    stateful = {"_snapshot": {"_worker_snapshots": {"worker_0": {"dataset_state": WORKER}}}, "_steps_since_snapshot": 0}
    told = lines({"step": 3, "train": LOADER, "data": {"valid": WORKER}, "torch": stateful})
    assert [line for line in told if not line.startswith(" ")] == [
        "train: epoch 1, rank 3 of 8, 2 workers, 1 batch handed out",
        "data.valid: epoch 1, rank 0 of 1, 1 worker",
        "torch: epoch 1, rank 0 of 1, 1 worker",
    ]
    assert len(told) == 12


@pytest.mark.parametrize("state", [{"model": 1}, [1], None, {}, {**WORKER, "format": 9}, {**WORKER, "shards": "é"}])
def test_what_is_no_state(state: Any) -> None:
    """``ValueError``, in words."""
    with pytest.raises(ValueError, match=r"no state of fb|format 9|is damaged"):
        fb.describe_state(state)
