"""The examples in the docstrings of the public names, run as they are printed by ``help()``."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from support.fake_proxy import FakeServer
from support.sidecar import running
from support.tars import tar_shard

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
DataLoader = pytest.importorskip("torch.utils.data").DataLoader

pytestmark = pytest.mark.webdataset

SHARDS = 3
WITH_EXAMPLES = [name for name in fb.__all__ if ">>>" in (inspect.getdoc(getattr(fb, name)) or "")]
NEEDS = {"Clips": "av", "video": "av", "by_epoch": "av", "memo": "lmdb", "frames": "lmdb"}  # packages that not everybody has


@pytest.fixture
def names(proxy: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples take for granted: shards, a loader and its state in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    urls = [f"s3://bucket/train-{number:06d}.tar" for number in range(SHARDS)]
    for number in range(SHARDS):
        proxy.put(f"/s3/bucket/train-{number:06d}.tar", tar_shard(number))
    dataset = fb.WebDataset(urls)
    loader = fb.WebLoader(dataset, batch_size=None, num_workers=0)
    next(iter(loader))
    fb.save_state({"loader": loader.state_dict()}, "step-1000.rank-0.json")
    fb.save_state(loader.state_dict(), "state.json")
    bar = SimpleNamespace(set_postfix=lambda told: None)
    given = {"urls": urls, "dataset": dataset, "loader": loader, "bar": bar, "step": 1000, "rank": 0}
    return {"fb": fb, "wds": wds, "numpy": numpy, "DataLoader": DataLoader, **given}


def test_every_name_that_is_called_has_one() -> None:
    """All but the errors."""
    errors = {name for name in fb.__all__ if isinstance(getattr(fb, name), type) and issubclass(getattr(fb, name), Exception)}
    assert set(fb.__all__) - set(WITH_EXAMPLES) == errors


@pytest.fixture
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the shards of an example lie: for samples by number behind a real sidecar, which makes their index."""
    if not request.node.callspec.params["name"].startswith("Indexed"):
        yield "s3://bucket/"
        return
    shards = tmp_path / "shards"
    shards.mkdir()
    for number in range(SHARDS):
        (shards / f"train-{number:06d}.tar").write_bytes(tar_shard(number))
    with running(tmp_path, "--file-root", str(shards)) as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        for number in range(SHARDS):
            sidecar.ask(f"/file{shards}/train-{number:06d}.tar")
        sidecar.wait_complete(SHARDS)
        yield f"file://{shards}/"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_example_runs(name: str, names: dict[str, Any], bucket: str) -> None:
    """And prints what it says it prints."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
        pytest.importorskip("av")
    text = (inspect.getdoc(getattr(fb, name)) or "").replace("s3://bucket/", bucket)
    test = doctest.DocTestParser().get_doctest(text, names, f"fb.{name}", None, 0)
    told: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert done.failed == 0, "".join(told)
    assert done.attempted
