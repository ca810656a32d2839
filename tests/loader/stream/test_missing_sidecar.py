"""Code that names Forebay without a sidecar anywhere is told so; a sidecar that was seen once may die."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from support.fake_proxy import FakeServer
from support.tars import tar_shard

import forebay_loader as fb
from forebay_loader import counters
from forebay_loader.dataset.stages import TarSamples

pytestmark = pytest.mark.webdataset

QUICK = fb.Limits(open_s=0.1, resume_s=0.2, pause_s=0.01, jitter_s=0.0)
SAMPLES = 3
SHARD = tar_shard(0, SAMPLES, 1000)


@pytest.fixture
def url(origin: FakeServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    monkeypatch.delenv("FOREBAY_SOCKET", raising=False)
    origin.put("/a.tar", SHARD)
    return f"{origin.url}/a.tar"


def dataset(url: str) -> Any:
    return fb.WebDataset(url, shardshuffle=False, limits=QUICK)


def pipeline(url: str) -> Any:
    return wds.DataPipeline(wds.SimpleShardList(url), fb.tarfile_to_samples(limits=QUICK))


@pytest.mark.parametrize("way_in", [dataset, pipeline])
def test_no_sidecar_ever_seen_is_an_error(url: str, origin: FakeServer, way_in: Any) -> None:
    """It names the shard and three ways to get one; nothing is read past it."""
    with pytest.raises(fb.ProxyUnreachable, match=r"shard http://\S+/a\.tar: .*`forebay serve`.*`with fb\.sidecar\(\):`.*FOREBAY_URL"):
        list(way_in(url))
    assert origin.requests == []
    assert counters()["failed"] == 1


def test_a_handler_decides_about_it(url: str) -> None:
    """As about any shard that cannot be opened; the URL is in args as webdataset puts it there."""
    told: list[Exception] = []
    stage = fb.tarfile_to_samples(handler=lambda error: told.append(error) or True, limits=QUICK)
    assert list(stage([{"url": url}, {"url": url}])) == []
    assert [error.args[-1] for error in told] == [url, url]


def test_unchanged_code_goes_on(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """fb.enable() over stock code: as without Forebay, with the same advice in the one warning."""
    fb.enable(limits=QUICK)
    assert len(list(wds.WebDataset(url, shardshuffle=False))) == SAMPLES
    (warning,) = [record.getMessage() for record in caplog.records if "without the sidecar" in record.getMessage()]
    assert "`forebay serve` or `with fb.sidecar():`" in warning


def test_one_that_starts_meanwhile_is_waited_for(url: str, origin: FakeServer, proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forebay serve &` in the line before."""
    proxy.put(f"/http/127.0.0.1:{origin.port}/a.tar", SHARD)
    address = proxy.url
    monkeypatch.delenv("FOREBAY_URL")
    data = fb.WebDataset(url, shardshuffle=False, limits=fb.Limits(open_s=30.0))
    starting = threading.Timer(0.2, lambda: monkeypatch.setenv("FOREBAY_URL", address))
    starting.start()
    assert len(list(data)) == SAMPLES
    starting.join()
    assert origin.requests == []


def test_one_that_was_seen_may_die(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen where the data set was built counts in every worker that gets it, also in a later epoch, also after the run file has gone."""
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:9")
    stage: TarSamples = pickle.loads(pickle.dumps(fb.tarfile_to_samples(limits=QUICK)))
    monkeypatch.delenv("FOREBAY_URL")
    assert len(list(stage([{"url": url}]))) == SAMPLES
    assert counters()["fallback_total"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # webdataset's own opener leaves the file to the collector
def test_what_is_on_this_machine_needs_none(url: str, tmp_path: Path) -> None:
    """Local files, by path or by `cat`."""
    path = tmp_path / "a.tar"
    path.write_bytes(SHARD)
    for written in (str(path), f"pipe:cat {path}"):
        assert len(list(dataset(written))) == SAMPLES
