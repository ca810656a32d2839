"""What travels with a question about a shard, and what its refusals say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forebay_loader.stream.shard_request import explain, retry_after, safe_headers
from forebay_proxy.wire.commands.sources import Source
from forebay_proxy.wire.urls.shard_url import parse_origin_url

SOURCE = Source(parse_origin_url("s3://bucket/x.tar"))


def test_a_written_header_never_breaks_ours() -> None:
    """What names a range, a version or a reader is left out of a person's command."""
    written = (("Authorization", "Bearer x"), ("Range", "bytes=0-1"), ("forebay-reader", "me"))
    source = replace(SOURCE, headers=written)
    assert safe_headers(source) == [("Authorization", "Bearer x")]


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
