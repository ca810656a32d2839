"""The log line: true, one line, and the words of OpenCLIP."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.meter.report.cores import CoreUse
from forebay_loader.meter.report.line import advice, log_line
from forebay_loader.meter.report.node_view import NodeSums, NodeView, SidecarSums, read_node, stall_share
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody

PAGE = (Path(__file__).parents[4] / "docs" / "loader.md").read_text(encoding="utf-8")
SIDECAR = SidecarSums("ab", 1000, 970, 12_360_000_000, 0, 14.2, 12_100_000_000)


def rank(wall_s: float = 30.0, steps: int = 45, **stall_s: float) -> MeterBody:
    more = {"samples": 256 * steps, "batch_size": 256, "workers": 4, "slowest_worker": 1, "slowest_shard": "s3://b/train/00017.tar"}
    return MeterBody(wall_s, {**dict.fromkeys(CAUSES, 0.0), **stall_s}, steps, **more)  # type: ignore[arg-type]


def test_a_whole_line() -> None:
    """As docs/loader.md shows it."""
    view = NodeView({"0": rank(decode=0.1), "3": rank(decode=3.9, map=0.06)}, 30.0, 0, SIDECAR)
    line = log_line(view, CoreUse(8.0, 0.4))
    assert f"\nforebay: {line}\n" in PAGE
    assert line == (
        "stall 13.2 % (decode 13.0) | Data (t): 0.088 Batch (t): 0.667, 768.0/s | slowest rank 3 worker 1 shard 00017.tar | "
        "lead 14 shards 12.1 GB | hit 97 % | origin 412.0 MB/s, 0 retries | skipped 0 | batch 256 | "
        "decode: let more workers decode, or keep what they made (fb.memo): workers 4 -> 5 would help: 3.2 cores are idle: "
        "num_workers=5"
    )


def test_without_a_sidecar_it_says_so() -> None:
    """And speaks of its own rank."""
    line = log_line(NodeView({"0": rank(map=3.0)}, 30.0, 2))
    assert line == (
        "stall 10.0 % (user code 10.0) | Data (t): 0.067 Batch (t): 0.667, 384.0/s | slowest worker 1 shard 00017.tar | "
        "no sidecar answers: this rank alone | skipped 2 | batch 256 | user code: let more workers run your own code, "
        "or make it cheaper: workers 4 -> 5 would help, if there are cores for them: num_workers=5"
    )


def test_nobody_is_slowest_where_nobody_waits() -> None:
    """A tired person looks no further than 0.1 %."""
    assert "slowest" not in log_line(NodeView({"0": rank(origin=0.03)}, 30.0, 0, SIDECAR))


def test_ranks_that_part_are_said() -> None:
    """The most of what a rank did in a second over the mean; a step more or less at an interval's ends is nothing."""
    view = NodeView({"0": rank(steps=45), "1": rank(steps=30)}, 30.0, 0, SIDECAR)
    assert " | uneven: samples 1.20 x the mean on rank 0, steps 1.20 x the mean on rank 0 | lead" in log_line(view)
    late = NodeView({"0": rank(steps=45), "1": rank(20.0, steps=30)}, 30.0, 0, SIDECAR)
    few = NodeView({"0": rank(steps=4), "1": rank(steps=3)}, 30.0, 0, SIDECAR)
    assert [view.uneven for view in (late, few)] == ["", ""]


def test_without_a_rank_there_is_no_line() -> None:
    """Between two epochs nobody is metered."""
    assert log_line(NodeView({}, 30.0, 0, SIDECAR)) == ""


