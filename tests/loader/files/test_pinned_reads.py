"""Ranges of one version: its bytes or an error, and which error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.fake_proxy import FakeServer, Refuse, ramp

from forebay_loader.base.errors import ProxyUnreachable, ShardChanged, ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.files.either_way import SidecarHangs
from forebay_loader.files.pinned_reads import PinnedReads, PinnedVersion
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.shard_url import parse_origin_url

DATA = ramp(10_000)
TARGET = "/s3/bucket/a.tar"
SOURCE = Source(parse_origin_url("s3://bucket/a.tar"))
READER = "job/0/0/1.1"
READS = PinnedReads(replace(DEFAULT_LIMITS, look_s=0.1, resume_s=0.1, open_s=0.1, pause_s=0.01, jitter_s=0.0))


@pytest.fixture
def shard(proxy: FakeServer) -> FakeServer:
    proxy.put(TARGET, DATA)
    return proxy


def test_a_version_is_its_etag_and_length(shard: FakeServer) -> None:
    """Nothing of the shard comes over for it."""
    assert READS.version(SOURCE, alone=False) == PinnedVersion(shard.shown[TARGET].etag, len(DATA), "")
    assert [request.method for request in shard.requests] == ["HEAD"]


def test_a_range_is_of_that_version(shard: FakeServer) -> None:
    """Which the sidecar is told, and by whom it is asked."""
    version = READS.version(SOURCE, alone=False)
    assert READS.range(SOURCE, version, READER, 100, 50, alone=False) == DATA[100:150]
    headers = shard.requests[-1].headers
    assert (headers["Range"], headers["If-Match"], headers["Forebay-Reader"]) == ("bytes=100-149", version.etag, READER)


def test_an_answer_of_another_version_is_no_answer(shard: FakeServer) -> None:
    """Also from a server that heeds no If-Match."""
    version = READS.version(SOURCE, alone=False)
    shard.put(TARGET, ramp(10_000, 2), honours_if_match=False)
    with pytest.raises(ShardChanged, match="asked for bytes 100-149"):
        READS.range(SOURCE, version, READER, 100, 50, alone=False)


def test_nothing_is_asked_for_no_bytes(shard: FakeServer) -> None:
    assert READS.range(SOURCE, PinnedVersion("e", 0, ""), READER, 0, 0, alone=False) == b""
    assert not shard.requests


def test_an_origins_trouble_is_not_the_sidecars(shard: FakeServer) -> None:
    """No other way would fare better: nobody reads past the sidecar for it, and the shard is named once."""
    version = READS.version(SOURCE, alone=False)
    shard.fault(TARGET, *[Refuse(503, "busy")] * 100)
    with pytest.raises(ShardReadError, match=r"^shard s3://bucket/a\.tar: .*busy"):
        READS.range(SOURCE, version, READER, 0, 10, alone=False)


def test_nobody_there_is_unreachable(shard: FakeServer) -> None:
    shard.stop()
    with pytest.raises(ProxyUnreachable) as caught:
        READS.version(SOURCE, alone=False)
    assert not isinstance(caught.value, SidecarHangs)


def test_one_that_hangs_is_told_apart(shard: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be worth waiting for."""
    monkeypatch.setattr("forebay_loader.transport.hung_sidecar.TURNS_S", 0.2)
    shard.turning.clear()
    with pytest.raises(SidecarHangs):
        READS.version(SOURCE, alone=False)
    shard.turning.set()
