"""The query of ``GET /v1/plans``."""

from __future__ import annotations

import pytest

from forebay_proxy.core.errors import InvalidRequest
from forebay_proxy.server.http.plan_route import MOST_ROWS, parse_plan_query
from forebay_proxy.wire.protocol.plan import ReaderName


def test_everything_is_asked_for_without_one() -> None:
    """All jobs, from the first reader, a page at a time."""
    assert parse_plan_query("") == (None, None, MOST_ROWS)


def test_a_job_a_place_and_a_number() -> None:
    """As the answer before gave them; no page is longer than a page."""
    reader = ReaderName("a job/x".replace("/", "%"), "0", "1", "7.1")
    after = str(reader).replace("%", "%25").replace("/", "%2F")
    assert parse_plan_query(f"job=train&after={after}&limit=7") == ("train", reader, 7)
    assert parse_plan_query("limit=100000")[2] == MOST_ROWS


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=many", "limit=1e3", "limit=" + "9" * 40, "after=nobody", "after=a/b/c/.."])
def test_what_is_unclear_is_refused(query: str) -> None:
    """With what would be right."""
    with pytest.raises(InvalidRequest) as refused:
        parse_plan_query(query)
    assert refused.value.next_step
