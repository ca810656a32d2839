"""What travels with a question about a shard, and what its refusals say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.fake_proxy import FakeServer, Refuse

from forebay_loader.base.timeouts import DEFAULT_LIMITS
from forebay_loader.stream.shard_request import ask_shard, explain, refusal, retry_after, safe_headers
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.hung_sidecar import HUNG, Bearing
from forebay_loader.transport.source_timeout import SourceTimeout
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.shard_url import parse_origin_url

READER = "job/0/0/1.1"
SHARD = "/s3/bucket/x.tar"
SOURCE = Source(parse_origin_url("s3://bucket/x.tar"))
ALONE = Bearing("x", SourceTimeout(DEFAULT_LIMITS), alone=True)


@pytest.fixture
def sidecar(proxy: FakeServer) -> FakeServer:
    proxy.put(SHARD, b"bytes")
    proxy.put("/v1/index" + SHARD, b"index")
    return proxy


def test_a_prefix_asks_for_something_of_the_shard(sidecar: FakeServer) -> None:
    """Its index, by the same name."""
    assert ask_shard(SOURCE, READER, [], DEFAULT_LIMITS, prefix="/v1/index").content(5) == b"index"


def test_one_that_hangs_is_asked_by_those_alone(sidecar: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has another way takes that at once."""
    monkeypatch.setattr(HUNG, "known", lambda: True)
    with pytest.raises(Unanswered) as caught:
        ask_shard(SOURCE, READER, [], DEFAULT_LIMITS, bearing=Bearing("x", SourceTimeout(DEFAULT_LIMITS), alone=False))
    assert caught.value.hung
    assert not sidecar.requests
    assert ask_shard(SOURCE, READER, [], DEFAULT_LIMITS, bearing=ALONE).content(5) == b"bytes"


def test_a_written_header_never_breaks_ours() -> None:
    """What names a range, a version or a reader is left out of a person's command."""
    written = (("Authorization", "Bearer x"), ("Range", "bytes=0-1"), ("forebay-reader", "me"))
    source = replace(SOURCE, headers=written)
    assert safe_headers(source) == [("Authorization", "Bearer x")]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_trouble_that_passes_is_asked_again(sidecar: FakeServer, status: int) -> None:
    """After as long as the sidecar says."""
    sidecar.fault(SHARD, Refuse(status, "busy", (("Retry-After", "7"),)))
    with pytest.raises(Unanswered, match="busy") as caught:
        refusal(ask_shard(SOURCE, READER, [], DEFAULT_LIMITS))
    assert (caught.value.reached, caught.value.retry_after_s) == (True, 7.0)


@pytest.mark.parametrize(("text", "seconds"), [("7", 7.0), ("9999999", 3600.0), ("Mon, 01 Jan 2026 00:00:00 GMT", None), ("", None)])
def test_a_wish_to_wait(text: str, seconds: float | None) -> None:
    """In seconds, an hour at most; a date is nobody's here."""
    assert retry_after(text) == seconds


def test_a_shard_is_named_once() -> None:
    """The sidecar's words begin with its name, and so do ours."""
    problem = {
        "title": "Shard not found",
        "shard": "s3://b/a.tar",
        "detail": "shard s3://b/a.tar: the origin answered 404",
        "next_step": "look",
    }
    assert explain(json.dumps(problem).encode(), 404) == "Shard not found: the origin answered 404: look (HTTP 404)"
