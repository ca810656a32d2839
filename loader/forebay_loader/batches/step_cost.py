"""What a step costs whatever its size, and what each sample adds: a line through what was measured at some sizes. Pure."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional

__all__ = ["StepCost", "fitted"]


class StepCost(NamedTuple):
    """Seconds: ``fixed_s + size * each_s``."""

    fixed_s: float
    each_s: float

    def step_s(self, size: int) -> float:
        return self.fixed_s + size * self.each_s

    def fixed_share(self, size: int) -> float:
        """Of a step of ``size`` samples: how much of it does not depend on its size."""
        whole = self.step_s(size)
        return self.fixed_s / whole if whole > 0 else 0.0


def fitted(steps_s: Mapping[int, float]) -> Optional[StepCost]:
    """The least squares of relative errors, for noise grows with what is measured: seconds of a step by batch size. None below two sizes.

    Neither cost is below 0: where the line says so, it is laid through 0.
    """
    if len(steps_s) < 2:
        return None
    weights = {size: 1 / max(seconds, 1e-12) ** 2 for size, seconds in steps_s.items()}
    total = sum(weights.values())
    size_mean = sum(size * weight for size, weight in weights.items()) / total
    step_mean = sum(steps_s[size] * weight for size, weight in weights.items()) / total
    spread = sum(weight * (size - size_mean) ** 2 for size, weight in weights.items())
    each_s = sum(weight * (size - size_mean) * (steps_s[size] - step_mean) for size, weight in weights.items()) / spread
    if each_s <= 0:
        return StepCost(step_mean, 0.0)
    fixed_s = step_mean - each_s * size_mean
    return StepCost(fixed_s, each_s) if fixed_s > 0 else StepCost(0.0, step_mean / size_mean)
