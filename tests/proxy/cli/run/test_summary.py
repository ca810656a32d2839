"""What a run cost and saved, in one line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_sidecar import status_of, tally_of

from forebay_proxy.cli.run.summary import summary

GB = 10**9
MINE = "host-7-aa"


def status(origin: int = 0, anonymous: dict[str, Any] | None = None, **jobs: dict[str, Any]) -> dict[str, Any]:
    named = {MINE if job == "mine" else job: counters for job, counters in jobs.items()}
    return status_of("u", bytes={"origin": origin}, jobs=named, anonymous=anonymous or tally_of())


def told(before: dict[str, Any], after: dict[str, Any]) -> str:
    return summary(before, after, MINE)


def test_other_jobs_are_told_apart() -> None:
    """Neither their bytes nor those that origins sent for both are the command's."""
    line = told(status(), status(5 * GB, mine=tally_of(2, 2 * GB, 1 * GB), other=tally_of(3, 8 * GB, 8 * GB), third=tally_of(1, GB)))
    mine, *rest = line.split("; ")
    assert mine == "2.0 GB read, 1.0 GB hit (50 %)"
    assert rest[-1] == "5.0 GB from origins for all readers of the sidecar"
    assert "saved" not in line


def test_a_command_that_read_nothing_is_told_so() -> None:
    """A command that never came through Forebay should be noticed, also beside a busy job; what only failed did come."""
    assert told(status(), status()).startswith("no shard was read through Forebay; 'forebay check")
    line = told(status(), status(5 * GB, other=tally_of(3, 8 * GB, 8 * GB)))
    assert line.startswith("no reader of this command read through Forebay; 'forebay check URL'")
    assert "8.0 GB" not in line
    assert told(status(), status(mine=tally_of(errors=3))).endswith("3 errors")


def test_what_was_not_stored_is_told_with_its_cause() -> None:
    """Each of them is fetched again the next time."""
    after = status(5, mine=tally_of(3, 8)) | {"troubles": ["other programs fill the cache's disk"]}
    after["jobs"][MINE]["requests"]["bypass"] = 2
    assert told(status(), after).endswith("; 2 requests not stored; other programs fill the cache's disk")


def test_what_is_no_tar_is_told() -> None:
    """Of the command's own readings, with the last one's words; none where all were tars."""
    row = {"at": 0, "what": "no tar", "error": "shard s3://b/a.tar: not a tar archive: JSON", "job": MINE, "count": 2}
    after = status(5, mine=tally_of(3, 8)) | {"recent_errors": [{**row, "what": "404", "error": "x"}, row]}
    after["jobs"][MINE]["no_tars"] = 2
    assert told(status(), after).endswith("; 2 readings of what is no tar, the last: shard s3://b/a.tar: not a tar archive: JSON")
    assert "no tar" not in told(after, after)


def test_programs_that_name_no_reader_may_be_anybodys() -> None:
    """curl by GOPEN_REWRITE: nobody knows whose; where nothing else read, the whole is told with it."""
    line = told(status(), status(1 * GB, tally_of(3, 4 * GB, 3 * GB)))
    assert line.startswith("4.0 GB read, 3.0 GB hit (75 %), 1.0 GB from origins, 3.0 GB saved; ")
    assert line.endswith("programs that name no reader (curl, say), this command's or others'")
    both = told(status(), status(1 * GB, tally_of(3, 4 * GB, 3 * GB), mine=tally_of(1, GB)))
    assert both.startswith("1.0 GB read, 0 B hit (0 %); ")
    assert "this command's or others': 4.0 GB read" in both


@pytest.mark.parametrize("jobs", [{}, {"mine": tally_of(1, 2 * GB)}])
def test_a_restarted_sidecar_is_said(jobs: dict[str, Any]) -> None:
    """Its counters began anew; no negative figure shows."""
    before = {**status(9 * GB, mine=tally_of(9, 10**12)), "instance": "other"}
    line = told(before, status(1 * GB, **jobs))
    assert "restarted" in line
    assert line.startswith("2.0 GB read, 0 B hit (0 %), 1.0 GB from origins, 1.0 GB saved" if jobs else "no shard")


@given(st.lists(st.integers(0, 10**15), min_size=6, max_size=6))
def test_it_is_always_one_line(figures: list[int]) -> None:
    """Whatever the counters say, also those of a sidecar of another version."""
    mine, other, anonymous, *rest = figures
    before = status(rest[0], tally_of(1, rest[1]), mine=tally_of(1, rest[2]))
    assert "\n" not in told(before, status(rest[0], tally_of(2, anonymous), mine=tally_of(2, mine), other=tally_of(1, other)))
    assert "\n" not in told({"instance": "x"}, {"instance": "x"})
