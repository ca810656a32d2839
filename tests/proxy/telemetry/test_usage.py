"""The peak of the last half minute survives between two scrapes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.telemetry.usage import PeakBytes, Usage


def test_what_counts_against_the_limit() -> None:
    """Stored, reserved, doomed and overhead bytes; leased ones are part of the stored."""
    usage = Usage(configured_bytes=9, effective_bytes=9, stored_bytes=1, reserved_bytes=2, doomed_bytes=3, overhead_bytes=4, leased_bytes=1)
    assert usage.held_bytes == 10


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
