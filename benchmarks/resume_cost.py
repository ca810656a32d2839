"""What it costs to keep a loader's state: passes with a snapshot every 50 batches and passes without any, in turn, in one process.

    python benchmarks/resume_cost.py [--quick] [--json]

Shards in files of this machine, a shuffle buffer of 5,000, batches of 64, and nothing else: no decoding that would make the cost look
small. Without: ``resume="replay"`` and ``snapshot_every=0``, which note no sample. By processor time with the data read in the training
process, where workers' and trainer's share add up; and by the clock with two workers. The ratio is the median of neighbouring passes'.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "loader", "benchmarks")]

from figures import Figure, as_json, at_most, lines  # noqa: E402
from support.tars import tar_shard  # noqa: E402

import forebay_loader as fb  # noqa: E402

SHARDS, SAMPLES, SAMPLE_BYTES = 40, 500, 10_000
BUFFER, BATCH, EVERY, WORKERS = 5_000, 64, 50, 2
MOST_COST = 5.0  # percent of samples/s


def loader_of(urls: list[str], workers: int, *, kept: bool) -> Any:
    resume = "exact" if kept else "replay"
    data = fb.WebDataset(urls, shardshuffle=True, seed=1, resume=resume).shuffle(BUFFER, initial=BUFFER).to_tuple("__key__", "txt")
    return fb.WebLoader(data.batched(BATCH), batch_size=None, num_workers=workers, snapshot_every=EVERY if kept else 0)


def passed(loader: Any, clock: Callable[[], float]) -> float:
    """Samples a second of a whole epoch."""
    began_s, samples = clock(), 0
    for keys, _ in loader:
        samples += len(keys)
    return samples / (clock() - began_s)


def cost(urls: list[str], workers: int, rounds: int, clock: Callable[[], float]) -> tuple[float, float, list[float]]:
    """Percent of samples/s that keeping a state takes; samples/s without; the cost in each round."""
    loaders = {kept: loader_of(urls, workers, kept=kept) for kept in (False, True)}
    for loader in loaders.values():
        passed(loader, clock)  # warm
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for kept in (False, True) if number % 2 else (True, False):
            rates[kept].append(passed(loaders[kept], clock))
    costs = [100 * (1 - with_it / without) for without, with_it in zip(rates[False], rates[True], strict=True)]
    return statistics.median(costs), statistics.median(rates[False]), costs


def state_bytes(urls: list[str]) -> int:
    """Of one worker's state in the middle of an epoch, as JSON."""
    loader = loader_of(urls, 0, kept=True)
    for _ in zip(range(SHARDS * SAMPLES // BATCH // 2), loader, strict=False):
        pass
    return len(json.dumps(loader.state_dict()))


def measured(folder: Path, rounds: int) -> list[Figure]:
    for number in range(SHARDS):
        (folder / f"{number:03d}.tar").write_bytes(tar_shard(number, samples=SAMPLES, size=SAMPLE_BYTES))
    urls = [str(path) for path in sorted(folder.glob("*.tar"))]
    processor, alone, told = cost(urls, 0, rounds, time.process_time)
    clock, beside, _ = cost(urls, WORKERS, rounds, time.perf_counter)
    return [
        at_most("samples/s of processor time that keeping a state takes", processor, MOST_COST, "%"),
        Figure("  least of a round", min(told), "%"),
        Figure("  most of a round", max(told), "%"),
        Figure("  without", alone, "samples/s"),
        Figure(f"by the clock, with {WORKERS} workers", clock, "%"),
        Figure("  without", beside, "samples/s"),
        Figure(f"a worker's state, with a buffer of {BUFFER:,}", state_bytes(urls), "bytes"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    asked = parser.parse_args()
    os.environ.setdefault("FOREBAY_METER", "0")
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder), 3 if asked.quick else 9)
    print(as_json("resume_cost", " ".join(sys.argv), figures) if asked.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
