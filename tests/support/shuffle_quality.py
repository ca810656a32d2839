"""How well an order is shuffled, in three figures that are 1 for a perfect shuffle of the whole data set, or 0 for a correlation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["ShuffleQuality", "rank_correlation", "shuffle_quality"]


class ShuffleQuality(NamedTuple):
    """``correlation``: how far a sample's place in the order follows from its place in storage (Spearman): 1 is unshuffled, 0 is perfect.

    ``distance``: how far samples that follow each other lie apart in storage, over what a perfect shuffle gives (a third of the set).
    ``mixing``: how often two that follow each other are of different shards, over the same of a perfect shuffle.
    """

    correlation: float
    distance: float
    mixing: float


def rank_correlation(one: Sequence[int], other: Sequence[int]) -> float:
    """Spearman's, of two permutations of ``range(n)``."""
    count = len(one)
    squares = sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
    return 1 - 6 * squares / (count * (count**2 - 1))


def shuffle_quality(order: Sequence[int], shard_samples: int) -> ShuffleQuality:
    """Of an ``order`` of the numbers of samples, as they lie in shards of ``shard_samples`` each."""
    count = len(order)
    steps = list(pairwise(order))
    apart = sum(abs(a - b) for a, b in steps) / len(steps)
    mixed = sum(a // shard_samples != b // shard_samples for a, b in steps) / len(steps)
    return ShuffleQuality(rank_correlation(order, range(count)), apart / ((count + 1) / 3), mixed / (1 - (shard_samples - 1) / (count - 1)))
