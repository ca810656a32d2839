"""The numbers people see in ``/v1/status`` and after ``forebay run``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from support.house import reader

from forebay_proxy.core.facts.origins import FetchJoined, OriginBytes, SegmentFetched
from forebay_proxy.core.facts.requests import Aborted, ReaderWaited, RequestDone, RequestOutcome, Served, ShardOpened
from forebay_proxy.telemetry.counters import MAX_JOBS, MOST_READERS, Counters, Followed, PlanAdherence


def _counters(*events: Any) -> Any:
    counters = Counters()
    for event in events:
        counters.listen(event)
    return counters.snapshot()


def _request(outcome: RequestOutcome | None, sent: int = 0, *, hit: int = 0, code: int = 200, job: str = "") -> RequestDone:
    return RequestDone("GET", code, outcome, sent, 0.1, 0.2, hit_bytes=hit, job=job)


NONE = {"hit": 0, "collapsed": 0, "partial": 0, "miss": 0, "bypass": 0, "relayed": 0}


def test_saved_is_what_the_origin_did_not_send() -> None:
    """Three readers of one shard of 100 bytes, fetched once: 200 bytes saved. What nobody has read yet is no loss; a page sends nothing."""
    fetched = OriginBytes("s3://b", 100, "demand")
    assert _counters(fetched, _request(None, 5000))["bytes"] == {"sent": 0, "hit": 0, "opened": 0, "origin": 100, "saved": 0}
    readers = (_request(RequestOutcome.MISS, 100), _request(RequestOutcome.COLLAPSED, 100), _request(RequestOutcome.HIT, 100, hit=100))
    seen = _counters(fetched, *readers)
    assert seen["bytes"] == {"sent": 300, "hit": 100, "opened": 0, "origin": 100, "saved": 200}
    assert seen["requests"] == {**NONE, "hit": 1, "collapsed": 1, "miss": 1}


@pytest.mark.parametrize(
    ("event", "errors"),
    [
        (_request(None, code=404), 1), (_request(RequestOutcome.MISS, code=503), 1),
        (replace(_request(None, code=404), expected=True), 0), (_request(None, code=409), 0),
        (_request(RequestOutcome.HIT, code=416), 0), (_request(RequestOutcome.HIT, code=412), 0),
        (_request(RequestOutcome.HIT, code=206), 0), (Aborted("origin_failed"), 1), (Aborted("client_gone"), 0),
        (SegmentFetched(1, True, False), 0),
    ],
)  # fmt: skip
def test_what_counts_as_an_error(event: Any, errors: int) -> None:
    """What training would notice; resuming by the book and leaving early are none."""
    assert _counters(event)["errors"] == errors


def test_a_job_sees_its_own_share() -> None:
    """Two jobs and an anonymous reader; the total has all three."""
    seen = _counters(
        _request(RequestOutcome.HIT, 10, hit=10, job="a"),
        _request(RequestOutcome.MISS, 20, job="b"),
        _request(RequestOutcome.MISS, 40),
        ReaderWaited("b", 1.5),
        Aborted("origin_failed", job="b"),
    )
    assert seen["bytes"]["sent"] == 70
    assert seen["jobs"]["a"]["bytes"] == {"sent": 10, "hit": 10, "opened": 0}
    assert (seen["jobs"]["a"]["reader_wait_s"], seen["jobs"]["b"]["reader_wait_s"], seen["reader_wait_s"]) == (0, 1.5, 1.5)
    assert (seen["jobs"]["a"]["errors"], seen["jobs"]["b"]["errors"]) == (0, 1)
    assert seen["jobs"]["b"]["requests"]["miss"] == 1


def test_jobs_are_bounded() -> None:
    """The ones heard from last are kept, and a long name is cut."""
    seen = _counters(
        *(_request(RequestOutcome.HIT, 1, job=f"job{number}") for number in range(MAX_JOBS + 10)), ReaderWaited("x" * 10_000, 1)
    )
    assert len(seen["jobs"]) == MAX_JOBS
    assert "job0" not in seen["jobs"]
    assert max(map(len, seen["jobs"])) == 256


def test_who_names_no_reader_is_told_apart() -> None:
    """Neither a job's bytes nor those who only look on count among theirs; a client that leaves is no error."""
    served = Served("https://h/a.tar", None, None, 100, None, 0.0, "", 0.0)
    seen = _counters(
        replace(_request(RequestOutcome.HIT, 70, hit=60), served=served),
        replace(_request(None, code=404), served=served),
        replace(_request(RequestOutcome.MISS, 5), served=replace(served, cut="client_gone")),
        replace(_request(RequestOutcome.MISS, 5), served=replace(served, cut="origin_failed")),
        replace(_request(RequestOutcome.HIT, 1000, hit=1000, job="j"), served=served),
        _request(None, code=404),
        ReaderWaited("", 0.5),
    )["anonymous"]
    assert seen["bytes"] == {"sent": 80, "hit": 60, "opened": 0}
    assert (sum(seen["requests"].values()), seen["errors"], seen["reader_wait_s"]) == (3, 2, 0.5)


# Readers and their plans


def test_openings_and_waits_are_counted_by_reader() -> None:
    """Each kind its own; other facts, and readers without a name, are nobody's."""
    adherence = PlanAdherence()
    for how in ("planned", "planned", "skipped", "repeated", "repeated", "unplanned"):
        adherence.listen(ShardOpened(reader(1), how))
    for who in (reader(1), reader(2), None):
        adherence.listen(ReaderWaited("job", 1.5, who))
    adherence.listen(FetchJoined())
    assert adherence.of(reader(1)) == Followed(Counter(planned=2, skipped=1, repeated=2, unplanned=1), waited_s=1.5)
    assert adherence.of(reader(2)) == Followed(waited_s=1.5)
    assert adherence.of(reader(3)) == Followed()


def test_the_one_unheard_for_longest_makes_room() -> None:
    """A client that makes up readers costs a fixed amount of memory."""
    adherence = PlanAdherence()
    for worker in (*range(MOST_READERS), 0, MOST_READERS):
        adherence.listen(ReaderWaited("job", 1.0, reader(worker)))
    assert [adherence.of(reader(worker)).waited_s for worker in (0, 1, 2, MOST_READERS)] == [2.0, 0.0, 1.0, 1.0]
