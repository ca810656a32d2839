"""How much is borne: counts, limits and their words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.meter.skips.counts import FIRST, IN_A_ROW, SkipCounts, SkipLimits

numbers = st.integers(0, 5000)
counts = st.builds(
    SkipCounts, samples=numbers, shards=numbers, open=st.integers(0, 30), read=st.integers(0, 30), decode=st.integers(0, 60)
)  # fmt: skip


@given(counts, st.floats(0.0005, 0.9))
def test_a_share_is_of_samples_and_of_shards_apart(found: SkipCounts, share: float) -> None:
    """Beyond it is who skipped more than that share of either, and more than the first ten."""
    beyond = [
        begun > 0 and skipped > max(FIRST, share * begun)
        for skipped, begun in ((found.of_samples, found.samples), (found.of_shards, found.shards))
    ]
    assert bool(SkipLimits(share).passed(found)) == any(beyond)


@given(counts, st.floats(0.0005, 0.9))
def test_at_the_end_the_share_is_exact(found: SkipCounts, share: float) -> None:
    """Without the first ten, where so many were begun that one skip is no more than the share."""
    beyond = [
        begun > 0 and skipped > (share * begun if begun * share >= 1 else max(FIRST, share * begun))
        for skipped, begun in ((found.of_samples, found.samples), (found.of_shards, found.shards))
    ]
    assert bool(SkipLimits(share).passed(found, over=True)) == any(beyond)


@given(counts, st.integers(0, 100))
def test_a_number_is_of_all_skips(found: SkipCounts, most: int) -> None:
    """Shards, files and samples, one each."""
    assert bool(SkipLimits(most).passed(found)) == (found.open + found.read + found.file + found.decode + found.map > most)


def test_a_limit_has_one_in_a_row_too() -> None:
    """Beyond the thousandth on end no accident is left."""
    limits = SkipLimits.of(0.5, None)
    assert not limits.passed_in_a_row(IN_A_ROW)
    assert "max_consecutive_skips=1000" in limits.passed_in_a_row(IN_A_ROW + 1)


@pytest.mark.parametrize(
    ("most", "in_a_row", "error"),
    [(True, None, TypeError), ("0.1", None, TypeError), (-1, None, ValueError), (1.0, None, ValueError), (0.0, None, ValueError),
     (float("nan"), None, ValueError), (None, 0, ValueError), (None, 1.5, TypeError), (None, True, TypeError)],
)  # fmt: skip
def test_what_is_no_limit(most: Any, in_a_row: Any, error: type[Exception]) -> None:
    """It is named where it is given."""
    with pytest.raises(error, match="max_"):
        SkipLimits.of(most, in_a_row)
