"""fb.status(): one line, whatever is there, and never an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_sidecar import FakeSidecar

from forebay_loader.base.counters import COUNTS
from forebay_loader.session.status import Status, status


@pytest.fixture(autouse=True)
def nothing_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COUNTS, "_values", dict.fromkeys(COUNTS.snapshot(), 0))


def at(url: str, **variables: str) -> Status:
    return status({"FOREBAY_URL": url, "XDG_RUNTIME_DIR": "/no/such", **variables})


def test_one_line_of_a_working_sidecar() -> None:
    """Where, how full, how much from disk, how far ahead, how many readers, and nothing wrong."""
    with FakeSidecar() as fake:
        fake.status = {
            **fake.status, "bytes": {"sent": 1000, "hit": 870, "origin": 130, "saved": 870}, "readers": [{}, {}],
            "leads": {"train": {"bytes": 10**9, "seconds": 12.34}, "other": {"bytes": 0, "seconds": 0.5}},
        }  # fmt: skip
        found = at(fake.url, FOREBAY_JOB="train")
        assert str(found) == f"sidecar {fake.url} ready, cache 4.0 GB of 8.0 GB, 87 % hit, lead 12.3 s, 2 readers; no trouble"
        assert (found.found, found.where, found.state) == (True, fake.url, "ready")
        assert (found.cache_used_bytes, found.cache_limit_bytes) == (4 * 10**9 + 10**6, 8 * 10**9)
        assert (found.hit_ratio, found.lead_s, found.readers, found.trouble) == (0.87, 12.34, 2, ())
        assert at(fake.url, FOREBAY_JOB="a job without a plan").lead_s == 0.5


def test_a_fresh_one_has_no_figures_yet() -> None:
    """Not read is not 0 % hit."""
    with FakeSidecar() as fake:
        found = at(fake.url)
    assert (found.hit_ratio, found.lead_s) == (None, None)
    assert "nothing read yet, no plan, 0 readers" in str(found)


def test_trouble_is_named() -> None:
    """The disk's state, errors, and shards of this process that lost their sidecar."""
    with FakeSidecar() as fake:
        fake.status = {**fake.status, "errors": 3, "cache": {**fake.status["cache"], "disk_state": "bypass", "disk_reason": "ENOSPC"}}
        COUNTS.add("fallback_total", 2)
        found = at(fake.url)
    assert found.trouble == (
        "disk bypass: ENOSPC", "3 errors since it started, see its log", "2 shards of this process went on without the sidecar",
    )  # fmt: skip
    assert str(found).endswith("; ".join(found.trouble))


def test_what_readers_wait_for_is_said() -> None:
    """In the sidecar's words, and what failed last, of which there need be no line in a log."""
    with FakeSidecar() as fake:
        waits = "a reader waits for https://o, 12 s by now: 503"
        fake.status = {
            **fake.status,
            "verdict": {"sentence": waits, "severity": "act"},
            "errors": 1,
            "recent_errors": [{"error": "shard https://o/a.tar: 404"}, {"error": "x"}],
        }
        found = at(fake.url)
    assert found.now == waits
    assert str(found).endswith(f", 0 readers; {waits}; 1 error since it started, the last: shard https://o/a.tar: 404")


def test_none_anywhere(tmp_path: Path) -> None:
    """It says how to get one; as a truth value it is false."""
    found = status({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert not found
    assert str(found) == "no sidecar runs for this user on this node; start one with 'forebay serve', or use 'with fb.sidecar():'"


def test_one_that_is_gone() -> None:
    """Where it was, and why there is no answer."""
    with FakeSidecar() as fake:
        url = fake.url
    found = at(url)
    assert (found.found, found.where) == (False, url)
    assert str(found).startswith("no sidecar answers: no connection to ")
    assert "fb.sidecar()" in str(found)


def test_an_address_that_is_none() -> None:
    """The variable is named; its value, which may hold a password, is not."""
    found = at("https://user:secret@host")
    assert str(found) == "FOREBAY_URL is no address such as http://127.0.0.1:7070"


@pytest.mark.parametrize("nonsense", [[], "text", {}, {"cache": 3, "bytes": {}}, {"cache": {}, "bytes": {}, "state": "ready"}])
def test_what_answers_nonsense_is_no_sidecar(nonsense: Any) -> None:
    """Another program's port."""
    with FakeSidecar() as fake:
        fake.status = nonsense
        found = at(fake.url)
    assert str(found) == f"what answers at {fake.url} is no sidecar"


def test_a_refusal_is_said(tmp_path: Path) -> None:
    """A sidecar that wants a token answers, but not us."""
    with FakeSidecar(token="secret") as fake:
        assert "answers HTTP 403" in str(at(fake.url))
        assert at(fake.url, FOREBAY_TOKEN="secret").found


def test_a_socket_path_that_no_kernel_takes(tmp_path: Path) -> None:
    """Its length is the cause that is named."""
    found = status({"FOREBAY_SOCKET": str(tmp_path / ("s" * 120)), "XDG_RUNTIME_DIR": "/no/such"})
    assert not found
    assert "path too long" in str(found)
