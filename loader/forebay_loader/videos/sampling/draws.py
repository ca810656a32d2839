"""Chance, made of a seed: the same in every process, on every machine and with every Python.

The generator is the Mersenne Twister (MT19937) of ``random.Random``, an object for each use, seeded by a text, and of it ``random()``
alone: Python promises that sequence for all versions. It promises nothing of ``randrange``, ``sample`` and ``shuffle``, so what they do
is done here. torch and numpy have generators of their own whose sequences have changed, and workers share none of theirs.
"""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Sequence

__all__ = ["Draws", "sample_seed"]


class Draws:
    """Draws of one purpose. Two purposes with one seed know nothing of each other."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._random = random.Random(f"{seed}/{purpose}").random  # noqa: S311  # no secret depends on it

    def part(self) -> float:
        """From 0.0, below 1.0."""
        return self._random()

    def below(self, end: int) -> int:
        """A whole number from 0, below ``end``; uneven by ``end`` in 2**53."""
        return int(self._random() * end)

    def some(self, count: int, end: int) -> list[int]:
        """``count`` different ones of ``range(end)``, ascending: Floyd's, ``count`` draws (Bentley, CACM 30/9, 1987)."""
        found: set[int] = set()
        for last in range(end - count, end):
            drawn = self.below(last + 1)
            found.add(last if drawn in found else drawn)
        return sorted(found)


def sample_seed(seed: int, epoch: int, key: str, again: Sequence[int] = ()) -> int:
    """The seed of one sample in one epoch: other frames in each epoch, the same in each run. ``hash()`` would differ by process.

    ``again`` tells visits of one epoch apart; all 0 at the first.
    """
    when = f"{epoch}.{'.'.join(map(str, again))}" if any(again) else f"{epoch}"
    return int.from_bytes(blake2b(f"{seed}/{when}/{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")
