"""Totals of stall: subtracted, sent, and read as a sentence."""

from __future__ import annotations

import json
from dataclasses import replace

from forebay_loader.meter.totals import StallTotals, WorkerStall

FOUND = StallTotals(
    wall_s=120.0, stall_s={"decode": 25.2, "map": 1.08}, reader_wait_s={"origin": 90.0}, steps=100, samples=6400, batch_size=64,
    workers=(WorkerStall(71, 1, 2.0), WorkerStall(73, 3, 24.28, "s3://b/00017.tar")),
)  # fmt: skip


def test_one_true_sentence() -> None:
    """Reader wait is no part of it."""
    assert str(FOUND).startswith("stall 21.9 % of 120 s: 96 % decode (worker 3, shard s3://b/00017.tar); let more workers decode")
    assert (FOUND.verdict.severity, FOUND.verdict.cause, FOUND.verdict.line) == ("act", "decode", "num_workers=3")


def test_it_knows_the_idle_cores() -> None:
    """As the log line does: the two say the same of one run."""
    busy = replace(FOUND, idle_cores=0.1)
    assert busy.verdict.do.endswith("all cores are busy, so more workers would not help")
    assert busy.since(StallTotals()).idle_cores == 0.1


def test_what_is_not_booked_yet_counts_as_what_it_looks_like() -> None:
    """An outage is told of in its first second; where nothing is known, as most of the stall."""
    waits = StallTotals(wall_s=9.0, stall_s={"decode": 1.0}, pending_s=4.0, pending_cause="origin")
    assert (waits.verdict.cause, waits.verdict.line) == ("origin", "forebay status")
    assert StallTotals(wall_s=9.0, stall_s={"decode": 1.0}, pending_s=4.0).verdict.cause == "decode"
    assert StallTotals(wall_s=9.0, pending_s=4.0).verdict.cause == "not known"


def test_no_stall_to_speak_of() -> None:
    assert str(StallTotals(wall_s=60.0, stall_s={"transfer": 0.3}, steps=9)) == "stall 0.5 % of 60 s: the trainer sets the pace"
    assert str(StallTotals()) == "no batch was asked for yet"


def test_what_came_since() -> None:
    """Of causes and workers only those that there were."""
    earlier = StallTotals(wall_s=20.0, stall_s={"map": 1.08}, steps=40, workers=(WorkerStall(71, 1, 2.0),))
    found = FOUND.since(earlier)
    assert (found.wall_s, found.stall_s, found.steps, [one.worker for one in found.workers]) == (100.0, {"decode": 25.2}, 60, [3])
    assert (found.batch_s, found.data_s, found.cause) == (100 / 60, 25.2 / 60, "decode")


def test_it_can_be_sent() -> None:
    """Without loss of what the other side shows."""
    sent = json.loads(json.dumps(FOUND.as_json()))
    assert (sent["stall_s"], sent["batch_s"], sent["slowest_worker"], sent["slowest_shard"]) == (
        {"decode": 25.2, "map": 1.08}, 1.2, 3, "s3://b/00017.tar",
    )  # fmt: skip
