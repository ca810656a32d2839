"""The last quarter of an hour, bounded."""

from __future__ import annotations

import sys
from typing import Any

from support.house import FakeClock

from forebay_proxy.telemetry.history import COLUMNS, KEPT, History, Totals


def meter_of(wall_s: float, stall_s: float, samples: int, *, ended: bool = False, silent_s: float = 0.0) -> dict[str, Any]:
    lately = {"wall_s": wall_s, "stall_s": {"origin": stall_s}, "samples": samples}
    return {"job": "j", "rank": "0", "ended": ended, "silent_s": silent_s, "lately": lately}


def test_a_row_is_of_the_five_seconds_before_it() -> None:
    """Rates from sums; the worst rank's stall, all ranks' samples, of those that train now."""
    clock = FakeClock()
    history = History(clock, lambda: 1000.04)
    assert history.is_due
    history.note(Totals(10, 20, 5), [], None)
    assert (history.is_due, history.last()) == (False, None)
    clock.advance(5)
    meters = [meter_of(60, 30, 600), meter_of(60, 6, 1200), meter_of(60, 60, 6000, ended=True), meter_of(60, 59, 6000, silent_s=30)]
    assert history.is_due
    history.note(Totals(60, 120, 80), meters, 2.5)
    assert history.as_json()["columns"] == list(COLUMNS)
    assert history.as_json()["rows"] == [[1000.0, 0.5, 30.0, 10.0, 20.0, 0.75, 2.5]]


def test_a_clock_that_is_set_changes_times_alone() -> None:
    """An hour back, an hour forward: rows go on coming every 5 s, and rates are of the 5 s before."""
    clock, wall = FakeClock(), [0.0]
    history = History(clock, lambda: wall[0])
    for count, wall[0] in enumerate((1e6, 1e6 + 5, 1e6 - 3590, 1e6 + 3615)):
        assert history.is_due
        history.note(Totals(50 * count), [], None)
        assert not history.is_due
        clock.advance(5)
    assert [(row[0], row[3]) for row in history.as_json()["rows"]] == [(1e6 + 5, 10.0), (1e6 - 3590, 10.0), (1e6 + 3615, 10.0)]


def test_what_nobody_tells_is_null() -> None:
    """No zero: a curve has a gap there."""
    clock = FakeClock()
    history = History(clock, lambda: 0.0)
    for _ in range(2):
        history.note(Totals(), [meter_of(0, 0, 0)], None)
        clock.advance(5)
    assert history.last() == [0.0, None, None, 0.0, 0.0, None, None]


def test_it_is_bounded() -> None:
    """15 minutes, and far less than 2 MiB, however long the sidecar runs; a clock that stands still adds nothing."""
    clock = FakeClock()
    history = History(clock, clock)
    for count in range(5 * KEPT):
        history.note(Totals(count, 2 * count, count), [meter_of(60, 1, 100)], 1.0)
        history.note(Totals(count, 2 * count, count), [], 1.0)
        clock.advance(5)
    rows = history.as_json()["rows"]
    assert len(rows) == KEPT == 180
    assert sum(sys.getsizeof(row) + sum(map(sys.getsizeof, row)) for row in rows) < 2 << 20
