"""What a ``fb.WebLoader`` does behind torch's ``DataLoader`` is time of ``next(loader)`` too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")
pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore")]


def waited_s(loader: Any) -> float:
    """How long all of its batches were waited for."""
    waited, batches = 0.0, iter(loader)
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - began
        if batch is None:
            return waited


def slow(batch: Any) -> Any:
    time.sleep(0.02)
    return batch


def test_its_own_stages() -> None:
    """A stage in the training process: all of the wait is in the total, and a step is what the loader gives."""
    made = fb.WebLoader(list(range(1, 25)), batch_size=2).compose(wds.map(slow), wds.batched(3, collation_fn=list))
    waited = waited_s(made)
    found = made.stalls()
    assert found.steps == 4
    assert found.stall_s["map"] > 0.24
    assert found.total_stall_s == pytest.approx(waited, rel=0.05)
    assert found.wall_s == pytest.approx(waited, rel=0.05)


def test_it_is_told_while_it_lasts() -> None:
    """Not only once the batch is there: another thread asks."""
    seen: list[float] = []

    def asks(batch: Any) -> Any:
        slow(batch)
        seen.append(made.stalls().total_stall_s)
        return batch

    made = fb.WebLoader(list(range(1, 3)), batch_size=2).compose(wds.map(asks))
    next(iter(made))
    assert 0.02 <= seen[0] <= made.stalls().total_stall_s


def stands(loader: Any) -> bool:
    """Whether its clock does; on a busy machine, the observer may for a moment keep the iterator that was left."""
    before = loader.stalls().wall_s
    time.sleep(0.1)
    return bool(loader.stalls().wall_s == before)


def test_the_clock_stands_between_two_iterations() -> None:
    """Of a loader that was read to its end, and of one that was left."""
    made = fb.WebLoader(list(range(12)), batch_size=2).compose(wds.map(slow))
    for _ in zip(range(2), made, strict=False):
        pass
    assert any(stands(made) for _ in range(20))
    assert len(list(made)) == 6
    assert any(stands(made) for _ in range(20))
    assert made.stalls().steps == 8


def of_two(rank: int) -> tuple[float, float, float]:
    """(what this rank waited, the meter's total, how much of it for the other rank)."""
    data = wds.DataPipeline(lambda: iter(range(1, 9)), wds.map(slow if rank else abs))
    made = fb.WebLoader(data, batch_size=None, equal_steps=True, steps_timeout_s=30.0)
    waited, found = waited_s(made), made.stalls()
    return waited, found.total_stall_s, found.stall_s.get("other", 0.0)


def test_other_ranks(tmp_path: Path) -> None:
    """A rank that waits for a slow one's vote waits inside ``next``."""
    ends = run_ranks(2, of_two, tmp_path)
    assert not [end.error for end in ends if end.error or end.hung]
    waited, total, other = ends[0].value
    assert total == pytest.approx(waited, rel=0.05)
    assert other > 0.1
