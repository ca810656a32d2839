"""Items that pass, counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.meter.skips.counts import Tally


@given(st.lists(st.sampled_from([None, 0, "", 1]), max_size=20), st.lists(st.integers(0, 20), max_size=5))
def test_all_pass_and_are_counted(items: list[object], looks: list[int]) -> None:
    """Whatever they are, however often and whenever somebody looks."""
    tally = Tally()
    passed = []
    for at, item in enumerate(tally.counting(iter(items))):
        passed.append(item)
        if at in looks:
            assert tally.now() == tally.now() == at + 1
    assert passed == items
    assert tally.now() == len(items)
