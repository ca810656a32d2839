"""What it costs to keep a loader's state: passes with a snapshot every 50 batches and passes without any, in turn, in one process.

    python benchmarks/resume_cost.py [--quick] [--json]

Shards in files of this machine, two workers, a shuffle buffer of 5,000, batches of 64, and nothing else: no decoding that would make the
cost look small. Without: ``resume="replay"`` and ``snapshot_every=0``, which note no sample. By the processor time of the trainer and its
workers together, and by the clock. The cost is the median of that of neighbouring passes, told with its quartiles: on a machine that does
anything else, single ones tell nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "loader", "benchmarks")]

from figures import Figure, as_json, at_most, lines  # noqa: E402
from support.tars import tar_shard  # noqa: E402

import forebay_loader as fb  # noqa: E402

SHARDS, SAMPLES, SAMPLE_BYTES = 40, 500, 10_000
READ = 4  # times an epoch reads each: half a second more or less of workers that start and end would hide what is looked for
BUFFER, BATCH, EVERY, WORKERS = 5_000, 64, 50, 2
MOST_COST = 5.0  # percent of samples/s


def loader_of(urls: list[str], workers: int, *, kept: bool) -> Any:
    resume = "exact" if kept else "replay"
    data = fb.WebDataset(urls, shardshuffle=True, seed=1, resume=resume).shuffle(BUFFER, initial=BUFFER).to_tuple("__key__", "txt")
    return fb.WebLoader(data.batched(BATCH), batch_size=None, num_workers=workers, snapshot_every=EVERY if kept else 0)


class Rates(NamedTuple):
    """Samples a second of one epoch: by the processor, of all its processes, and by the clock."""

    processor: float
    clock: float


def passed(loader: Any) -> Rates:
    began_s, used_s, samples = time.perf_counter(), processor_s(), 0
    for keys, _ in loader:
        samples += len(keys)
    return Rates(samples / (processor_s() - used_s), samples / (time.perf_counter() - began_s))


def processor_s() -> float:
    """Of this process and its children that have ended: an epoch's workers end with it."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def rounds_of(urls: list[str], rounds: int) -> tuple[list[Rates], list[Rates]]:
    """Without a state, and with one; in turn, each going first as often as the other."""
    loaders = [loader_of(urls, WORKERS, kept=kept) for kept in (False, True)]
    for loader in loaders:
        passed(loader)  # warm
    found: tuple[list[Rates], list[Rates]] = ([], [])
    for number in range(rounds):
        for kept in (0, 1) if number % 2 else (1, 0):
            found[kept].append(passed(loaders[kept]))
    return found


def cost(what: str, without: list[float], with_it: list[float]) -> list[Figure]:
    """Percent of samples/s that keeping a state takes, and samples/s without."""
    each = [100 * (1 - kept / bare) for bare, kept in zip(without, with_it, strict=True)]
    low, middle, high = statistics.quantiles(each, n=4)
    return [
        at_most(f"samples/s that keeping a state takes, by {what}", middle, MOST_COST, "%"),
        Figure("  a quarter of the rounds is below", low, "%"),
        Figure("  a quarter of the rounds is above", high, "%"),
        Figure("  without", statistics.median(without), "samples/s"),
    ]


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
    without, with_it = rounds_of(urls * READ, rounds)
    return [
        *cost("the processor", [one.processor for one in without], [one.processor for one in with_it]),
        *cost("the clock", [one.clock for one in without], [one.clock for one in with_it]),
        Figure(f"a worker's state, with a buffer of {BUFFER:,}", state_bytes(urls), "bytes"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="4 rounds instead of 16")
    asked = parser.parse_args()
    os.environ.setdefault("FOREBAY_METER", "0")
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder), 4 if asked.quick else 16)
    print(as_json("resume_cost", " ".join(sys.argv), figures) if asked.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
