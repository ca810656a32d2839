"""How well ``.shuffle(n)`` shuffles, beside webdataset's own buffer: drawing by seed and epoch may cost nothing of it."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytestmark = [pytest.mark.webdataset, pytest.mark.usefixtures("shards")]

SHARDS, SAMPLES, BUFFER = 12, 25, 60
SIZES, SAMPLE_BYTES = [SAMPLES] * SHARDS, 1
PATTERN = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
SEEDS = range(4)


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


def quality(samples: Any) -> ShuffleQuality:
    keys = [sample["__key__"].split("-") for sample in samples]
    return shuffle_quality([int(shard) * SAMPLES + int(number) for shard, number in keys], SAMPLES)


def median(qualities: list[ShuffleQuality]) -> ShuffleQuality:
    return ShuffleQuality(*map(statistics.median, zip(*qualities, strict=True)))


def test_as_well_as_webdataset() -> None:
    """Rank correlation with storage, and the distance of neighbours in it, of the same samples through a buffer of the same size."""
    listed = list(fb.WebDataset(PATTERN))
    own = median([quality(fb.WebDataset(PATTERN, seed=seed).shuffle(BUFFER)) for seed in SEEDS])
    stock = median([quality(wds.shuffle(BUFFER, rng=random.Random(seed))(iter(listed))) for seed in SEEDS])
    assert own.correlation < 1.05 * stock.correlation < 1
    assert own.distance > 0.85 * stock.distance
    assert own.mixing > 0.9 * stock.mixing


def test_shuffled_shards_come_near_a_perfect_shuffle() -> None:
    """With a buffer of a fifth of the set: neighbours lie more than six tenths as far apart, and are of different shards as often."""
    own = median([quality(fb.WebDataset(PATTERN, shardshuffle=True, seed=seed).shuffle(BUFFER)) for seed in SEEDS])
    assert own.distance > 0.6
    assert own.mixing > 0.6
