"""What a batch size that follows throughput gives on a step with a fixed cost, and what it does when its origin becomes slow.

The step sleeps ``FIXED_S`` and ``EACH_S`` for each sample, as an accelerator whose launches and all-reduces take their time. Its samples
come over HTTP from an origin with a rate for each connection, through webdataset's own curl and two workers, into ``fb.WebLoader``. Loaders
without and with the ladder run in turns. Then one with the ladder runs on while the origin's rate falls, and rises again.

    python benchmarks/batch_size.py [--json] [--quick]

Exits 1 where the ladder gives less than half as much again, or gives back nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import statistics
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).resolve().parent), *(str(ROOT / name) for name in ("proxy", "loader", "examples"))]

import webdataset as wds  # noqa: E402
from figures import Figure, as_json, at_least, at_most, lines  # noqa: E402

import forebay_loader as fb  # noqa: E402
from demo.origin import Origin  # noqa: E402

LADDER = (32, 64, 128)
FIXED_S, EACH_S = 0.060, 0.0004
SAMPLE_BYTES, SAMPLES, SHARDS = 2048, 400, 8
SAMPLE_TAR_BYTES = SAMPLE_BYTES + 512  # its header
PATTERN = f"{{0..{SHARDS - 1}}}.tar"
WORKERS = 2
FAST, SLOW = 8000.0, 250.0  # samples a second, of both workers together; the step alone takes 439 in batches of 32 and 1151 of 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one round of each, and fewer steps a window")
    asked = parser.parse_args()
    rounds, every, seconds, highest = (1, 6, 8.0, LADDER[1]) if asked.quick else (2, 10, 15.0, LADDER[-1])
    with tempfile.TemporaryDirectory() as folder, origin(Path(folder)) as far:
        rates: dict[str, list[float]] = {"without": [], "with": [], "settled": []}
        for _ in range(rounds):
            for name in ("without", "with"):
                run = Run(loader(far.url(PATTERN), every if name == "with" else 0))
                run.go(seconds)
                rates[name].append(run.rate(0.0))
                if name == "with":
                    rates["settled"].append(run.rate(run.moved_s))
        slow = fall_and_rise(far, every, seconds, highest)
    figures = [
        Figure("samples/s without the ladder", statistics.median(rates["without"])),
        Figure("with it, climbing included", statistics.median(rates["with"])),
        Figure("with it, from its last move on", statistics.median(rates["settled"])),
        at_least("  times as many", statistics.median(rates["settled"]) / statistics.median(rates["without"]), 1.5),
        *slow,
    ]
    print(as_json("batch_size", " ".join(sys.argv), figures) if asked.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


class Run:
    """A loader whose batches are trained on: when each step ended, and how many samples it had."""

    def __init__(self, batches: Any) -> None:
        self.ladder = batches.ladder
        self._batches = iter(batches)
        self._steps: list[tuple[float, int]] = []
        self.moved_s = 0.0
        self._began = 0.0

    def go(self, seconds: float) -> None:
        """Train for so long."""
        next(self._batches)  # workers are there now
        self._began = self._began or time.perf_counter()
        until, size = time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            keys, _ = next(self._batches)
            time.sleep(FIXED_S + EACH_S * len(keys))
            self._steps.append((time.perf_counter() - self._began, len(keys)))
            if size and len(keys) != size:
                self.moved_s = self._steps[-1][0]
            size = len(keys)

    def rate(self, since_s: float) -> float:
        """Samples a second, from a time after the begin on."""
        steps = [step for step in self._steps if step[0] > since_s]
        return sum(samples for _, samples in steps[1:]) / (steps[-1][0] - steps[0][0])

    @property
    def size(self) -> int:
        return self._steps[-1][1]

    @property
    def sizes(self) -> list[int]:
        return [samples for _, samples in self._steps]


def fall_and_rise(far: Far, every: int, seconds: float, highest: int) -> list[Figure]:
    """One loader over three times of an origin."""
    run = Run(loader(far.url(PATTERN), every))
    run.go(seconds)
    fast = run.size
    far.rate(SLOW)
    run.go(2 * seconds)
    slow = run.size
    far.rate(FAST)
    run.go(3 * seconds)
    return [
        at_least("batch size while the origin is fast", fast, highest),
        at_most("  after it became slow", slow, LADDER[0] if highest == LADDER[-1] else fast // 2),
        at_least("  after it became fast again", run.size, LADDER[1]),
        at_least("  smallest of all", min(run.sizes), LADDER[0]),
        Figure("  decisions", len(run.ladder.decisions)),
    ]


def loader(pattern: str, every: int) -> Any:
    data = wds.WebDataset(f"pipe:curl -s {pattern}", resampled=True, shardshuffle=False).to_tuple("__key__", "bin").batched(LADDER[0])
    how: dict[str, Any] = {"batch_ladder": LADDER, "batch_ladder_steps": every} if every else {}
    return fb.WebLoader(data, batch_size=None, num_workers=WORKERS, prefetch_factor=8, **how)


class Far:
    """An origin in a thread of its own."""

    def __init__(self, far: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self._far, self._loop = far, loop
        self.url: Callable[[str], str] = far.url

    def rate(self, samples_s: float) -> None:
        """How many samples a second all connections together give from now on."""
        self._loop.call_soon_threadsafe(setattr, self._far, "rate_bytes_s", samples_s * SAMPLE_TAR_BYTES / WORKERS)


@contextmanager
def origin(folder: Path) -> Iterator[Far]:
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(SAMPLES):
                entry = tarfile.TarInfo(f"{shard}-{number}.bin")
                entry.size = SAMPLE_BYTES
                tar.addfile(entry, io.BytesIO(bytes(SAMPLE_BYTES)))
    ready, ended, found = threading.Event(), asyncio.Event(), []

    async def serve() -> None:
        async with Origin(folder, latency_s=0.005) as far:
            found.append(Far(far, asyncio.get_running_loop()))
            found[0].rate(FAST)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait(30)
    try:
        yield found[0]
    finally:
        found[0]._loop.call_soon_threadsafe(ended.set)
        thread.join(30)


if __name__ == "__main__":
    sys.exit(main())
