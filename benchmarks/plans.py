"""What plans are worth: real sidecars between emulated trainers and an origin as far away as one likes (far_origin.py).

    python benchmarks/plans.py [bytes] [stall] [jobs] [replay] [--quick] [--json] [--seed 1]

bytes    origin bytes of an epoch against D - (C - W), the least that any policy can fetch; LRU over the same reads beside it
stall    how busy an emulated accelerator is kept where the origin gives a tenth more than is needed
jobs     two jobs over one set, the second half an epoch later
replay   ``forebay plan --replay`` over a recorded run of ``bytes``

Without a name all of them run (below 20 minutes on two processors; ``--quick`` below 2). Exit code 1 if a limit is broken. Every segment is
looked at by its readers. Ratios within one run are what counts; the machine's moods are not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

import plan_bytes  # noqa: E402
import plan_jobs  # noqa: E402
import plan_replay  # noqa: E402
import plan_stall  # noqa: E402
from far_set import FarSet  # noqa: E402
from figures import Figure, as_json, lines  # noqa: E402


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def origin_bytes(given: argparse.Namespace) -> list[Figure]:
    shards = FarSet(given.shards or (128 if given.quick else 256), given.seed)
    outcomes = []
    say(f"{shards.count} shards, {shards.bytes / 2**20:.0f} MiB; bytes in MiB, W in segments")
    say(plan_bytes.heading())
    for case in plan_bytes.cases(quick=given.quick, epochs=given.epochs or (3 if given.quick else 5)):
        if given.case and given.case not in case.name:
            continue
        outcomes.append(plan_bytes.measured(case, plan_bytes.recorded_case(case, shards, given.seed)))
        say(plan_bytes.row(outcomes[-1]))
    return plan_bytes.figures(outcomes)


def stall(given: argparse.Namespace) -> list[Figure]:
    quick = given.quick
    trial = plan_stall.Trial(FarSet(96 if quick else 256, given.seed), given.seed, given.need_mb, workers=4)
    say(f"stall: {trial.shards.bytes / 2**20:.0f} MiB cold")
    return plan_stall.figures(trial)


def jobs(given: argparse.Namespace) -> list[Figure]:
    shards = FarSet(64 if given.quick else 192, given.seed)
    say(f"jobs: {shards.bytes / 2**20:.0f} MiB")
    return plan_jobs.figures(shards, given.seed, given.need_mb / 2, workers=4)


def replay(given: argparse.Namespace) -> list[Figure]:
    shards = FarSet(144 if given.quick else 192, given.seed)
    say(f"replay: {shards.bytes / 2**20:.0f} MiB")
    return plan_replay.figures(shards, given.seed, given.epochs or (2 if given.quick else 4))


PARTS: dict[str, Callable[[argparse.Namespace], list[Figure]]] = {
    "bytes": origin_bytes,
    "stall": stall,
    "jobs": jobs,
    "replay": replay,
}


# Origin simulator, sidecar and accelerator share the machine. On two cores a line of 176 MB/s is more than they carry together: at 160 MB/s
# even curl alone kept the accelerator only 94.5 % busy, at 100 MB/s 98.2 %.
NEED_MB = 100.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shards", type=int, help="of the set of `bytes` (default: 256, quick 128)")
    parser.add_argument("--epochs", type=int, help="of `bytes` (default: 5, quick 3) and `replay` (4, quick 2)")
    parser.add_argument("--case", help="only the cases of `bytes` with this in their name")
    parser.add_argument(
        "--need-mb", type=float, default=NEED_MB, help=f"the accelerator of `stall` takes so many MB/s (default: {NEED_MB:g})"
    )
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures = [figure for name in given.parts or PARTS for figure in PARTS[name](given)]
    command = " ".join(["python benchmarks/plans.py", *(part for part in sys.argv[1:] if part != "--json")])
    print(as_json("plans", command, figures) if given.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
