"""Which part of a pipeline the training waits for: each is made the bottleneck in turn, and the meter has to name it.

    python benchmarks/stalls.py [--quick] [--json] [--case NAME …]

A real sidecar, an origin in this process, a training with two workers in a process of its own (tests/support/stall_trainer.py). Held: the
named cause has 90 % of the stall, and the whole stall is within 5 % of the wall time less the steps'. Needs gcc (a library makes the disk
slow).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "loader", "benchmarks")]

from figures import Figure, as_json, at_least, at_most, lines  # noqa: E402
from support.disks import bad_disk, delay  # noqa: E402
from support.scripted_origin import ScriptedOrigin, in_a_thread  # noqa: E402
from support.sidecar import Sidecar, environment, running  # noqa: E402
from support.tars import tar_shard  # noqa: E402

TRAINER = ROOT / "tests" / "support" / "stall_trainer.py"
SHARDS, SAMPLES, SAMPLE_BYTES = 24, 40, 64_000
STEP_S = 0.005
SLOW_ORIGIN_BYTES_S = 2e6  # of each connection
SLOW_READ_S = 0.04
LEAST_SHARE, MOST_OFF = 90.0, 5.0


@dataclass(frozen=True)
class Case:
    """``cause`` is what the meter has to say; "" where the trainer itself is the slowest."""

    name: str
    cause: str
    cold: bool = False
    slow_disk: bool = False
    step_s: float = STEP_S
    batches: int = 60


CASES = (
    Case("origin", "origin", cold=True),
    Case("disk", "disk", slow_disk=True),
    Case("decode", "decode", batches=200),
    Case("locked", "decode", batches=30),  # a decoder that keeps the interpreter's lock
    Case("map", "map", batches=200),
    Case("collate", "collate"),
    Case("trainer", "", step_s=0.08),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a third of the batches")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only these")
    given = parser.parse_args()
    wanted = set(given.case or [case.name for case in CASES])
    found: list[Figure] = []
    for case in CASES:
        if case.name in wanted:
            found += figures(case, case.batches // (3 if given.quick else 1), told=not given.json)
    print(
        as_json("stalls", f"python benchmarks/stalls.py{' --quick' if given.quick else ''}", found)
        if given.json
        else "\n".join(lines(found))
    )
    return int(not all(figure.ok for figure in found))


def figures(case: Case, batches: int, *, told: bool) -> list[Figure]:
    with _stage(case) as (place, urls, variables):
        said = _train(place, variables, case.name, urls, str(batches), str(case.step_s))
    stalls = said["stalls"]
    total_s = sum(stalls["stall_s"].values()) + stalls["pending_s"]
    waited_s = said["wall_s"] - said["step_s"]
    if told:
        print(f"{case.name}: {said['said']}", file=sys.stderr)
    if not case.cause:
        return [at_most(f"{case.name}: stall", round(100 * total_s / said["wall_s"], 2), 5.0, "%")]
    share = 100 * stalls["stall_s"].get(case.cause, 0.0) / total_s
    return [
        at_least(f"{case.name}: of the stall is {case.cause}", round(share, 1), LEAST_SHARE, "%"),
        at_most(f"{case.name}: stall off wall time less steps", round(100 * abs(total_s - waited_s) / waited_s, 2), MOST_OFF, "%"),
    ]


@contextmanager
def _stage(case: Case) -> Iterator[tuple[Path, str, Mapping[str, str]]]:
    """A sidecar and an origin, warm or cold: (where to work, the set's pattern, variables of the training)."""
    with (
        tempfile.TemporaryDirectory(prefix="forebay-stalls-") as directory,
        in_a_thread(ScriptedOrigin()) as origin,
        bad_disk(Path(directory)) as disk,
        running(Path(directory), *_flags(directory, case), allow=[origin.base]) as sidecar,
    ):
        place = Path(directory)
        for number in range(SHARDS):
            rate = SLOW_ORIGIN_BYTES_S if case.cold else None
            origin.put(f"/{number:03d}.tar", tar_shard(number, SAMPLES, SAMPLE_BYTES), bytes_per_s=rate)
        if not case.cold:
            _warm(sidecar, origin)
        if case.slow_disk:
            disk.set(read=delay(SLOW_READ_S))
        variables = {"FOREBAY_URL": sidecar.url, "FOREBAY_SOCKET": "", **(disk.environ if case.slow_disk else {})}
        yield place, f"{origin.base}/{{000..{SHARDS - 1:03d}}}.tar", variables


def _flags(directory: str, case: Case) -> tuple[str, ...]:
    return ("--cache-size", "1GB", "--socket", f"{directory}/s", *(("--no-prefetch",) if case.cold else ()))


def _warm(sidecar: Sidecar, origin: ScriptedOrigin) -> None:
    for number in range(SHARDS):
        path = sidecar.proxied(origin.url(f"/{number:03d}.tar")).removeprefix(sidecar.url)
        sidecar.ask(path)
    sidecar.wait_complete(SHARDS)


def _train(place: Path, variables: Mapping[str, str], *arguments: str) -> Any:
    command = [sys.executable, str(TRAINER), *arguments]
    environ = environment(place, **variables)
    done = subprocess.run(command, env=environ, cwd=place, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
