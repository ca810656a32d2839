"""Code that names Forebay without a sidecar anywhere is told so; a sidecar that was seen once may die."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import webdataset as wds
from support.fake_proxy import Cut, FakeServer
from support.tars import expected, tar_shard

import forebay_loader as fb
from forebay_loader import counters
from forebay_loader.dataset.stages import TarSamples
from forebay_proxy.wire.commands.gopen_rules import gopen_rewrite

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


# The sidecar dies in the middle of a shard: the same samples, by every way in that is ours; by curl never a clean short end.


SHARDS, EACH, BYTES = 3, 20, 50_000
URLS = "{}/{{0..2}}.tar"


@pytest.fixture
def urls(proxy: FakeServer, origin: FakeServer) -> str:
    """Three shards; in the second one the sidecar is killed."""
    for shard in range(SHARDS):
        body = tar_shard(shard, EACH, BYTES)
        origin.put(f"/{shard}.tar", body)
        proxy.put(f"/http/127.0.0.1:{origin.port}/{shard}.tar", body)
    proxy.fault(f"/http/127.0.0.1:{origin.port}/1.tar", Cut(400_000, lambda: threading.Thread(target=proxy.stop).start()))
    return URLS.format(origin.url)


def in_code(urls: str) -> Any:
    return fb.WebDataset(urls, shardshuffle=False, ahead=0, limits=QUICK)


def stages(urls: str) -> Any:
    return wds.DataPipeline(wds.SimpleShardList(urls), fb.tarfile_to_samples(ahead=0, limits=QUICK))


def enabled(urls: str) -> Any:
    fb.enable(limits=QUICK)
    return wds.WebDataset(urls, shardshuffle=False)


def enabled_stages(urls: str) -> Any:
    fb.enable(limits=QUICK)
    return wds.DataPipeline(wds.SimpleShardList(urls), fb.ahead(0), wds.tarfile_to_samples())


@pytest.mark.parametrize("way_in", [in_code, stages, enabled, enabled_stages])
def test_every_sample_comes_once_and_whole(urls: str, origin: FakeServer, way_in: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The broken shard goes on at its byte, the next one past the sidecar; one warning, and each loss is counted."""
    found = [(sample["__key__"], sample["bin"]) for sample in way_in(urls) if "__key__" in sample]
    assert len(found) == SHARDS * EACH
    assert dict(found) == expected(SHARDS, EACH, BYTES)
    counted = counters()
    assert (counted["fallback_total"], counted["resumed_direct"], counted["opened_direct"], counted["failed"]) == (2, 1, 1, 0)
    warnings = [record.getMessage() for record in caplog.records if "without the sidecar" in record.getMessage()]
    assert len(warnings) == 1
    assert "/1.tar: " in warnings[0]
    assert "`forebay status`" in warnings[0]


@pytest.mark.needs("curl")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # 0.2.86 leaves its pipes to the collector
def test_by_curl_it_is_an_error(urls: str, proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """`forebay env` alone cannot go on; what it must not do is end as if the shard were over."""
    monkeypatch.setenv("GOPEN_REWRITE", gopen_rewrite(proxy.url))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(Exception, match=r"curl|unexpected end of data|exit"):
        list(wds.WebDataset(f"{urls.rpartition('/')[0]}/1.tar", shardshuffle=False))
    gc.collect()
