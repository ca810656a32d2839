"""forebay ls: which shards are here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar


def shard(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "shard": name, "key": "0" * 64, "length_bytes": 10**8, "stored_bytes": 5 * 10**7, "segments": 6, "segments_total": 12,
        "complete": False, "identity": 'etag:"x"', "readers": 1, "last_opened_s_ago": 75.0, **changes,
    }  # fmt: skip


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        fake.shards = [
            shard("s3://b/a.tar"),
            shard("s3://b/[1].tar", complete=True, stored_bytes=10**8),
            shard("https://h/x.tar", length_bytes=None, segments_total=None, last_opened_s_ago=None),
        ]
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def test_a_line_a_shard(sidecar: FakeSidecar) -> None:
    """Stored of whole, segments, readers, last opening, name; the sum on stderr."""
    result = invoke("ls")
    rows = [line.split(maxsplit=1)[0] for line in result.stdout.splitlines()]
    assert len(rows) == 4
    assert "6/12" in result.stdout
    assert "6/?" in result.stdout
    assert "1 min 15 s ago" in result.stdout
    assert "never" in result.stdout
    assert result.stderr == "forebay: 3 shards, 200 MB\n"


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("s3://b/*", 2), ("s3://b/?.tar", 1), ("s3://b/[1].tar", 1), ("*.zip", 0), ("s3://b/{a,b}.tar", 1), ("S3://b/a.tar", 1)],
)
def test_patterns_are_as_of_other_verbs(sidecar: FakeSidecar, pattern: str, count: int) -> None:
    """Stars, question marks and braces; brackets are characters of a key."""
    assert len(json.loads(invoke("ls", "--json", pattern).stdout)["shards"]) == count


def test_nothing_that_matches_is_said(sidecar: FakeSidecar) -> None:
    """Of a mistyped pattern an empty answer would say no more."""
    assert invoke("ls", "s3://c/{0..9}.tar").stderr == "forebay: nothing that is stored matches s3://c/{0..9}.tar\n"
