"""forebay evict: what is asked of the sidecar, and that emptying everything is confirmed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        fake.evicted = {"shards": 3, "bytes": 3 * 10**8, "leased": 1}
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def asked(fake: FakeSidecar) -> list[dict[str, Any]]:
    return [json.loads(body) for _, path, _, body in fake.requests if path == "/v1/evict"]


def test_urls_commands_and_patterns(sidecar: FakeSidecar) -> None:
    """Names become origin URLs; a pattern with a star is the sidecar's to match."""
    result = invoke("evict", "S3://b/a.tar", "pipe:aws s3 cp s3://b/c.tar -", "s3://b/{0..1}.tar", "s3://b/old-*")
    assert asked(sidecar) == [{"shards": ["s3://b/a.tar", "s3://b/c.tar", "s3://b/0.tar", "s3://b/1.tar", "s3://b/old-*"]}]
    assert result.stdout == "3 shards evicted, 300 MB freed\n"
    assert "1 shard being read" in result.stderr


def test_everything_needs_a_yes(sidecar: FakeSidecar) -> None:
    """Without a terminal to ask on, --all alone is refused."""
    result = invoke("evict", "--all")
    assert (result.exit_code, asked(sidecar)) == (2, [])
    assert "--all --yes" in result.stderr
    assert invoke("evict", "--all", "--yes").exit_code == 0
    assert asked(sidecar) == [{"all": True}]


def test_many_names_are_asked_in_parts(sidecar: FakeSidecar) -> None:
    """Below what the sidecar takes at once; the sums are shown."""
    result = invoke("evict", "s3://b/{0000..2499}.tar", "--json")
    assert [len(body["shards"]) for body in asked(sidecar)] == [1000, 1000, 500]
    assert json.loads(result.stdout) == {"shards": 9, "bytes": 9 * 10**8, "leased": 3}


def test_names_and_all_together_are_a_mistake(sidecar: FakeSidecar) -> None:
    """Which one was meant cannot be known."""
    assert invoke("evict", "--all", "--yes", "s3://b/a.tar").exit_code == 2
    assert asked(sidecar) == []


def test_a_pattern_that_matches_nothing_is_said(sidecar: FakeSidecar) -> None:
    """It may be a typing error; what is only being read does match."""
    sidecar.evicted = {"shards": 0, "bytes": 0, "leased": 0}
    result = invoke("evict", "s3://b/nothing*")
    assert (result.exit_code, result.stdout) == (0, "nothing that is stored matches s3://b/nothing*: 0 shards evicted\n")
    sidecar.evicted = {"shards": 0, "bytes": 0, "leased": 1}
    assert invoke("evict", "s3://b/a.tar").stdout == "0 shards evicted, 0 B freed\n"
