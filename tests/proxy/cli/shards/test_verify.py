"""forebay verify: what is asked of the sidecar, what a person is told, and what the exit code says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar

pytestmark = pytest.mark.another_python

END = {"event": "end", "shards": 2, "segments": 9, "bytes": 70 * 10**6, "wrong": 0, "wrong_shards": 0, "unread": 0}
WRONG = {"event": "wrong", "shard": "s3://b/a.tar", "segment": 1, "offset": 8388608, "length": 100}


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        fake.verify_events = [{"event": "progress", "done_bytes": 0, "bytes": 70 * 10**6}, END]
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def asked(fake: FakeSidecar) -> list[tuple[str, object]]:
    return [(path, json.loads(body)) for _, path, _, body in fake.requests if path.startswith("/v1/verify")]


def test_everything_is_right(sidecar: FakeSidecar) -> None:
    """Without names it is everything; exit code 0."""
    result = invoke("verify")
    assert asked(sidecar) == [("/v1/verify", {"all": True})]
    assert (result.exit_code, result.stdout) == (0, "9 segments of 2 shards verified, 70.0 MB: all right\n")


def test_what_is_wrong_is_named(sidecar: FakeSidecar) -> None:
    """Shard and bytes, on stderr also with --quiet; exit code 1."""
    sidecar.verify_events = [WRONG, {**END, "wrong": 1, "wrong_shards": 1}]
    result = invoke("verify", "--quiet")
    assert result.exit_code == 1
    assert result.stderr == "forebay: wrong: s3://b/a.tar: bytes 8388608 to 8388707 (segment 1); removed\n"
    assert result.stdout.endswith("wrong: 1 segment of 1 shard\n")


def test_names_and_patterns(sidecar: FakeSidecar) -> None:
    """As evict takes them."""
    invoke("verify", "S3://b/a.tar", "s3://b/old-*")
    assert asked(sidecar) == [("/v1/verify", {"shards": ["s3://b/a.tar", "s3://b/old-*"]})]


def test_json_for_programs(sidecar: FakeSidecar) -> None:
    """A line an event, the sums last."""
    sidecar.verify_events = [WRONG, {**END, "wrong": 1, "wrong_shards": 1}]
    result = invoke("verify", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines == [WRONG, {**END, "wrong": 1, "wrong_shards": 1}]
    assert (result.exit_code, result.stderr) == (1, "")


def test_what_could_not_be_read_is_said(sidecar: FakeSidecar) -> None:
    """It is not wrong, nor is it right."""
    sidecar.verify_events = [{**END, "unread": 3}]
    result = invoke("verify")
    assert result.exit_code == 0
    assert "3 segments could not be read" in result.stderr


def test_a_sidecar_that_ends_meanwhile_is_no_success(sidecar: FakeSidecar) -> None:
    """Without the last line not everything was looked at."""
    sidecar.verify_events = [{"event": "progress", "done_bytes": 0, "bytes": 10}]
    result = invoke("verify")
    assert result.exit_code == 2
    assert "before it had verified everything" in result.stderr


def test_a_pattern_that_matches_nothing_is_not_all_right(sidecar: FakeSidecar) -> None:
    """It may be a typing error; nothing was wrong, so the exit code is 0."""
    sidecar.verify_events = [{**END, "shards": 0, "segments": 0, "bytes": 0}]
    result = invoke("verify", "nothing*")
    assert (result.exit_code, result.stdout) == (0, "nothing that is stored matches nothing*: 0 segments verified\n")
    signed = invoke("verify", "https://h.example/0.tar?token=hunter2")
    assert signed.output == "nothing that is stored matches https://h.example/0.tar: 0 segments verified\n"
