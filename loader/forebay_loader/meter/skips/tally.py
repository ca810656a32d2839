"""Counts what passes, without a step of Python for each."""

from __future__ import annotations

import sys
from itertools import compress, repeat
from operator import length_hint
from typing import Any, Iterable, Iterator

__all__ = ["Tally"]


class Tally:
    """How many items have passed through ``counting``."""

    def __init__(self) -> None:
        self._left = repeat(True, sys.maxsize)  # one is taken for each item; how many are left is known

    def counting(self, items: Iterable[Any]) -> Iterator[Any]:
        """``items``, all of them, at a third of what a generator costs."""
        return compress(items, self._left)

    def now(self) -> int:
        return sys.maxsize - length_hint(self._left)