bodies = st.builds(
    lambda wall_s, steps, parts, worker, shard: MeterBody(
        wall_s, {cause: part * wall_s / 10 for cause, part in zip(CAUSES, parts, strict=True)}, steps, {}, steps, steps, steps or None,
        worker, worker, shard,
    ),
    st.floats(0.01, 1e7), st.integers(0, 10**9), st.lists(st.floats(0, 1), min_size=10, max_size=10), st.none() | st.integers(0, 200),
    st.none() | st.text(max_size=300),
)  # fmt: skip
sidecars = st.builds(
    SidecarSums, st.just("x"), *[st.integers(-(10**15), 10**15)] * 4, st.none() | st.floats(0, 1e6), st.none() | st.integers(0)
)


@given(st.dictionaries(st.integers(0, 9999).map(str), bodies, max_size=5), st.floats(0, 1e5), st.none() | sidecars, st.floats(0, 1))
def test_whatever_was_measured_is_one_line(ranks: dict[str, MeterBody], seconds: float, sidecar: SidecarSums | None, idle: float) -> None:
    """Its parts are known ones, its stall is the slowest rank's, no query of a shard's URL is in it."""
    ranks = {
        name: replace(body, slowest_shard=body.slowest_shard and f"s3://b/k.tar?sig={body.slowest_shard}") for name, body in ranks.items()
    }
    line = log_line(NodeView(ranks, seconds, 0, sidecar), CoreUse(4.0, idle))
    assert len(line.splitlines()) <= 1
    assert line.isprintable()
    if not ranks:
        return
    assert "sig=" not in line
    share = max(map(stall_share, ranks.values()))
    assert line.startswith(f"stall {100 * share:.1f} %")
    assert re.search(r"\| Data \(t\): [0-9.]+ Batch \(t\): [0-9.]+", line)
    named = re.match(r"stall [0-9.]+ % \(([^)]*)\)", line)
    shares = [float(each.rpartition(" ")[2]) for each in named[1].split(", ")] if named else []
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100 * share + 1


def page(rows: dict[str, float], instance: str = "ab", sent_bytes: int = 0) -> dict[str, Any]:
    sums = {
        "reader_wait_s": {},
        "samples": 0,
        "skipped": 1,
        "batch_size": None,
        "workers": None,
        "slowest_worker": None,
        "slowest_shard": None,
    }
    ranks = [
        {"reader": f"j/{name}/main/7.0", "wall_s": wall_s, "stall_s": {}, "steps": int(wall_s), **sums} for name, wall_s in rows.items()
    ]
    told = {"sent_bytes": sent_bytes, "hit_bytes": 0, "origin_bytes": 0, "origin_retries": 0, "lead_bytes": None, "lead_shards": None}
    return {"instance": instance, "ranks": ranks, "sidecar": told}


def test_a_line_is_of_what_came_since_the_one_before() -> None:
    """A rank that is new counts from its beginning, one that told nothing new is not in it; skipped samples are those of all time,
    also of ranks that are silent now."""
    before, after = read_node(page({"0": 60, "1": 50, "2": 9}, sent_bytes=100)), read_node(page({"0": 90, "1": 50, "3": 5}, sent_bytes=150))
    view = after.since(before, 30.0)
    assert {name: (body.wall_s, body.steps) for name, body in view.ranks.items()} == {"0": (30, 30), "3": (5, 5)}
    assert (view.skipped, view.sidecar and view.sidecar.sent_bytes) == (4, 50)


def test_what_the_sidecar_says_is_read() -> None:
    """One of an older version says nothing."""
    says = {"cause": "origin rate", "do": "wait", "line": "forebay warm", "severity": "act"}
    told, silent = read_node({**page({}), "verdict": says}).sidecar, read_node(page({})).sidecar
    assert (told and told.says, silent and silent.says) == (("origin rate", "wait", "forebay warm"), ("", "", ""))


def test_what_was_skipped_never_falls() -> None:
    """Whoever is silent, speaks again, or begins anew."""
    names = [["0", "1"], ["0"], [], ["1", "2"], ["3"], ["0", "3"]]
    sums, said = NodeSums({}), []
    for at, ranks in enumerate(names):
        bodies = {f"job/{name}/main/1.0": replace(rank(), skipped=10 ** int(name) * (at + 1)) for name in ranks}
        node = NodeSums(bodies).after(sums)
        said.append(node.since(sums, 30.0).skipped)
        sums = node
    assert said == [11, 12, 12, 2 + 40 + 400, 2 + 40 + 400 + 5000, 6 + 40 + 400 + 6000]


