"""How well an epoch is shuffled: ``fb.WebDataset`` beside webdataset's own, by the order of samples alone.

Tars of tiny samples are read from a folder, through each data set's own shuffle of shards and buffer of samples; three figures say how far
the order is from a perfect shuffle of the whole set (``tests/support/shuffle_quality.py``). Several seeds, medians; first with shards as
listed, where the buffer alone shuffles. Then an epoch of ``fb.WebDataset`` is stopped and resumed ten times, and keeps its order.

    python benchmarks/shuffle_quality.py [--json] [--quick]

Exits 1 where ours is less than nine tenths as good as webdataset's, or where resuming changes an order.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice, pairwise, zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).resolve().parent), *(str(ROOT / name) for name in ("proxy", "loader", "tests"))]

import webdataset as wds  # noqa: E402
from figures import Figure, as_json, at_least, at_most, exactly, lines  # noqa: E402
from support.shuffle_quality import ShuffleQuality, rank_correlation, shuffle_quality  # noqa: E402

import forebay_loader as fb  # noqa: E402

SHARDS, SAMPLES = 64, 100
BUFFERS = (1, 100, 1000)
STOPS = 10
Made = Callable[..., Any]  # of shards, buffer, seed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer shards and seeds")
    asked = parser.parse_args()
    shards, seeds = (24, 3) if asked.quick else (SHARDS, 9)
    os.environ.setdefault("FOREBAY_METER", "0")
    with tempfile.TemporaryDirectory() as folder:
        urls = list(written(Path(folder), shards))
        figures = [figure for buffer in BUFFERS[1:] for figure in alone(urls, buffer, seeds)]
        figures += [figure for buffer in BUFFERS for figure in beside(urls, buffer, seeds)]
        figures += [*epochs(urls), *stopped(urls)]
    print(as_json("shuffle_quality", " ".join(sys.argv), figures) if asked.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


def written(folder: Path, shards: int) -> Iterator[str]:
    """Tars whose samples are keyed by their number in the set."""
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
                tar.addfile(tarfile.TarInfo(f"{number:07d}.txt"), io.BytesIO())
        yield str(folder / f"{shard:03d}.tar")


def ours(urls: list[str], buffer: int, seed: int, *, shards: bool = True) -> Any:
    return fb.WebDataset(urls, shardshuffle=shards, seed=seed).shuffle(buffer)


def theirs(urls: list[str], buffer: int, seed: int, *, shards: bool = True) -> Any:
    """As its own examples write it: a buffer of 100 shards, and one of samples."""
    read = wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.shuffle(buffer, rng=random.Random(seed)))
    if shards:
        read.pipeline.insert(1, wds.shuffle(100, rng=random.Random(-seed - 1)))
    return read


def order(samples: Any) -> list[int]:
    return [int(sample["__key__"]) for sample in samples]


def median(made: Made, urls: list[str], buffer: int, seeds: int, *, shards: bool) -> ShuffleQuality:
    each = [shuffle_quality(order(made(urls, buffer, seed, shards=shards)), SAMPLES) for seed in range(seeds)]
    correlation = statistics.median(abs(one.correlation) for one in each)
    return ShuffleQuality(correlation, statistics.median(one.distance for one in each), statistics.median(one.mixing for one in each))


def alone(urls: list[str], buffer: int, seeds: int) -> Iterator[Figure]:
    """What a buffer does by itself."""
    own, stock = (median(made, urls, buffer, seeds, shards=False) for made in (ours, theirs))
    yield Figure(f"shards as listed, buffer of {buffer}: rank correlation of webdataset", stock.correlation)
    yield at_most("  of fb.WebDataset", own.correlation, stock.correlation * 1.02)
    yield Figure("  neighbour distance of webdataset", stock.distance)
    yield at_least("  of fb.WebDataset", own.distance, stock.distance * 0.9)


def beside(urls: list[str], buffer: int, seeds: int) -> Iterator[Figure]:
    """With shards shuffled, as people train. The correlation then tells of the chance order of so few shards, more than of the shuffle."""
    own, stock = (median(made, urls, buffer, seeds, shards=True) for made in (ours, theirs))
    yield Figure(f"shards shuffled, buffer of {buffer}: rank correlation of webdataset", stock.correlation)
    yield Figure("  of fb.WebDataset", own.correlation)
    yield Figure("  neighbour distance of webdataset", stock.distance)
    yield at_least("  of fb.WebDataset", own.distance, stock.distance * 0.9)
    yield Figure("  neighbours of different shards, webdataset", stock.mixing)
    yield at_least("  of fb.WebDataset", own.mixing, stock.mixing * 0.9)


def epochs(urls: list[str]) -> Iterator[Figure]:
    """How far one epoch's order follows from the one before it."""
    data = ours(urls, 1000, 1)
    each = [order(data) for _ in range(4)]
    yield Figure("rank correlation of one epoch with the next, the largest", max(abs(rank_correlation(*two)) for two in pairwise(each)))


def differences(one: list[int], other: list[int]) -> int:
    return sum(a != b for a, b in zip_longest(one, other))


def stopped(urls: list[str]) -> Iterator[Figure]:
    """Whether an epoch that is stopped and resumed on its way has the order of one that is not."""
    given: list[int] = []
    state = None
    for _ in range(STOPS):
        data = ours(urls, 1000, 1)
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))
        given += order(islice(iter(data), len(urls) * SAMPLES // (STOPS + 1)))
        state = data.state_dict()
    data = ours(urls, 1000, 1)
    data.load_state_dict(state)
    given += order(data)
    yield exactly(f"resumed {STOPS} times: samples in another place", differences(given, order(ours(urls, 1000, 1))), 0)


if __name__ == "__main__":
    raise SystemExit(main())
