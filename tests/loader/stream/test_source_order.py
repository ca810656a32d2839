"""Which way to a shard is asked, and what becomes of a sidecar that hangs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from forebay_loader.base.errors import ShardReadError
from forebay_loader.base.timeouts import DEFAULT_LIMITS, Limits
from forebay_loader.stream import source_order
from forebay_loader.stream.source_order import SourceOrder
from forebay_loader.transport.body import Progress, Unanswered
from forebay_loader.transport.source_timeout import DEAD
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.shard_url import parse_origin_url

READER = "job/0/0/1.1"
HASTY = replace(DEFAULT_LIMITS, open_s=0.0, resume_s=0.0, pause_s=0.0, jitter_s=0.0)
PATIENT = replace(HASTY, resume_s=60.0, open_s=2.0)
GONE = Unanswered("no connection")
HANGS = Unanswered("does not answer", silent=True, hung=True)


def order(url: str, *, own: bool = False, progress: Progress | None = None, limits: Limits = HASTY) -> SourceOrder:
    own_open = (lambda text: io.BytesIO()) if own else None
    return SourceOrder(Source(parse_origin_url(url)), READER, own_open, limits, progress or Progress())


def names(ways: SourceOrder) -> list[str]:
    return [each.name for each in ways._sources]


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:9")


def test_the_sidecar_comes_first() -> None:
    """Then an origin that speaks http, and webdataset's own opener last."""
    assert names(order("https://h/a.tar", own=True)) == ["sidecar", "origin", "webdataset's own opener"]
    assert names(order("s3://b/a.tar", own=True)) == ["sidecar", "webdataset's own opener"]


@pytest.mark.parametrize(
    ("url", "position", "trouble", "limit_s"),
    [
        ("https://h/a.tar", 0, GONE, 2.0),
        ("https://h/a.tar", 1, GONE, 60.0),
        ("https://h/a.tar", 0, Unanswered("busy", reached=True), 60.0),
        ("s3://b/a.tar", 0, GONE, 60.0),
    ],
    ids=["a new opening", "a broken stream", "one that answers", "no other way"],
)
def test_how_long_a_sidecar_is_asked_in_vain(url: str, position: int, trouble: Unanswered, limit_s: float) -> None:
    """Shortly only where nothing is lost by going another way."""
    ways = order(url, progress=Progress(position), limits=PATIENT)
    assert ways._limit_of(ways.present, trouble) == limit_s


def test_a_sidecar_that_is_known_to_be_gone_is_not_waited_for() -> None:
    """The last opening did."""
    ways = order("https://h/a.tar", limits=PATIENT)
    DEAD.found()
    assert ways._limit_of(ways.present, GONE) == 0.0


def test_where_none_was_ever_there_none_is_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar that this process has heard of may be started again."""
    monkeypatch.delenv("FOREBAY_URL")
    ways = order("s3://b/a.tar", limits=PATIENT)
    assert ways._limit_of(ways.present, GONE) == 2.0
    DEAD.lived = True
    assert ways._limit_of(ways.present, GONE) == 60.0


def test_trouble_that_lasts_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its cause, and how long it may last; after each a pause."""
    told, slept = list[str](), list[float]()
    monkeypatch.setattr(source_order, "warn_node", told.append)
    monkeypatch.setattr(source_order.time, "sleep", slept.append)
    busy = Unanswered("busy", reached=True, retry_after_s=0.25)
    for tell_s, told_of in ((1000.0, 0), (0.0, 1)):
        ways = order("https://h/a.tar", limits=replace(PATIENT, tell_s=tell_s))
        for _ in range(2):
            ways.cope(busy)
        assert told == ["https://h/a.tar: busy; asking the sidecar again, for up to 60 s"] * told_of
    assert slept == [0.25] * 4


@pytest.mark.parametrize(("reached", "hint"), [(False, True), (True, False)])
def test_what_is_gone_on_without_is_told(reached: bool, hint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it runs is asked where it did not answer; and the workers of a node do not all come at once."""
    told, slept = list[str](), list[float]()
    monkeypatch.setattr(source_order, "warn_node", told.append)
    monkeypatch.setattr(source_order.time, "sleep", slept.append)
    monkeypatch.setattr(source_order.random, "uniform", lambda low, high: (low, high))
    order("https://h/a.tar", limits=replace(HASTY, jitter_s=0.25)).cope(Unanswered("busy", reached=reached))
    assert [text.startswith("https://h/a.tar: busy; going on without the sidecar, by origin.") for text in told] == [True]
    assert ("Is it running?" in told[0]) == hint
    assert slept == [(0.0, 0.25)]


@pytest.mark.parametrize(("position", "waits"), [(9, True), (10, True), (11, False)])
def test_a_shard_that_is_longer_than_it_was_is_not_waited_for(position: int, waits: bool) -> None:
    """No way makes it shorter again."""
    ways = order("https://h/a.tar", progress=Progress(position, length=10))
    ways.cope(HANGS)
    assert ways.waits_instead(ShardReadError("x")) == waits


def test_one_that_hangs_beyond_all_patience_is_not_waited_for() -> None:
    ways = order("https://h/a.tar", limits=replace(HASTY, patience_s=0.0))
    ways.cope(HANGS)
    assert not ways.waits_instead(ShardReadError("x"))
    assert names(ways) == ["origin"]


def test_a_byte_ends_the_trouble() -> None:
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
