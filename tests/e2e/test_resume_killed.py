"""``kill -9`` of the sidecar beside a training with workers: no batch is lost, and a state that was taken is good with the next sidecar."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support.sidecar import running, start
from support.tars import tar_shard

import forebay_loader as fb

pytest.importorskip("webdataset")
pytest.importorskip("torch")
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]

SIZES = (40, 10, 60, 5, 30, 20)


def loader(folder: Path) -> Any:
    urls, soon = f"pipe:cat {folder}/{{000..005}}.tar", fb.Limits(open_s=0.2, resume_s=2)
    data = fb.WebDataset(urls, shardshuffle=True, seed=2, limits=soon).shuffle(30).to_tuple("__key__", "txt")
    return fb.WebLoader(data.batched(4), batch_size=None, num_workers=2, snapshot_every=5, prefetch_factor=1)


def whole(batches: Any) -> list[list[str]]:
    return [list(keys) for keys, _ in batches]


def test_of_the_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch goes on without it; the rest of the epoch, read through a new one, is the same."""
    folder = tmp_path / "set"
    folder.mkdir()
    for number, samples in enumerate(SIZES):
        (folder / f"{number:03d}.tar").write_bytes(tar_shard(number, samples=samples, size=20_000))
    flags = ("--cache-size", "200MB", "--file-root", str(folder))
    killed = start(tmp_path, *flags)
    try:
        monkeypatch.setenv("FOREBAY_URL", killed.url)
        expected = whole(loader(folder))
        trained = loader(folder)
        batches = iter(trained)
        before = whole(islice(batches, 7))
        state = trained.state_dict()
    finally:
        killed.kill()
    assert before + whole(batches) == expected
    with running(tmp_path, *flags) as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        after = loader(folder)
        after.load_state_dict(state)
        assert before + whole(after) == expected
        assert sidecar.shards()
