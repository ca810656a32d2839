"""Batches within a budget under equal steps: equally many samples are not equally many batches, so ranks vote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")

SIZES = (9, 2, 7, 1, 8, 3)  # samples of the shards
SAMPLE_BYTES = 10
ALL = {f"{shard:03d}-{n:03d}" for shard, size in enumerate(SIZES) for n in range(size)}
COUNTS = {f"{number:03d}.tar": size for number, size in enumerate(SIZES)}
PATTERN = f"s3://bucket/{{000..{len(SIZES) - 1:03d}}}.tar"
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("shards", "alone")]


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def length(key: str) -> int:
    """Long samples in the first three shards, which rank 0 reads; short ones in the others."""
    return 8 if key < "003" else 1


def loader(splitter: Any = wds.split_by_node, behind: bool = False, **how: Any) -> Any:
    """``behind``: the batches are made by a stage of the loader's, not of the data set's."""
    data = fb.WebDataset(PATTERN, shardshuffle=False, nodesplitter=splitter).map(key)
    stage = fb.batched(max_tokens=16, length=length, collate=None)
    made = fb.WebLoader(data if behind else data.compose(stage), batch_size=None, num_workers=0, steps_timeout_s=20.0, **how)
    return made.compose(stage) if behind else made


@pytest.mark.parametrize(("behind", "tail"), [(False, None), (False, "repeat"), (True, "repeat")])
def test_counted_samples_are_no_counted_batches(behind: bool, tail: str | None, tmp_path: Path) -> None:
    """Shares of 15 samples each, of which one rank makes more batches: both stop at one step; with tail="repeat" nothing is left out."""
    ends = run_ranks(2, lambda rank: list(loader(behind=behind, tail=tail, counts=COUNTS)), tmp_path)
    assert not [end.error for end in ends if end.error or end.hung]
    assert len(ends[0].value) == len(ends[1].value)
    found = [one for end in ends for batch in end.value for one in batch]
    if tail == "repeat":
        assert set(found) == ALL
    else:
        assert len(found) == len(set(found)) < len(ALL)
        assert any("drops" in line for end in ends for line in end.said)


@pytest.mark.webdataset
@pytest.mark.parametrize("how", [{"counts": COUNTS}, {"splitter": iter, "behind": True}, {"splitter": iter}])
def test_without_a_group_ranks_cannot_agree(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither counts nor reading everything make batches equal: an error that says why."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(fb.StepsError, match=r"depends on their sizes, and no process group .* Call init_process_group first"):
        next(iter(loader(**how)))
