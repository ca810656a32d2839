"""What metering costs: one training, metered and not in turn, in short blocks (on, off, off, on), each four a paired difference.

    python benchmarks/stalls_cost.py [--quick] [--json]

Whatever else the machine does meets both alike, and the judged figure is processor time, by the threads' own clocks: of each call of
``next`` in the training, and of each batch in its worker; a step in between computes the same, and is in the whole, not in the difference.
Said is the median of the differences and the interval that holds it 95 times in 100 (bootstrap). What is off while it is off is all that
stands in a batch's way: the timed ``next``, the mark of the collation, the notes of what reading waits for, and being looked at.

The meter's own threads are timed by their clocks, and added, once: while one looks, the thread that it looks at may have to wait for the
interpreter's lock, but a wait takes no processor, and what its two ends take (letting go, waking up, caches that are cold) is on that
thread's own clock, and so in the difference.

With ``--null`` nothing is metered in either; with ``--added-us N`` what is on computes so much longer: so the estimate itself is checked.
The training is tests/support/switched_trainer.py, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "loader", "benchmarks")]

from figures import Figure, as_json, at_most, lines  # noqa: E402
from stalls import warm_set  # noqa: E402
from support.sidecar import environment  # noqa: E402

TRAINER = ROOT / "tests" / "support" / "switched_trainer.py"
MOST_COST = 1.0  # percent
QUADS = 300
RESAMPLES = 2000
BATCH = 32  # samples, of a batch as of a shard: so each batch opens one, and batches are alike


CASES = {
    "step": "two workers, a step of 5 ms",
    "ready": "two workers, batches of 64 that are ready, no step",
    "alone": "num_workers=0, no step",
}


@dataclass(frozen=True)
class Estimate:
    """The median, and the ends of its interval."""

    low: float
    middle: float
    high: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the blocks")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--null", action="store_true", help="nothing is metered, whether it is on or off")
    parser.add_argument("--added-us", type=float, default=0.0, help="a step computes so much longer while it is on")
    given = parser.parse_args()
    how = [*(["--null"] if given.null else []), *(["--added-us", str(given.added_us)] if given.added_us else [])]
    found = []
    with warm_set(BATCH) as (place, urls, variables):
        for name in given.case or CASES:
            found += figures(
                name, _said(place, variables, name, urls, str((QUADS // 5 if given.quick else QUADS) * (2 if name == "alone" else 1)), *how)
            )
    command = " ".join(["python benchmarks/stalls_cost.py", *(["--quick"] if given.quick else []), *how])
    print(as_json("stalls_cost", command, found) if given.json else "\n".join(lines(found)))
    return int(not all(figure.ok for figure in found))


def figures(name: str, said: Any) -> list[Figure]:
    batch_us, wall_us = 1e6 * said["batch_cpu_s"], 1e6 * said["batch_wall_s"]
    added = differences(said["next"])
    if said["made"]:
        added = [one + other for one, other in zip(added, differences(said["made"]), strict=False)]
    cpu = estimate([one / 1e3 for one in added])
    wall = estimate([100 * one / statistics.median(said["walls"]) for one in differences(list(enumerate(said["walls"])))])
    look = spread(said["looks"])
    of_cpu = 100 * wall_us / batch_us
    looks, most_looks, tick = (
        of_cpu * part for part in (look.middle * said["looks_a_second"], look.high * said["looks_a_second"], said["tick_cpu_s"])
    )
    found = [
        Figure(f"{name}: {CASES[name]}: a batch takes", round(batch_us, 1), "us of a processor"),
        Figure(f"{name}: metering adds, median", round(cpu.middle, 1), "us of a processor"),
        Figure(f"{name}: 95 % interval from", round(cpu.low, 1), "us"),
        Figure(f"{name}: to", round(cpu.high, 1), "us"),
        Figure(f"{name}: of the processor time, median", round(100 * cpu.middle / batch_us, 2), "%"),
        Figure(f"{name}: to", round(100 * cpu.high / batch_us, 2), "%"),
        Figure(f"{name}: of wall time, median", round(wall.middle, 2), "%"),
        Figure(f"{name}: to", round(wall.high, 2), "%"),
    ]
    found += [
        Figure(f"{name}: a look takes, mean", round(1e6 * look.middle, 1), "us of a processor"),
        Figure(f"{name}: 95 % interval to", round(1e6 * look.high, 1), "us"),
        Figure(f"{name}: the threads that look, of the processor time", round(looks, 2), "%"),
        Figure(f"{name}: the thread that is awake once a second", round(tick, 2), "%"),
        Figure(f"{name}: metering, of the processor time", round(100 * cpu.middle / batch_us + looks + tick, 2), "%"),
    ]
    if name == "step":
        most = 100 * cpu.high / batch_us + most_looks + tick
        found.append(at_most(f"{name}: metering, by the intervals' ends", round(most, 2), MOST_COST, "%"))
    return found


def differences(values: Sequence[tuple[int, float]]) -> list[float]:
    """Of pairs (block, value): the mean of the metered less that of the others, of each four blocks: what drifts evenly is in neither."""
    fours: dict[int, dict[bool, list[float]]] = {}
    for block, value in values:
        fours.setdefault(block // 4, {True: [], False: []})[block % 4 in (0, 3)].append(value)
    return [statistics.mean(four[True]) - statistics.mean(four[False]) for four in fours.values() if four[True] and four[False]]


def estimate(values: Sequence[float], seed: int = 0) -> Estimate:
    """The median, and where the medians of 95 of 100 samples of ``values`` lie."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Estimate(medians[round(0.025 * RESAMPLES)], statistics.median(values), medians[round(0.975 * RESAMPLES) - 1])


def spread(values_ns: Sequence[int]) -> Estimate:
    """The mean, and where it lies 95 times in 100, in seconds; 0 of none."""
    if len(values_ns) < 2:
        return Estimate(0.0, 0.0, 0.0)
    mean, off = statistics.mean(values_ns), 1.96 * statistics.stdev(values_ns) / len(values_ns) ** 0.5
    return Estimate(*(one / 1e9 for one in (mean - off, mean, mean + off)))


def _said(place: Path, variables: Mapping[str, str], *arguments: str) -> Any:
    switch = Path(tempfile.mkdtemp(dir=place)) / "switch"
    switch.write_bytes(bytes(4))
    environ = environment(place, **variables, FOREBAY_BENCHMARK_SWITCH=str(switch))
    command = [sys.executable, str(TRAINER), *arguments]
    done = subprocess.run(command, env=environ, cwd=place, stdout=subprocess.PIPE, text=True, check=True, timeout=3000)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
