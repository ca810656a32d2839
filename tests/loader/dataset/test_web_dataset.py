"""The drop-in in real webdataset pipelines and real DataLoader workers."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import Cut, FakeServer
from support.tars import expected, tar_shard

import forebay_loader as fb
from forebay_loader.plan import plan_client
from forebay_loader.stream.webdataset_openers import gopen_module

wds = pytest.importorskip("webdataset")
torch_data = pytest.importorskip("torch.utils.data")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore:.*shardshuffle", "ignore::DeprecationWarning")]

SHARDS = 6
QUICK = fb.Limits(resume_s=0.3, open_s=0.1, pause_s=0.01, jitter_s=0.0)
PATTERN = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
COMMANDS = [f"pipe:aws s3 cp s3://bucket/{n:03d}.tar -" for n in range(SHARDS)]


def gopen_pipe(url: str, mode: str = "rb", bufsize: int = 8192) -> io.BytesIO:
    """Stands for webdataset's own opener of ``COMMANDS``."""
    return io.BytesIO(tar_shard(int(url.rpartition("/")[2][:3])))


gopen_pipe.__module__ = "webdataset.gopen"


def dataset(urls: Any = PATTERN, **how: Any) -> Any:
    return fb.WebDataset(urls, **{"shardshuffle": None, "limits": QUICK, **how})


def contents(samples: Iterable[dict[str, Any]]) -> dict[str, bytes]:
    """Key -> bytes; a key that comes twice fails."""
    found: dict[str, bytes] = {}
    for sample in samples:
        assert sample["__key__"] not in found
        assert sample["txt"] == sample["__key__"].encode()
        found[sample["__key__"]] = sample["bin"]
    return found


class Patient:
    """A stage that gives what comes; where it is unpickled, plans may take as long as in the tests' own process (the fixture ``proxy``)."""

    def __call__(self, samples: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
        return samples

    def __setstate__(self, _: object) -> None:
        for name in ("CONNECT_S", "SEND_S", "ANSWER_S"):
            setattr(plan_client, name, 5.0)

    def __getstate__(self) -> str:
        return "none, but told"


def loaded(data: Any, start: str, **how: Any) -> list[dict[str, Any]]:
    """Everything two workers give."""
    return list(torch_data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=start, **how))


# How a worker starts is no matter of webdataset's version.
SPAWN, FORKSERVER = (pytest.param(start, marks=pytest.mark.once) for start in ("spawn", "forkserver"))


@pytest.mark.parametrize("start", ["fork", SPAWN, FORKSERVER])
def test_workers(shards: FakeServer, start: str, request: pytest.FixtureRequest) -> None:
    """Two workers of any start method give every sample once, each under a name of its own."""
    if start != "spawn":  # which is the one start from nothing
        request.getfixturevalue("warm_starts")
    assert contents(loaded(dataset(COMMANDS), start)) == expected(SHARDS)
    names = {request.headers["Forebay-Reader"] for request in shards.requests if request.method == "GET" and ".tar" in request.target}
    assert {name.split("/")[2] for name in names} == {"0", "1"}
    assert {name.split("/")[0] for name in names} == {"job-1"}


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("start", ["fork", "spawn", FORKSERVER])
def test_stock_pipeline_with_enable(shards: FakeServer, start: str) -> None:
    """An unchanged webdataset pipeline under enable() reads through the sidecar in any worker."""
    fb.enable(limits=QUICK)
    made = wds.DataPipeline(wds.SimpleShardList(COMMANDS), wds.split_by_worker, wds.tarfile_to_samples())
    assert contents(loaded(made, start, worker_init_fn=fb.worker_init)) == expected(SHARDS)
    assert len([request for request in shards.requests if request.target.startswith("/s3/")]) == SHARDS


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("start", ["fork", SPAWN])
def test_stock_pipeline_with_ahead(shards: FakeServer, start: str) -> None:
    """A pipeline with fb.ahead() in it needs no worker_init_fn: unpickling the stage enables."""
    fb.enable(limits=QUICK)
    made = wds.DataPipeline(wds.SimpleShardList(COMMANDS), wds.split_by_worker, fb.ahead(), wds.tarfile_to_samples(), Patient())
    assert contents(loaded(made, start)) == expected(SHARDS)
    plans = {request.target.removeprefix("/v1/plans/") for request in shards.plans}
    opened = {request.headers["Forebay-Reader"] for request in shards.requests if request.target.startswith("/s3/")}
    assert plans == opened


def test_cut_shards_lose_nothing(shards: FakeServer) -> None:
    """Every shard cut in its middle: all samples, each once."""
    for number in range(SHARDS):
        shards.fault(f"/s3/bucket/{number:03d}.tar", Cut(9_000), Cut(7))
    assert contents(dataset()) == expected(SHARDS)
    assert fb.counters()["resumed"] == 2 * SHARDS


def test_error_in_a_worker_keeps_its_kind(shards: FakeServer) -> None:
    """A worker's error arrives in the main process as what it was."""
    shards.shown.clear()
    with pytest.raises(fb.ShardReadError, match="no shard"):
        loaded(dataset(), "fork")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves local files to the garbage collector
def test_local_and_unknown_stay_webdatasets(shards: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local files and unknown commands are opened as this webdataset does, in their place among ours."""
    local = tmp_path / "900.tar"
    local.write_bytes(tar_shard(4))
    monkeypatch.setitem(gopen_module().gopen_schemes, "mine", lambda url, mode, bufsize: io.BytesIO(tar_shard(5)))
    urls = [*COMMANDS[:4], str(local), "mine://x"]
    samples = list(dataset(urls))
    assert contents(samples) == expected(SHARDS)
    assert list(dict.fromkeys(sample["__url__"] for sample in samples)) == urls
    gc.collect()


def test_cache_dir(shards: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not used, and no sample names a copy. One notice."""
    cache = tmp_path / "cache"
    for _ in range(2):
        samples = list(dataset(cache_dir=str(cache)))
        assert contents(samples) == expected(SHARDS)
        assert not any("__local_path__" in sample for sample in samples)
    assert not cache.exists()
    assert len([record for record in caplog.records if "cache_dir" in record.getMessage()]) == 1


def test_cache_dir_of_the_environment(shards: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WDS_CACHE, which webdataset reads itself, makes no copy either."""
    monkeypatch.setenv("WDS_CACHE", str(tmp_path))
    before = sorted(tmp_path.iterdir())
    assert contents(dataset()) == expected(SHARDS)
    assert sorted(tmp_path.iterdir()) == before
