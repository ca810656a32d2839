"""A disk that others fill, and shards that pass by: one line when it begins, one when it is over, a sentence while it lasts."""

from __future__ import annotations

import logging

import pytest

from forebay_proxy.core.events import RequestDone, RequestOutcome
from forebay_proxy.telemetry.troubles import MOST_COUNTED, QUIET_S, Troubles

GB = 10**9
BYPASS = RequestDone("GET", 200, RequestOutcome.BYPASS, 5, 0.0, 0.1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_disk_that_others_fill_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """While it lasts the sentence has the present figures; breathing around the border is no news."""
    caplog.set_level(logging.INFO, logger="forebay")
    troubles = Troubles(Clock())
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
    clock = Clock()
    troubles = Troubles(clock)
    troubles.look(10 * GB, "normal", "")
    for _ in range(3):
        troubles.listen(BYPASS)
        troubles.look(effective, state, "EIO")
    assert troubles.rows()[-1].startswith("3 requests of the last minute were not stored: ")
    assert why in troubles.rows()[-1]
    clock.now += QUIET_S + 1
    troubles.look(effective, state, "EIO")
    assert not any("not stored:" in row for row in troubles.rows())
    assert len(caplog.records) == lines


def test_only_what_passes_by_is_counted_and_a_number_that_is_too_small_says_so() -> None:
    """A hit is no trouble."""
    troubles = Troubles(Clock())
    troubles.listen(RequestDone("GET", 200, RequestOutcome.HIT, 5, 0.0, 0.1))
    troubles.look(10 * GB, "normal", "")
    assert troubles.rows() == []
    for _ in range(MOST_COUNTED + 1):
        troubles.listen(BYPASS)
    troubles.look(10 * GB, "normal", "")
    assert troubles.rows()[0].startswith(f"{MOST_COUNTED} or more requests ")
