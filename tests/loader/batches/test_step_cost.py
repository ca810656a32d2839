"""A line through what steps of some sizes took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.batches.step_cost import StepCost, fitted

cost_s = st.floats(1e-5, 10.0)


@given(cost_s, cost_s, st.sets(st.integers(1, 4096), min_size=2, max_size=5))
def test_an_exact_line_is_found(fixed_s: float, each_s: float, sizes: set[int]) -> None:
    """Any two sizes or more tell both costs, where nothing disturbs them."""
    found = fitted({size: fixed_s + size * each_s for size in sizes})
    assert found is not None
    for size in (1, 64, 4096):
        assert found.step_s(size) == pytest.approx(fixed_s + size * each_s, rel=1e-3)


def test_one_size_tells_nothing() -> None:
    """Nor does none."""
    assert fitted({}) is fitted({32: 0.1}) is None


@pytest.mark.parametrize(
    ("steps_s", "share"),
    [
        ({32: 0.1, 64: 0.1}, 1.0),
        ({32: 0.1, 64: 0.09}, 1.0),
        ({32: 0.1, 64: 0.2}, 0.0),
        ({32: 0.1, 64: 0.3}, 0.0),
        ({32: 0.1, 64: 0.15}, 0.5),
    ],
)
def test_no_cost_is_negative(steps_s: dict[int, float], share: float) -> None:
    """A step of twice the size that takes as long, shorter, twice and thrice as long; and half as long again."""
    found = fitted(steps_s)
    assert found is not None
    assert found.fixed_share(32) == pytest.approx(share, abs=1e-9)


def test_nothing_costs_nothing() -> None:
    """No division by zero."""
    assert StepCost(0.0, 0.0).fixed_share(32) == 0.0
