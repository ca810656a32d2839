"""A worker's state brought up to its last batch by numbers alone: that which a snapshot after this very batch would have been."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import forebay_loader as fb
from forebay_loader.resume.later_state import later

pytest.importorskip("webdataset")
pytest.importorskip("torch")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("shards")]

SIZES = (7, 3, 9, 1, 6, 4)
SAMPLE_BYTES = 10
LISTED = [f"s3://bucket/{number:03d}.tar" for number in range(len(SIZES))]
TOLD: dict[str, Callable[[Any], Any]] = {
    "a large buffer": lambda data: data.shuffle(40, initial=3).to_tuple("__key__").batched(2),
    "a small buffer": lambda data: data.shuffle(4, initial=2).to_tuple("__key__").batched(3),
    "no buffer": lambda data: data.to_tuple("__key__").batched(2),
    "samples left out, no buffer": lambda data: data.select(is_wanted).to_tuple("__key__").batched(2),
}
UNTOLD: dict[str, Callable[[Any], Any]] = {
    "left out before the buffer": lambda data: data.select(is_wanted).shuffle(4, initial=2).to_tuple("__key__").batched(2),
    "left out behind the buffer": lambda data: data.shuffle(4, initial=2).select(is_wanted).to_tuple("__key__").batched(2),
    "two buffers": lambda data: data.shuffle(4).shuffle(3).to_tuple("__key__").batched(2),
    "counted": lambda data: data.slice(20).to_tuple("__key__").batched(2),
}


def is_wanted(sample: dict[str, Any]) -> bool:
    return not sample["__key__"].endswith("-002")


def entries(made: Callable[[Any], Any], every: int) -> list[dict[str, Any]]:
    """Of an epoch the worker's entry after each batch."""
    data = made(fb.WebDataset(LISTED, shardshuffle=True, seed=3))
    loader = fb.WebLoader(data, batch_size=None, num_workers=0, snapshot_every=every)
    return [json.loads(json.dumps(loader.state_dict()["states"][0])) for _ in loader]


@pytest.mark.parametrize("name", TOLD)
def test_it_is_the_state_of_a_snapshot_taken_there(name: str) -> None:
    """After each batch, but for the last of a pass, behind which the end may have been seen."""
    exact, moved = entries(TOLD[name], 1), [later(entry) for entry in entries(TOLD[name], 5)]
    behind_end = sum(1 for entry in exact if any(one["ended"] for one in entry["state"]["buffers"]))
    told = len(exact) - behind_end
    assert [(entry["outputs"], entry["state"]) for entry in moved[:told]] == [(0, entry["state"]) for entry in exact[:told]]
    assert told > 3  # or nothing was tried


@pytest.mark.parametrize("name", UNTOLD)
def test_a_pipeline_whose_numbers_do_not_tell_is_made_again(name: str) -> None:
    """Whatever was left out, held twice or counted in between: no state is made up."""
    exact, snapshots = entries(UNTOLD[name], 1), entries(UNTOLD[name], 5)
    moved = [later(entry) for entry in snapshots]
    wrong = [at for at, entry in enumerate(moved) if not entry["outputs"] and entry["state"] != exact[at]["state"]]
    assert not wrong
    assert any(entry["outputs"] for entry in moved)


def test_a_buffer_that_draws_otherwise_is_made_again() -> None:
    """Of a state whose numbers contradict each other the old way is gone."""
    entry = entries(TOLD["a small buffer"], 5)[3]
    assert later({**entry, "read": entry["read"] + 1})["outputs"] == entry["outputs"]
    assert later({**entry, "held": entry["held"] - 1})["outputs"] == entry["outputs"]
