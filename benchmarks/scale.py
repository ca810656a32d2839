"""What a second, a fourth, a sixteenth core is worth: rate over movers, as measured here, and on paper for faster links.

    python benchmarks/scale.py [--size-mb 300] [--rounds 3] [--movers 0,1,2] [--scheme http] [--readers 8] [--json] [--directory DIR]
    python benchmarks/scale.py --from serve.json      what benchmarks/serve.py --json printed

Measured: cold readers of different shards, one sidecar for each number of movers, all in the same rounds (as ``serve.py`` has it), and the
least-squares slope of the rate over movers. On a machine where readers, origin and sidecar share few cores the slope says what those leave:
cores that are all busy cannot show that one more mover would help, so the processor seconds are told beside it.

On paper: a link of G Gbit/s brings G/8 GB a second. What the loop itself spends on a GB may never be more than a core in that time, so
1 / (loop s/GB) is the most one sidecar can do; what threads and movers spend may be spread over cores. Nothing is taken off for what
measuring here adds (the origin and the readers on the same cores, their cold caches), and nothing added for a real network's interrupts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "examples")]

from rivals import knows_movers  # noqa: E402
from serve import Plan, forebay_name, numbers, run  # noqa: E402

LINKS_GBIT_S = (16, 64, 100)


@dataclass(frozen=True)
class Measured:
    """One sidecar: medians of its rounds. Seconds are of processors, for 10^9 bytes."""

    movers: int
    bytes_s: float
    loop_s_per_gb: float
    movers_s_per_gb: float
    all_s_per_gb: float


@dataclass(frozen=True)
class Paper:
    """What a link of ``gbit_s`` would need, at the seconds measured with ``movers`` movers."""

    gbit_s: int
    movers: int
    loop_cores: float
    other_cores: float
    holds: bool  # one loop is enough

    @property
    def cores(self) -> int:
        return math.ceil(self.loop_cores) + math.ceil(self.other_cores)


def read(rows: Mapping[str, Mapping[str, Sequence[float]]], what: str) -> list[Measured]:
    """The sidecars of ``what`` ("cold http, 8") in what ``serve.py`` measured, by movers."""
    found = []
    for movers in (None, *range(65)):
        row = rows.get(f"{what}: {forebay_name(movers)}")
        if row is not None:
            rate, loop, children, everything = (
                statistics.median(row[name]) for name in ("bytes_s", "loop_s_per_gb", "children_s_per_gb", "cpu_s_per_gb")
            )
            found.append(Measured(movers or 0, rate, loop, children, everything))
    return found


def slope(measured: Sequence[Measured]) -> float | None:
    """Bytes a second for each mover more, by least squares; None of fewer than two."""
    if len({each.movers for each in measured}) < 2:
        return None
    return statistics.linear_regression([each.movers for each in measured], [each.bytes_s for each in measured]).slope


def on_paper(measured: Measured, gbit_s: int) -> Paper:
    gigabytes_s = gbit_s / 8
    loop, other = measured.loop_s_per_gb * gigabytes_s, (measured.all_s_per_gb - measured.loop_s_per_gb) * gigabytes_s
    return Paper(gbit_s, measured.movers, loop, other, loop <= 1)


def print_all(measured: Sequence[Measured], what: str) -> None:
    cores = len(os.sched_getaffinity(0))
    print(f"{what}, on {cores} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'movers':>6} {'MB/s':>7} {'loop s/GB':>10} {'movers s/GB':>12} {'all s/GB':>9} {'one loop gives at most, GB/s':>29}")
    for each in measured:
        most = 1 / each.loop_s_per_gb
        told = f"{each.loop_s_per_gb:10.2f} {each.movers_s_per_gb:12.2f} {each.all_s_per_gb:9.2f} {most:29.2f}"
        print(f"{each.movers:6} {each.bytes_s / 1e6:7.0f} {told}")
    rise = slope(measured)
    print("slope: " + ("one number of movers has none" if rise is None else f"{rise / 1e6:+.0f} MB/s a mover"))
    print(f"\non paper, from these s/GB: {'movers':>6} {'Gbit/s':>7} {'GB/s':>6} {'cores of loop':>14} {'of the rest':>12} {'in all':>7}")
    for each in measured:
        for gbit_s in LINKS_GBIT_S:
            paper = on_paper(each, gbit_s)
            needs = f"{paper.loop_cores:14.2f} {paper.other_cores:12.2f} {paper.cores:7}"
            print(f"{'':26} {each.movers:6} {gbit_s:7} {gbit_s / 8:6.1f} {needs}" + ("" if paper.holds else "   more than one loop has"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--movers", type=numbers, default=tuple(range(len(os.sched_getaffinity(0)) + 1)), help="default: none to one a core"
    )
    parser.add_argument("--scheme", choices=("http", "https"), default="http")
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--from", type=Path, dest="told", help="take the figures from what serve.py --json printed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to make, and remove, a working folder (default: the temporary directory)")
    given = parser.parse_args()
    what = f"cold {given.scheme}, {given.readers}"
    rows: Mapping[str, Any] = json.loads(given.told.read_text())["rows"] if given.told else measure(given)
    measured = read(rows, what)
    if given.json:
        papers = [{**asdict(on_paper(each, link)), "cores": on_paper(each, link).cores} for each in measured for link in LINKS_GBIT_S]
        told = {"what": what, "measured": [asdict(each) for each in measured], "bytes_s_a_mover": slope(measured), "on_paper": papers}
        print(json.dumps(told))
    else:
        print_all(measured, what)


def measure(given: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    directory = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=given.directory))
    movers: tuple[int | None, ...] = given.movers if knows_movers() else (None,)
    try:
        plan = Plan(
            given.size_mb * 10**6, given.rounds, warm=False, capped=False, schemes=(given.scheme,), readers=(given.readers,), movers=movers
        )
        bench = run(directory, plan)
    finally:
        shutil.rmtree(directory)
    return {
        name: {"bytes_s" if each == "rates" else each: values for each, values in asdict(row).items()} for name, row in bench.rows.items()
    }


if __name__ == "__main__":
    main()
