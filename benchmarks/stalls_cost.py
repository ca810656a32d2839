"""What metering costs: one training, metered and not in turn, in short blocks, each four of them a paired difference.

    python benchmarks/stalls_cost.py [--quick] [--json]

Whatever else the machine does meets both alike, and the judged figure is processor time, by the threads' own clocks: of each call of
``next`` in the training, and of each batch in its worker; a step in between computes the same, and is in the whole, not in the difference.
Said is the median of the differences and the interval that holds it 95 times in 100 (bootstrap). What is off while it is off is all that
stands in a batch's way: the timed ``next``, the mark of the collation, the notes of what reading waits for, and being looked at. Looks are
rare, and a median would pass over what they do: so there are ten times as many as shipped, and what is held is more than what is shipped.

The meter's own threads are timed by their clocks, and added, once: while one looks, the thread that it looks at may have to wait for the
interpreter's lock, but a wait takes no processor, and what its two ends take (letting go, waking up, caches that are cold) is on that
thread's own clock, and so in the difference.

With ``--null`` nothing is metered in either; with ``--added-us N`` what is on computes so much longer: so the estimate itself is checked.
The training is benchmarks/switched_trainer.py, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "loader", "benchmarks")]

from figures import Figure, as_json, at_most, lines  # noqa: E402
from stalls import warm_set  # noqa: E402
from support.sidecar import environment  # noqa: E402

TRAINER = ROOT / "benchmarks" / "switched_trainer.py"
MOST_COST = 1.5  # percent
FOURS = {"step": 300, "ready": 300, "alone": 100}
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
            fours = str(FOURS[name] // 5 if given.quick else FOURS[name])
            found += figures(name, _said(place, variables, name, urls, fours, *how))
    command = " ".join(["python benchmarks/stalls_cost.py", *(["--quick"] if given.quick else []), *how])
    print(as_json("stalls_cost", command, found) if given.json else "\n".join(lines(found)))
    return int(not all(figure.ok for figure in found))


def figures(name: str, said: Any) -> list[Figure]:
    batch_us, wall_us = 1e6 * said["batch_cpu_s"], 1e6 * said["batch_wall_s"]
    added, look, ticked = _added_us(said), spread(said["looks"]), wall_us * said["tick_cpu_s"]
    looks_a_batch = said["batch_wall_s"] * said["looks_a_second"]  # as shipped
    own, most_own = (1e6 * looks_a_batch * part for part in (look.middle, look.high))
    found = [
        Figure(f"{name}: {CASES[name]}: a batch takes", round(batch_us, 1), "us of a processor"),
        *_of(f"{name}: metering adds", added, "us of a processor"),
        *_of(f"{name}: it adds to wall time", _wall(said), "%"),
        Figure(f"{name}: looks a batch", round(said["looks_a_batch"], 3), ""),
        Figure(f"{name}: as shipped", round(looks_a_batch, 3), ""),
        Figure(f"{name}: a look takes, mean", round(1e6 * look.middle, 1), "us of a processor"),
        Figure(f"{name}: they take, of the threads that look, as shipped", round(own, 1), "us of a processor"),
        Figure(f"{name}: the thread that is awake once a second", round(ticked, 1), "us of a processor"),
        Figure(f"{name}: metering, of the processor time", round(100 * (added.middle + own + ticked) / batch_us, 2), "%"),
    ]
    if name == "step":
        most = 100 * (added.high + most_own + ticked) / batch_us
        found.append(at_most(f"{name}: metering, by the intervals' ends", round(most, 2), MOST_COST, "%"))
    return found


def _of(name: str, found: Estimate, unit: str) -> list[Figure]:
    ends = {"median": found.middle, "95 % interval from": found.low, "to": found.high}
    return [Figure(f"{name}, {end}", round(value, 2), unit) for end, value in ends.items()]


def _added_us(said: Any) -> Estimate:
    """Of ``next`` and of the worker's batch together, in microseconds of a processor."""
    added = differences(said["next"], said["on"])
    if said["made"]:
        made = differences(said["made"], said["on"])
        added = {four: added[four] + made[four] for four in added.keys() & made}
    return estimate([one / 1e3 for one in added.values()])


def _wall(said: Any) -> Estimate:
    """Of a block, in percent."""
    middle = statistics.median(said["walls"])
    return estimate([100 * one / middle for one in differences(list(enumerate(said["walls"])), said["on"]).values()])


def differences(values: Sequence[tuple[int, float]], on: Collection[int]) -> dict[int, float]:
    """Of pairs (block, value): of each four blocks the mean of the metered less that of the others. What drifts evenly is in neither."""
    fours: dict[int, dict[bool, list[float]]] = {}
    metered = frozenset(on)
    for block, value in values:
        fours.setdefault(block // 4, {True: [], False: []})[block in metered].append(value)
    return {at: statistics.mean(four[True]) - statistics.mean(four[False]) for at, four in fours.items() if four[True] and four[False]}


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
