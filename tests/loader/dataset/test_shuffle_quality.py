"""How well ``.shuffle(n)`` shuffles, beside webdataset's own buffer: drawing by seed and epoch may cost nothing of it."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.shuffle_quality import ShuffleQuality, rank_correlation, shuffle_quality
from support.tars import tar_shard

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytestmark = pytest.mark.webdataset

SHARDS, SAMPLES, BUFFER = 12, 25, 60
PATTERN = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
SEEDS = range(4)


@pytest.fixture(autouse=True)
def shards(proxy: FakeServer) -> None:
    for number in range(SHARDS):
        proxy.put(f"/s3/bucket/{number:03d}.tar", tar_shard(number, samples=SAMPLES, size=1))


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


def test_what_the_figures_mean() -> None:
    """Of storage's own order, of the reverse, and of a perfect shuffle."""
    order = list(range(400))
    assert shuffle_quality(order, 20) == pytest.approx((1.0, 3 / 401, 19 / 399 / (1 - 19 / 399)))
    assert rank_correlation(order[::-1], order) == -1
    random.Random(3).shuffle(order)
    assert shuffle_quality(order, 20) == pytest.approx((0, 1, 1), abs=0.1)
