"""Which way to a shard is asked, and what becomes of a sidecar that hangs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from support.fake_proxy import FakeServer

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.errors import ProxyUnreachable, ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.stream import source_order
from forebay_loader.stream.source_order import SourceOrder
from forebay_loader.transport.body import Progress, Unanswered
from forebay_loader.transport.hung_sidecar import HUNG
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.shard_url import parse_origin_url

READER = "job/0/0/1.1"
HASTY = replace(DEFAULT_LIMITS, open_s=0.0, resume_s=0.0, pause_s=0.0, jitter_s=0.0)
GONE = Unanswered("no connection")
HANGS = Unanswered("does not answer", silent=True, hung=True)


def order(url: str, *, own: bool = False, progress: Progress | None = None) -> SourceOrder:
    own_open = (lambda text: io.BytesIO()) if own else None
    return SourceOrder(Source(parse_origin_url(url)), READER, own_open, HASTY, progress or Progress())


def names(ways: SourceOrder) -> list[str]:
    return [each.name for each in ways._sources]


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:9")


def test_the_sidecar_comes_first() -> None:
    """Then an origin that speaks http, and webdataset's own opener last."""
    assert names(order("https://h/a.tar", own=True)) == ["sidecar", "origin", "webdataset's own opener"]
    assert names(order("s3://b/a.tar", own=True)) == ["sidecar", "webdataset's own opener"]


def test_one_that_is_gone_is_left() -> None:
    """Counted, and remembered by the process."""
    ways = order("https://h/a.tar")
    ways.cope(GONE)
    assert (names(ways), COUNTS.snapshot()["fallback_total"], DEAD.known()) == (["origin"], 1, True)


def test_one_that_refused_is_no_loss() -> None:
    """It is there, and serves other shards."""
    ways = order("https://h/a.tar")
    ways.take_next("below no root", lost=False)
    assert (names(ways), COUNTS.snapshot()["fallback_total"], DEAD.known()) == (["origin"], 0, False)


def test_without_another_way_it_is_the_end() -> None:
    """Which says what would have been needed."""
    with pytest.raises(ProxyUnreachable, match="webdataset has no opener of its own for s3 URLs"):
        order("s3://b/a.tar").cope(GONE)


def test_the_last_way_is_named() -> None:
    """And what the ones before it said."""
    ways = order("s3://b/a.tar", own=True)
    ways.cope(Unanswered("busy", reached=True))
    with pytest.raises(ShardReadError, match="webdataset's own opener was the last way to it") as caught:
        ways.cope(GONE)
    assert "the sidecar said: busy" in str(caught.value)


def test_one_that_hangs_is_asked_again_before_the_end() -> None:
    """Once, with all patience."""
    ways = order("https://h/a.tar")
    ways.cope(HANGS)
    assert names(ways) == ["origin"]
    assert ways.waits_instead(ShardReadError("absent"))
    assert names(ways) == ["sidecar"]
    assert not ways.waits_instead(ShardReadError("absent"))


def test_one_that_answers_again_is_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another way is in trouble; once a stream."""
    ways = order("https://h/a.tar")
    ways.cope(HANGS)
    HUNG.forget()
    monkeypatch.setattr(source_order, "turns", lambda: True)
    ways.cope(GONE)
    assert names(ways) == ["sidecar", "origin"]


def test_a_byte_ends_the_trouble(proxy: FakeServer) -> None:
    """What comes after it has its own clock."""
    ways = order("https://h/a.tar")
    ways._source_timeout.pause(GONE, 60.0)
    ways.arrived()
    assert ways._source_timeout.troubled_s == 0.0


def test_only_our_own_connections_are_dropped_in_a_child() -> None:
    ways = order("s3://b/a.tar", own=True)
    assert not ways.outlives_fork
    ways.cope(GONE)
    assert ways.outlives_fork
