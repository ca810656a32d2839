"""The state of loaders whose ranks vote on every step, and so hold a batch that was not handed out: two gloo ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.ranks import run_ranks
from support.tars import tar_shard

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore")]

SIZES = (9, 2, 7, 1)
LISTED = [f"s3://bucket/{number:03d}.tar" for number in range(len(SIZES))]


@pytest.fixture(autouse=True)
def shards(proxy: FakeServer) -> None:
    for number, samples in enumerate(SIZES):
        proxy.put(f"/s3/bucket/{number:03d}.tar", tar_shard(number, samples=samples, size=10))


def loader(**how: Any) -> Any:
    data = fb.WebDataset(LISTED, shardshuffle=True, seed=4, nodesplitter=wds.split_by_node).shuffle(3).to_tuple("__key__").batched(1)
    return fb.WebLoader(data, batch_size=None, snapshot_every=2, **how)


def keys(batches: Any) -> list[str]:
    return [key for (found,) in batches for key in found]


def stopped(after: int, **how: Any) -> tuple[list[str], dict[str, Any]]:
    made = loader(**how)
    before = [keys([batch])[0] for _, batch in zip(range(after), made, strict=False)]
    return before, made.state_dict(seen=after)


def gone_on(rank: int) -> dict[str, Any]:
    """Of each way to end an epoch: what nothing stopped, and what was stopped early and late."""
    found: dict[str, Any] = {}
    for tail in ("drop", "repeat"):
        made = loader(tail=tail)
        whole = [keys(made) for _ in range(2)]
        for after in (1, len(whole[0]) - 2):
            before, state = stopped(after, tail=tail)
            again = loader(tail=tail)
            again.load_state_dict(state)
            found[f"{tail} after {after}"] = [before + keys(again), keys(again)] == whole
    return found


def apart(rank: int) -> str:
    _, state = stopped(2)
    _, later = stopped(3)
    made = loader()
    made.load_state_dict(later if rank else state)
    with pytest.raises(fb.StepsError) as raised:
        keys(made)
    return str(raised.value)


def test_ranks_in_step_go_on(tmp_path: Path) -> None:
    """Every rank hands out what it would have, to the same last step: also where it reads its own a second time meanwhile."""
    ends = run_ranks(2, gone_on, tmp_path)
    assert not any(end.error for end in ends), [end.error for end in ends]
    for end in ends:
        assert all(end.value.values()), end.value
        assert len(end.value) == 4


def test_ranks_that_go_on_from_other_steps(tmp_path: Path) -> None:
    """Are told so, all of them, before the first batch."""
    for end in run_ranks(2, apart, tmp_path):
        assert "go on from states of different steps" in end.value, end.error