def test_a_sidecar_that_began_anew_counts_from_there() -> None:
    """Its sums are smaller than those before."""
    before, after = read_node(page({}, "ab", 1000)), read_node(page({}, "cd", 10))
    sidecar = after.since(before, 30.0).sidecar
    assert sidecar is not None
    assert sidecar.sent_bytes == 10
    assert NodeSums({}).since(before, 30.0).sidecar is None


def of_workers(workers: int | None = 4, ranks: int = 1, **stall_s: float) -> NodeView:
    body = MeterBody(100.0, {**dict.fromkeys(CAUSES, 0.0), **stall_s}, 100, workers=workers)
    return NodeView({str(rank): body for rank in range(ranks)}, 100.0, 0, SidecarSums("ab", origin_bytes=41_000_000_000))


def told_of(cause: str, **stall_s: float) -> NodeView:
    """The same, with what the sidecar says."""
    return replace(of_workers(**stall_s), sidecar=SidecarSums("ab", says=(cause, "read from elsewhere", "forebay check URL")))


@pytest.mark.parametrize(
    ("seen", "cores", "said"),
    [
        (of_workers(decode=21.9), CoreUse(16, 0.4), "workers 4 -> 6 would help: 6.4 cores are idle: num_workers=6"),
        (of_workers(map=70.0), CoreUse(16, 0.4), "workers 4 -> 10 would help: 6.4 cores are idle: num_workers=10"),  # 14 are wanted
        (
            of_workers(decode=21.9),
            CoreUse(16, 0.04),
            "on a disk (fb.memo): all cores are busy, so more workers would not help",
        ),
        (
            of_workers(decode=21.9, ranks=8),
            CoreUse(16, 0.4),
            "on a disk (fb.memo): all cores are busy, so more workers would not help",
        ),  # 8 ranks want them
        (of_workers(0, decode=60.0), CoreUse(4, 0.75), "workers 0 -> 2 would help: 3.0 cores are idle: num_workers=2"),
        (of_workers(origin=30.0), CoreUse(16, 0.9), "origin: ask the sidecar why bytes come too slowly: forebay status"),
        (told_of("origin limit", origin=30.0), CoreUse(16, 0.9), "origin limit: read from elsewhere: forebay check URL"),
        (told_of("disk", disk=30.0), CoreUse(16, 0.9), "disk: read from elsewhere: forebay check URL"),
        (told_of("decode", origin=30.0), CoreUse(16, 0.9), "origin: ask the sidecar"),  # of another rank
        (
            told_of("origin limit", disk=30.0),
            CoreUse(16, 0.9),
            "disk: ask who runs this machine for a better disk",
        ),
        (of_workers(disk=30.0, read=5.0), CoreUse(16, 0.9), "disk: ask who runs this machine for a better disk"),
        (of_workers(transfer=30.0), CoreUse(16, 0.9), ": prefetch_factor=4"),
        (of_workers(start=30.0), CoreUse(16, 0.9), ": persistent_workers=True"),
        (of_workers(decode=30.0), None, "workers 4 -> 6 would help, if there are cores for them: num_workers=6"),
    ],
)
def test_what_is_advised(seen: NodeView, cores: CoreUse | None, said: str) -> None:
    """By what the slowest rank's workers did, and by what is left of the cores."""
    assert said in advice(seen, cores)


@pytest.mark.parametrize("seen", [of_workers(decode=1.0), NodeView()])
def test_nothing_is_advised_where_nobody_waits(seen: NodeView) -> None:
    assert advice(seen, CoreUse(16, 0.9)) == ""
