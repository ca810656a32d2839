"""forebay status: the verdict first, plain where nobody watches, JSON for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import environment, invoke
from support.fake_sidecar import FakeSidecar

from forebay_proxy.cli.sidecars.status import _drawn

pytestmark = pytest.mark.another_python

READER = {"reader": "job/0/1/7.1", "shard": "s3://b/a.tar", "position_bytes": 5 * 10**6, "length_bytes": 10**9, "waited_s": 0.25}
PLAN = {"reader": "job/0/1/7.1", "epoch": None, "set": "s3://b/{0..9}.tar", "position": 3, "length": 10}
PLAN |= {"rate": 0.5, "lead_bytes": 2 * 10**9, "lead_s": 14.0, "waiting": True}


@pytest.fixture
def sidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    with FakeSidecar() as fake:
        counted = {"sent": 4 * 10**9, "hit": 3 * 10**9, "origin": 10**9, "saved": 3 * 10**9}
        fake.status = {**fake.status, "bytes": counted, "readers": [READER], "plans": [PLAN], "notices": ["the disk is full"]}
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def test_it_reads_at_three_in_the_morning(sidecar: FakeSidecar) -> None:
    """State, room, hits, waits, errors, readers and plans, aligned and without decoration."""
    lines = invoke("status").stdout.splitlines()
    assert lines[0].startswith(f"sidecar   ready, up 3 h 12 min, {sidecar.url}, pid {os.getpid()}")
    assert lines[1] == "cache     4.0 GB of 8.0 GB (50 %), 2 segments in flight, 200 MB in use; asked for 10.0 GB, but the disk has no more"
    assert lines[3] == "read      4.0 GB, 3.0 GB hit (75 %), 1.0 GB from origins, 3.0 GB saved"
    assert lines[7] == "notice    the disk is full"
    assert lines[10].split() == ["job/0/1/7.1", "s3://b/a.tar", "5.0", "MB", "of", "1.0", "GB", "0.2", "s"]
    assert lines[13].split() == ["job/0/1/7.1", "s3://b/{0..9}.tar", "-", "3/10", "0.5/s", "2.0", "GB,", "14", "s", "waiting"]


def test_why_it_is_slow_stands_at_the_top(sidecar: FakeSidecar) -> None:
    """The verdict, then which origin does what, which errors there were, and what each reader waits for."""
    origin = {"origin": "https://o", "rate_bytes_s": 1.5e6, "in_flight": 3, "codes_last_minute": {"503": 88, "0": 1}, "last_code": 503}
    origin |= {"throttled": 88, "retries": 89, "last_error": "503 Service Unavailable", "last_error_s_ago": 2.0}
    error = {"at": 1e9, "what": "404", "error": "shard https://o/x.tar: not there", "job": "", "count": 2}
    reader = READER | {"length_bytes": None, "position_bytes": 0, "waited_s": 29.9, "waiting_for": "https://o: 503 Service Unavailable"}
    said = "a reader waits for https://o, 30 s by now: 503 Service Unavailable"
    verdict = {"severity": "act", "sentence": said, "do": "see why", "line": "forebay check URL"}
    found = {"verdict": verdict, "origins": [origin], "recent_errors": [error], "readers": [reader], "log": "/run/forebay.log"}
    sidecar.status = {**sidecar.status, **found, "chosen": ["cache size 20 GiB"]}
    text = invoke("status").stdout
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[1:4] == [f"now ACT: {said}", "do see why", "type forebay check URL"]
    assert "log /run/forebay.log" in lines
    assert "chosen cache size 20 GiB" in lines
    assert "https://o 1.5 MB/s 3 88 x 503, 1 x failed 88 89 2.0 s ago: 503 Service Unavailable" in lines
    assert any(line.endswith("404 2 x shard https://o/x.tar: not there") for line in lines)
    assert "job/0/1/7.1 s3://b/a.tar 0 B 30 s https://o: 503 Service Unavailable" in lines


def test_a_declared_set_is_shown(sidecar: FakeSidecar) -> None:
    """Whether it comes, and how far each job is."""
    sets = [{"set": "s3://b/{0..9}.tar", "shards": 10, "state": "waits for room", "opened": {"": 3}}]
    sidecar.status = {**sidecar.status, "sets": sets}
    lines = invoke("status").stdout.splitlines()
    assert "set       s3://b/{0..9}.tar, 10 shards, waits for room, readers without a name: 3 opened in this epoch" in lines
    sidecar.status["sets"] = [sets[0] | {"complete": 4, "stored_bytes": 5_000_000}]
    assert any("10 shards, 4 of them here (5.0 MB), waits for room" in line for line in invoke("status").stdout.splitlines())


def test_what_of_a_set_cannot_be_fetched_is_shown_with_its_next_step(sidecar: FakeSidecar) -> None:
    """A line a cause."""
    failures = [
        {"count": 2, "shard": "s3://b/1.tar", "cause": "not a tar archive: a page", "next_step": "look at the token"},
        {"count": 1, "shard": "s3://b/7.tar", "cause": "404", "next_step": ""},
    ]
    one = {"set": "s3://b/{0..9}.tar", "shards": 10, "complete": 7, "stored_bytes": 7, "state": "fetching", "opened": {}}
    sidecar.status = {**sidecar.status, "sets": [{**one, "failures": failures}]}
    said = ["2 shards (s3://b/1.tar and others) cannot be fetched: not a tar archive: a page; look at the token"]
    said += ["s3://b/7.tar cannot be fetched: 404"]
    lines = [line.strip() for line in invoke("status").stdout.splitlines()]
    assert [line for line in lines if "cannot be fetched" in line] == said


def test_json_is_the_sidecars_own(sidecar: FakeSidecar) -> None:
    """Nothing added, nothing lost."""
    assert json.loads(invoke("status", "--json").stdout) == sidecar.status


def test_watch_shows_it_again_until_ctrl_c(sidecar: FakeSidecar, tmp_path: Path) -> None:
    """One JSON line an interval; SIGINT ends it without a traceback."""
    argv = [sys.executable, "-m", "forebay_proxy", "status", "--watch", "--json", "--interval", "0.1"]
    environ = environment(tmp_path, PYTHONUNBUFFERED="1")
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())["state"] == "ready"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr.strip() == ""


@pytest.mark.parametrize("is_terminal", [False, True])
def test_where_nothing_can_be_drawn_anew_it_is_a_still_picture(
    is_terminal: bool, sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a pipe and on a dumb terminal: one screen, with no word of keys."""
    monkeypatch.setattr("forebay_proxy.cli.sidecars.status.is_terminal", lambda: is_terminal)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "12")
    lines = invoke("top").stdout.splitlines()
    assert 3 < len(lines) <= 12
    assert max(map(len, lines)) <= 60
    assert not [line for line in lines if "q: quit" in line]


