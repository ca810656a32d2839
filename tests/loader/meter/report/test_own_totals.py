"""One process's totals as a message, and as the postfix of a progress bar."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from forebay_loader.meter.report.own_totals import SLOWEST_S, Postfix, Window, own_totals
from forebay_loader.meter.totals import StallTotals, WorkerStall
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody

FIRST = StallTotals(
    wall_s=100.0, stall_s={"decode": 9.0, "map": 1.0}, pending_s=0.5, pending_cause="origin", reader_wait_s={"origin": 40.0}, steps=50,
    samples=3200, skipped=2, batch_size=64, workers=(WorkerStall(11, 0, 8.0, "s3://b/0.tar"), WorkerStall(12, 1, 2.0, "s3://b/1.tar")),
)  # fmt: skip


class Process:
    """A clock, and totals as they are then."""

    def __init__(self, totals: StallTotals) -> None:
        self.now_s, self.totals = 0.0, totals
        self.window = Window(SLOWEST_S, lambda: self.now_s)
        self.postfix = Postfix(lambda: self.totals, lambda: self.now_s)

    def own(self) -> MeterBody:
        clock: Any = SimpleNamespace(totals=lambda: self.totals, workers=4, stand=lambda: None)
        return own_totals(clock, self.window)

    def passed(self, seconds: float, **stall_s: float) -> None:
        """So long, with so much more stall, all of it for worker 1."""
        self.now_s += seconds
        before = self.totals
        more = {cause: before.stall_s.get(cause, 0.0) + stall_s.get(cause, 0.0) for cause in {*before.stall_s, *stall_s}}
        first, second = before.workers
        workers = (first, replace(second, stall_s=second.stall_s + sum(stall_s.values())))
        self.totals = replace(before, wall_s=before.wall_s + seconds, steps=before.steps + int(seconds), stall_s=more, workers=workers)


def test_what_the_sidecar_is_told() -> None:
    """Sums as they are, each cause; a stall whose cause is not known yet comes later, so that no sum ever shrinks."""
    body = Process(FIRST).own()
    assert (body.wall_s, body.steps, body.samples, body.skipped, body.batch_size, body.workers) == (100.0, 50, 3200, 2, 64, 4)
    assert body.stall_s == {**dict.fromkeys(CAUSES, 0.0), "decode": 9.0, "map": 1.0}
    assert body.reader_wait_s["origin"] == 40.0
    assert (body.slowest_worker, body.slowest_shard) == (0, "s3://b/0.tar")
    assert (body.pending_s, body.pending) == (0.5, "origin")


def test_the_slowest_worker_is_that_of_lately() -> None:
    """One that was slow a minute ago is forgotten, whatever its sum."""
    process = Process(FIRST)
    found = []
    for _ in range(4):
        found.append(process.own().slowest_worker)
        process.passed(30.0, decode=1.0)
    assert found == [0, 0, 0, 1]  # between one and two half minutes


def test_a_process_that_makes_its_batches_itself_has_no_slowest_worker() -> None:
    """Nor has one that has waited for none."""
    alone = replace(FIRST, workers=(WorkerStall(11, -1, 8.0, "s3://b/0.tar"),))
    assert (Process(alone).own().slowest_worker, Process(alone).own().slowest_shard) == (None, "s3://b/0.tar")
    assert Process(StallTotals()).own().slowest_worker is None


def test_a_postfix_is_of_the_last_seconds() -> None:
    """Not of the first minutes; it is made anew twice a second, not at each step."""
    process = Process(StallTotals(workers=FIRST.workers))
    assert process.postfix() == {}
    for _ in range(40):
        process.passed(1.0, origin=0.5)
    assert process.postfix() == {"stall": "50.0% origin", "data": "0.500s"}
    for _ in range(30):
        process.passed(1.0)
        process.postfix()
    assert process.postfix() == {"stall": "0.0%", "data": "0.000s"}
    process.totals = replace(process.totals, stall_s={"map": 1e3})
    process.now_s += 0.1
    assert process.postfix()["stall"] == "0.0%"


def test_a_fork_begins_anew() -> None:
    """Its totals are smaller than its parent's were."""
    process = Process(FIRST)
    for _ in range(3):
        process.passed(10.0)
        process.postfix()
    process.totals, process.now_s = replace(FIRST, wall_s=2.0, stall_s={"map": 1.0}, steps=2, pending_s=0.0), process.now_s + 1.0
    assert process.postfix() == {"stall": "50.0% map", "data": "0.500s"}
