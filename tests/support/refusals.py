"""Which hostile cases were refused, counted: each test of one notes it, and ``benchmarks/refusals.py`` sums them up."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["REPORT", "refused", "searched"]

REPORT = "REFUSALS_REPORT"  # names the file to which cases are appended; unset: nothing is written. Not FOREBAY_…: tests clear those


def refused(case: str, *, held: bool) -> None:
    """Note ``case`` and fail the test unless it was refused."""
    _note({"case": case, "held": held})
    assert held, f"not refused: {case}"


def searched(planted: int, places: int, hits: int) -> None:
    """Note how many places were searched for how many planted secrets, and what was found."""
    _note({"planted": planted, "places": places, "hits": hits})


def _note(fact: dict[str, object]) -> None:
    if path := os.environ.get(REPORT):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(fact) + "\n")
