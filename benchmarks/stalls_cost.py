"""What metering costs: one training, metered and not in turn, in short blocks (on, off, off, on), each four a paired difference.

    python benchmarks/stalls_cost.py [--quick] [--json]

Whatever else the machine does meets both alike, and the judged figure is processor time: of the training process and of its workers, by
their own clocks. Said is the median of the differences and the interval that holds it 95 times in 100 (bootstrap). What is off while it is
off is all that stands in a batch's way: the timed ``next``, the mark of the collation, the notes of what reading waits for. The meter's
threads work too seldom for blocks of some ten milliseconds: they are timed by their own clocks, and added; those that look twice, since the
thread they look at has to wait for them.

With ``--null`` nothing is metered in either; with ``--added-us N`` a step that is on computes so much longer: so the estimate itself is
checked. The training is tests/support/switched_trainer.py, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
QUADS = 600
RESAMPLES = 2000


CASES = {
    "step": "two workers, a step of 5 ms",
    "ready": "two workers, batches of 64 that are ready, no step",
    "alone": "num_workers=0, no step",
}


@dataclass(frozen=True)
class Block:
    """Processor time of trainer and workers, and wall time, a batch, in seconds."""

    cpu_s: float
    wall_s: float


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
    with warm_set() as (place, urls, variables):
        for name in given.case or CASES:
            found += figures(
                name, _said(place, variables, name, urls, str((QUADS // 5 if given.quick else QUADS) * (2 if name == "alone" else 1)), *how)
            )
    command = " ".join(["python benchmarks/stalls_cost.py", *(["--quick"] if given.quick else []), *how])
    print(as_json("stalls_cost", command, found) if given.json else "\n".join(lines(found)))
    return int(not all(figure.ok for figure in found))


def figures(name: str, said: Any) -> list[Figure]:
    blocks = [(one["on"], Block(one["cpu_s"], one["wall_s"])) for one in said["blocks"]]
    off = [block for on, block in blocks if not on]
    off_s, off_wall_s = statistics.median(block.cpu_s for block in off), statistics.median(block.wall_s for block in off)
    added, waited = differences(blocks, lambda block: block.cpu_s), differences(blocks, lambda block: block.wall_s)
    cpu, wall = estimate([100 * one / off_s for one in added]), estimate([100 * one / off_wall_s for one in waited])
    wall_s = statistics.mean(block.wall_s for _, block in blocks)
    threads = 100 * (2 * said["looks_cpu_s"] + said["tick_cpu_s"]) * wall_s / statistics.mean(block.cpu_s for _, block in blocks)
    found = [
        Figure(f"{name}: {CASES[name]}: a batch takes", round(1e6 * off_s, 1), "us of a processor"),
        Figure(f"{name}: metering adds, median", round(1e6 * statistics.median(added), 1), "us of a processor"),
        Figure(f"{name}: 95 % interval from", round(cpu.low, 2), "%"),
        Figure(f"{name}: median", round(cpu.middle, 2), "%"),
        Figure(f"{name}: to", round(cpu.high, 2), "%"),
        Figure(f"{name}: wall time, median", round(wall.middle, 2), "%"),
        Figure(f"{name}: wall time, to", round(wall.high, 2), "%"),
    ]
    found += [
        Figure(f"{name}: the threads that look", round(1e6 * said["looks_cpu_s"], 1), "us a second"),
        Figure(f"{name}: the thread that is awake once a second", round(1e6 * said["tick_cpu_s"], 1), "us a second"),
        Figure(f"{name}: these threads, of the processor time", round(threads, 2), "%"),
    ]
    if name == "step":
        found.append(at_most(f"{name}: metering, the interval's end and these threads", round(cpu.high + threads, 2), MOST_COST, "%"))
    return found


def differences(blocks: Sequence[tuple[bool, Block]], of: Callable[[Block], float]) -> list[float]:
    """Metered less not metered, of each four blocks: what drifts evenly meanwhile is in neither."""
    found = []
    for start in range(0, len(blocks) - 3, 4):
        four = blocks[start : start + 4]
        sums = {wanted: [of(block) for on, block in four if on == wanted] for wanted in (True, False)}
        found.append(statistics.mean(sums[True]) - statistics.mean(sums[False]))
    return found


def estimate(values: Sequence[float], seed: int = 0) -> Estimate:
    """The median, and where the medians of 95 of 100 samples of ``values`` lie."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Estimate(medians[round(0.025 * RESAMPLES)], statistics.median(values), medians[round(0.975 * RESAMPLES) - 1])


def _said(place: Path, variables: Mapping[str, str], *arguments: str) -> Any:
    switch = place / "switch"
    switch.write_bytes(b"\0")
    environ = environment(place, **variables, FOREBAY_BENCHMARK_SWITCH=str(switch))
    command = [sys.executable, str(TRAINER), *arguments]
    done = subprocess.run(command, env=environ, cwd=place, stdout=subprocess.PIPE, text=True, check=True, timeout=3000)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
