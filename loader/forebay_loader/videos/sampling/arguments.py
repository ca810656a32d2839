"""What the arguments of samplers may be."""

from __future__ import annotations

from math import isfinite
from typing import Any, Sequence

__all__ = ["checked_choice", "checked_number", "checked_policy"]

_POLICIES = ("repeat_last", "wrap", "error")
_CHOICES = ("regular", "random")


def checked_policy(policy: str) -> str:
    return _one_of("policy", policy, _POLICIES)


def checked_choice(choice: str) -> str:
    return _one_of("choice", choice, _CHOICES)


def checked_number(name: str, value: Any, what: str, least: float, most: float = float("inf")) -> float:
    """``value`` as a number from ``least`` to ``most``. ``TypeError`` for what is none, ``ValueError`` outside, infinite included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes {what}; got {value!r}")
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} takes {what}; got {value!r}")
    return float(value)


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}; got {value!r}")
    return value
