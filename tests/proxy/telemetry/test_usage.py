"""The peak of the last half minute survives between two scrapes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.telemetry.usage import PeakBytes


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 1000)), min_size=1))
def test_a_peak_is_seen_for_30_seconds_and_forgotten_after_60(steps: list[tuple[float, int]]) -> None:
    """Never below the highest of the last 30 s, never above the highest of the last 60 s, against a plain list."""
    now, seen = 0.0, list[tuple[float, int]]()
    peak = PeakBytes(30, lambda: now)
    for wait, count in steps:
        now += wait
        peak.saw(count)
        seen.append((now, count))
        lately = [count for when, count in seen if now - when < 30]
        longer = [count for when, count in seen if now - when <= 60]
        assert max(lately) <= peak.value() <= max(longer)