def test_ranks_are_shown_with_why_they_wait(sidecar: FakeSidecar) -> None:
    """The last minute's stall, the causes that are a tenth of it, and where; "-" for what is not known."""
    row = {"job": "train", "rank": "3", "batch_size": 256, "slowest_worker": 1, "slowest_shard": "s3://b/7.tar", "skipped": 2}
    lately = {"wall_s": 60.0, "stall_s": {"decode": 9.0, "origin": 3.0, "map": 0.5, "disk": 0.0}, "steps": 90}
    lately |= {"samples": 900, "reader_wait_s": {}}
    nothing = {"batch_size": None, "slowest_worker": None, "slowest_shard": None, "lately": {"wall_s": 0.0, "stall_s": {}, "steps": 0}}
    sidecar.status = {
        **sidecar.status,
        "meters": [
            row | {"lately": lately},
            row | {"rank": "4"} | nothing,
            row | {"rank": "5", "lately": lately, "silent": "silent for 4 min"},
        ],
    }
    lines = [" ".join(line.split()) for line in invoke("status").stdout.splitlines()]
    at = lines.index("rank stall a step batch worker shard skipped")
    assert not [line for line in lines if "uneven" in line]  # of one rank alone
    assert lines[at + 1 : at + 3] == ["train 3 20.8 % (decode 15.0 %, origin 5.0 %) 0.667 s 256 1 s3://b/7.tar 2", "train 4 - - - - - 2"]
    assert lines[at + 3] == "train 5 silent for 4 min 0.667 s 256 1 s3://b/7.tar 2"


