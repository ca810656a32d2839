"""The state of loaders whose ranks vote on every step, and so hold a batch that was not handed out: two gloo ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

import forebay_loader as fb
from every_rank import EveryRank

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("shards")]

SIZES = (9, 2, 7, 1)
SAMPLE_BYTES = 10
LISTED = [f"s3://bucket/{number:03d}.tar" for number in range(len(SIZES))]


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


def under_accelerate(rank: int) -> dict[str, Any]:
    """Accelerate fetches one batch ahead, and writes what rank 0 says; checkpoints behind the first step, and between two snapshots."""
    from accelerate import Accelerator  # noqa: PLC0415  # where it is installed
    from accelerate.data_loader import DataLoaderShard  # noqa: PLC0415

    os.environ["LOCAL_RANK"] = str(rank)
    folder, found = Path(os.environ["KEPT"]), {}
    whole = keys(loader())
    for after in (1, 3):
        for path in (None, folder / str(after)):
            accelerator, own, seen = Accelerator(cpu=True), loader(), [0]
            accelerator.register_for_checkpointing(EveryRank(own, lambda seen=seen: seen[0]))
            if path is not None:
                accelerator.load_state(str(path))
            given = [] if path is None else whole[:after]
            for batch in DataLoaderShard(own, batch_size=None):
                given += keys([batch])
                seen[0] += 1
                if path is None and seen[0] == after:
                    accelerator.save_state(str(folder / str(after)))
            found[f"{after} {path is None}"] = given == whole
    return found


def under_torchdata(rank: int) -> dict[str, Any]:
    """Each rank keeps its own; what is left by both is read by one."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415

    def made(**how: Any) -> Any:
        data = fb.WebDataset(LISTED, shardshuffle=True, seed=4, nodesplitter=wds.split_by_node, **how)
        return StatefulDataLoader(data.shuffle(3).to_tuple("__key__").batched(1), batch_size=None, num_workers=0)

    whole, stopping, again = keys(made()), made(), made()
    before = [keys([batch])[0] for _, batch in zip(range(2), stopping, strict=False)]
    state = json.loads(json.dumps(stopping.state_dict()))
    again.load_state_dict(state)
    return {"exact": before + keys(again) == whole, "before": before, "state": state}


@pytest.mark.once
def test_what_rank_0_writes_under_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ranks go on from it, each where it was."""
    pytest.importorskip("accelerate")
    for name, value in {"KEPT": str(tmp_path), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)  # the ranks have found each other when Accelerate asks
    ends = run_ranks(2, under_accelerate, tmp_path)
    assert not any(end.error for end in ends), [end.error for end in ends]
    assert [len(end.value) for end in ends] == [4, 4]
    assert all(all(end.value.values()) for end in ends), [end.value for end in ends]


@pytest.mark.once
def test_both_ranks_under_torchdata(tmp_path: Path) -> None:
    """``StatefulDataLoader``'s states go on, each on its rank; merged, one rank reads what both have left."""
    pytest.importorskip("torchdata")
    ends = run_ranks(2, under_torchdata, tmp_path, group=False)
    assert not any(end.error for end in ends), [end.error for end in ends]
    assert all(end.value["exact"] for end in ends)
    made = fb.WebDataset(LISTED, shardshuffle=True, seed=4).shuffle(3).to_tuple("__key__").batched(1)
    made.load_state_dict(fb.merge_states([end.value["state"] for end in ends]))
    given = [key for end in ends for key in end.value["before"]] + keys(made)
    assert sorted(given) == [f"{shard:03d}-{number:03d}" for shard, count in enumerate(SIZES) for number in range(count)]


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
