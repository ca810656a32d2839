"""Whether the cache directory can be written now."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.house import FakeClock

from forebay_proxy import events
from forebay_proxy.diskhealth import PAUSE_S, DiskHealth
from forebay_proxy.errors import DiskFailed

ERROR = DiskFailed("write", "ENOSPC", "full")


def health_of() -> tuple[DiskHealth, FakeClock, list[Any]]:
    clock, facts, board = FakeClock(), list[Any](), events.Events()
    board.listen(facts.append)
    return DiskHealth(clock, board), clock, facts


def test_a_failure_means_a_pause_and_then_a_try() -> None:
    """Every failure begins the pause anew; a segment that lands ends it."""
    health, clock, facts = health_of()
    assert health.usable
    health.failed(ERROR)
    assert not health.usable
    clock.advance(PAUSE_S)
    assert health.usable
    health.failed(ERROR)
    assert (health.usable, health.state) == (False, "down")
    health.worked()
    assert (health.usable, health.state) == (True, "normal")
    assert facts == [events.DiskFailed("write", "ENOSPC")] * 2


def test_one_line_a_change(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failures are one."""
    health, _, _ = health_of()
    with caplog.at_level(logging.WARNING, "forebay"):
        for _ in range(1000):
            health.failed(ERROR)
        health.worked()
        health.worked()
    assert len(caplog.records) == 2
