"""A disk that others fill, and shards that pass by: one line when it begins, one when it is over, a sentence while it lasts."""

from __future__ import annotations

import logging

import pytest
from support.house import FakeClock

from forebay_proxy.core.events import RequestFailed
from forebay_proxy.core.facts.requests import Aborted, NotTar
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.telemetry.troubles import QUIET_S, RecentErrors, Troubles

GB = 10**9


def test_a_disk_that_others_fill_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """While it lasts the sentence has the present figures; breathing around the border is no news."""
    caplog.set_level(logging.INFO, logger="forebay")
    troubles = Troubles(FakeClock(), SEGMENT_BYTES, int)
    for effective in (5 * GB, 10 * GB, 9.5 * GB, 9.2 * GB):
        troubles.look(int(effective), "normal", "")
    assert troubles.rows() == []
    for effective in (8 * GB, 9.1 * GB, 6 * GB):
        troubles.look(int(effective), "normal", "")
    assert "of 10.0 GB the cache may use 6.0 GB now" in troubles.rows()[0]
    troubles.look(0, "normal", "")
    assert "hardly anything is stored" in troubles.rows()[0]
    for effective in (9.6 * GB, 9.2 * GB, 8.9 * GB):  # what there was before is forgotten
        troubles.look(int(effective), "normal", "")
    assert troubles.rows() == []
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(
    ("effective", "state", "why", "lines"),
    [(10 * GB, "normal", "has no room", 2), (5 * GB, "normal", "other programs", 3), (10 * GB, "down", "the cache disk is down (EIO)", 1)],
)
def test_what_passes_by_is_told_once_with_its_cause(
    caplog: pytest.LogCaptureFixture, effective: int, state: str, why: str, lines: int
) -> None:
    """Until a minute has passed without; of a disk that fails the log has spoken already."""
    caplog.set_level(logging.INFO, logger="forebay")
    clock, bypassed = FakeClock(), 0
    troubles = Troubles(clock, SEGMENT_BYTES, lambda: bypassed)
    troubles.look(10 * GB, "normal", "")
    for bypassed in (1, 3, 3):  # noqa: B007 -- read by the lambda
        troubles.look(effective, state, "EIO")
    assert troubles.rows()[-1].startswith("3 requests of the last minute were not stored: ")
    assert why in troubles.rows()[-1]
    clock.now += QUIET_S + 1
    troubles.look(effective, state, "EIO")
    assert not any("not stored:" in row for row in troubles.rows())
    assert len(caplog.records) == lines


def ended(code: int, error: str = "", job: str = "") -> RequestFailed:
    return RequestFailed(code, error, job)


def test_refused_and_cut_requests_are_kept_with_their_times() -> None:
    """The newest first; what is by the book, or the client's own leaving, is none."""
    now = [100.0]
    errors = RecentErrors(lambda: now[0], lambda: now[0])
    errors.listen(ended(404, "shard s3://b/a.tar: not there", "train"))
    now[0] = 101.0
    errors.listen(Aborted("origin_failed", "train", "shard s3://b/b.tar: reset"))
    for ordinary in (ended(409, "not yet"), ended(416, "beyond"), ended(412, "other"), ended(499), Aborted("client_gone")):
        errors.listen(ordinary)
    assert errors.rows() == [
        {"at": 101.0, "what": "cut", "error": "shard s3://b/b.tar: reset", "job": "train", "count": 1},
        {"at": 100.0, "what": "404", "error": "shard s3://b/a.tar: not there", "job": "train", "count": 1},
    ]


def test_the_last_one_is_news_for_a_minute() -> None:
    """With its age, also while a person's clock is set an hour back or forward; what asks for no shard is none."""
    now, wall = [100.0], [1e9]
    errors = RecentErrors(lambda: now[0], lambda: wall[0])
    assert errors.lately() is None
    errors.listen(ended(404, "shard s3://b/a.tar: not there"))
    now[0] = 159.0
    errors.listen(ended(404, "'/wp-login.php' begins with no scheme"))
    for wall[0] in (1e9 + 59, 1e9 - 3600, 1e9 + 3600):
        assert errors.lately() == ("shard s3://b/a.tar: not there", 59.0)
    now[0] = 160.0
    assert errors.lately() is None


def test_what_is_no_tar_is_an_error_and_what_has_no_words_has_a_name() -> None:
    """A login page is stored under no shard's name, and whoever asked hears why. No row is empty."""
    errors = RecentErrors(lambda: 1.0, lambda: 1.0)
    errors.listen(NotTar("s3://b/a.tar", "a web page", "train"))
    assert errors.rows() == [{"at": 1.0, "what": "no tar", "error": "shard s3://b/a.tar: a web page", "job": "train", "count": 1}]
    errors.listen(ended(500))
    errors.listen(Aborted("origin_failed"))
    assert [row["error"] for row in errors.rows()][:2] == ["origin_failed", "no reason was given"]


def test_one_that_comes_again_is_as_new_as_its_last_time() -> None:
    """And first, since the newest is; the kinds of it are counted apart by status and by job."""
    now = [1.0]
    errors = RecentErrors(lambda: now[0], lambda: now[0])
    for now[0], code, job in ((1.0, 404, "a"), (2.0, 403, "a"), (3.0, 404, "b"), (4.0, 404, "a")):
        errors.listen(ended(code, "gone", job))
    assert [(row["at"], row["what"], row["job"], row["count"]) for row in errors.rows()] == [
        (4.0, "404", "a", 2), (3.0, "404", "b", 1), (2.0, "403", "a", 1),
    ]  # fmt: skip