def test_what_is_rare_is_said_while_it_is(sidecar: FakeSidecar) -> None:
    """Each in its place, and nothing of it on other days."""
    ordinary = invoke("status").stdout
    meter = {
        "job": "train", "rank": "3", "ended": True, "batch_size": 8, "slowest_worker": 1, "slowest_shard": None, "skipped": 0,
        "unequal": "rank 1 has no more batches", "lately": {"wall_s": 60.0, "stall_s": {}, "reader_wait_s": {}, "steps": 9, "samples": 72},
    }  # fmt: skip
    cache = {"descriptors": 3, "descriptor_bytes": 10**9, "lingering": 2, "disk_state": "down", "disk_reason": "EIO at a write"}
    sidecar.status |= {
        "cache": sidecar.status["cache"] | cache, "bytes": sidecar.status["bytes"] | {"opened": 10**9}, "meters": [meter], "plans_total": 3,
        "troubles": ["requests pass by"],
    }  # fmt: skip
    text = " ".join(invoke("status").stdout.split())
    for said in (
        "1.0 GB of it by 3 descriptors (2 by views that outlived their reader)", "disk down: EIO at a write", "1.0 GB opened to read",
        "ranks train: rank 1 has no more batches", "train 3 (ended)", "and 2 more", "trouble requests pass by",
    ):  # fmt: skip
        assert said in text, said
        assert said not in " ".join(ordinary.split())


def test_top_has_the_totals_that_matter_and_three_orders(sidecar: FakeSidecar) -> None:
    """Room, bytes, errors, troubles, the disk and the shared tier below the tables; readers as they come, the longest wait, by shard."""
    readers = [
        READER | {"reader": f"job/0/{n}/7.1", "waited_s": wait, "shard": f"s3://b/{shard}.tar"}
        for n, wait, shard in ((0, 1, "c"), (1, 9, "b"), (2, 5, "a"))
    ]
    shared = {
        "place": "s3://c/p/",
        "troubles": [],
        "failures": 0,
        **dict.fromkeys(("read_bytes", "written_bytes", "hits", "waited", "fetched"), 1),
    }
    cache = sidecar.status["cache"] | {"disk_state": "down", "disk_reason": "EIO"}
    found = sidecar.status | {"cache": cache, "troubles": ["the disk fills"], "shared": shared, "readers": readers}
    orders = []
    for order in range(4):
        lines = [line.plain for line in _drawn(found, 100, 40, order)]
        orders.append("".join(line.split("/")[2] for line in lines if line.startswith("job/0/") and "MB of" in line))
    assert orders == ["012", "120", "210", "012"]
    assert [line.split()[0] for line in lines[-6:]] == ["cache", "read", "shared", "errors", "trouble", "disk"]


def test_ranks_that_part_are_said(sidecar: FakeSidecar) -> None:
    """By how much, and which rank has most; of a job whose ranks are within a fifth nothing is said."""

    def row(job: str, rank: str, steps: int) -> dict[str, object]:
        lately = {"wall_s": 60.0, "stall_s": {"decode": 3.0}, "reader_wait_s": {}, "steps": steps, "samples": 8 * steps}
        return {"job": job, "rank": rank, "batch_size": 8, "slowest_worker": 1, "slowest_shard": None, "skipped": 0, "lately": lately}

    sidecar.status = {**sidecar.status, "meters": [row("a", "0", 90), row("a", "1", 30), row("b", "0", 90), row("b", "1", 80)]}
    said = [" ".join(line.split()) for line in invoke("status").stdout.splitlines() if line.startswith("ranks ")]
    assert said == ["ranks a: uneven, samples 1.50 (rank 0), steps 1.50 (rank 0)"]


def test_the_shared_tier_has_a_line(sidecar: FakeSidecar) -> None:
    """Its trouble stands below; without a tier there is no line."""
    assert "shared tier" not in invoke("status").stdout
    counted = {
        "hits": 5,
        "waited": 2,
        "fetched": 3,
        "given_up": 0,
        "failures": 1,
        "read_bytes": 7 * 10**9,
        "written_bytes": 10**9,
        "written": 3,
    }
    sidecar.status = {**sidecar.status, "shared": {"place": "s3://c/p/", **counted, "troubles": ["no answer within 1 s"]}}
    said = invoke("status").stdout
    assert "s3://c/p/: 7.0 GB read, 1.0 GB written; of its shards 5 were there, 2 were waited for, 3 fetched for all; 1 failure" in said
    assert "not used for a while: no answer within 1 s" in said
