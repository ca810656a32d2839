"""The last errors, in words."""

from __future__ import annotations

from forebay_proxy.core.events import Aborted, RequestDone
from forebay_proxy.telemetry.recent_errors import KEPT, RecentErrors


def ended(code: int, error: str = "", job: str = "") -> RequestDone:
    return RequestDone("GET", code, None, 0, 0.1, 0.1, job=job, error=error)


def test_refused_and_cut_requests_are_kept_with_their_times() -> None:
    """The newest first; what is by the book, or the client's own leaving, is none."""
    now = [100.0]
    errors = RecentErrors(lambda: now[0])
    errors.listen(ended(404, "shard s3://b/a.tar: not there", "train"))
    now[0] = 101.0
    errors.listen(Aborted("origin_failed", "train", "shard s3://b/b.tar: reset"))
    for ordinary in (ended(206), ended(416, "beyond"), ended(412, "other"), ended(499), Aborted("client_gone")):
        errors.listen(ordinary)
    assert errors.rows() == [
        {"at": 101.0, "what": "cut", "error": "shard s3://b/b.tar: reset", "job": "train", "count": 1},
        {"at": 100.0, "what": "404", "error": "shard s3://b/a.tar: not there", "job": "train", "count": 1},
    ]


def test_the_same_over_and_over_is_one_row() -> None:
    """Sixty-four workers that meet one 404 do not push the other errors out."""
    errors = RecentErrors(lambda: 1.0)
    errors.listen(ended(403, "other"))
    for _ in range(64):
        errors.listen(ended(404, "same"))
    assert [(row["error"], row["count"]) for row in errors.rows()] == [("same", 64), ("other", 1)]


def test_only_the_last_ones_are_kept() -> None:
    """A screen of them."""
    errors = RecentErrors(lambda: 1.0)
    for number in range(KEPT + 5):
        errors.listen(ended(404, str(number)))
    assert [row["error"] for row in errors.rows()] == [str(number) for number in range(KEPT + 4, 4, -1)]


def test_the_last_one_is_news_for_a_minute() -> None:
    """With its age."""
    now = [100.0]
    errors = RecentErrors(lambda: now[0])
    assert errors.lately() is None
    errors.listen(ended(404, "not there"))
    now[0] = 159.0
    assert errors.lately() == ("not there", 59.0)
    now[0] = 160.0
    assert errors.lately() is None
