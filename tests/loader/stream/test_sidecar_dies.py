"""The sidecar dies in the middle of a shard: the same samples, by every way in that is ours; by curl never a clean short end."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import webdataset as wds
from support.fake_proxy import Cut, FakeServer
from support.tars import expected, tar_shard

import forebay_loader as fb
from forebay_loader import counters
from forebay_proxy.wire.commands.gopen_rules import gopen_rewrite

pytestmark = pytest.mark.webdataset

QUICK = fb.Limits(open_s=0.1, resume_s=0.2, pause_s=0.01, jitter_s=0.0)
SHARDS, SAMPLES, BYTES = 3, 20, 50_000
URLS = "{}/{{0..2}}.tar"


@pytest.fixture
def urls(proxy: FakeServer, origin: FakeServer) -> str:
    """Three shards; in the second one the sidecar is killed."""
    for shard in range(SHARDS):
        body = tar_shard(shard, SAMPLES, BYTES)
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
    assert len(found) == SHARDS * SAMPLES
    assert dict(found) == expected(SHARDS, SAMPLES, BYTES)
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
