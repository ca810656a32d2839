"""How much of a long test is done: in the ordinary run a part, in ``scripts/test --long`` all of it.

KILLS = ordinarily(5, of=20, what="kills of a sidecar")
@settings(max_examples=examples(200))
"""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["LEFT", "LONG", "examples", "ordinarily"]

Number = TypeVar("Number", int, float)
LONG = os.environ.get("FOREBAY_LONG", "0") not in ("", "0")
LEFT: list[str] = []  # what this run does a part of, in words
SHARE, FEWEST = 5, 10


def ordinarily(part: Number, *, of: Number, what: str) -> Number:
    """``part``, or in a long run ``of``; and the run says what it has left out."""
    if LONG:
        return of
    LEFT.append(f"{part} of {of} {what}")
    return part


def examples(count: int) -> int:
    """How many a property is tried with: in the ordinary run a fifth, since each run has others."""
    return count if LONG else max(FEWEST, count // SHARE)
