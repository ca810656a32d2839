"""kill -9 a hundred times, and look each time at what is left: the test of tests/faults/test_kills.py, for longer.

    python benchmarks/crashes.py [--kills 100] [--seed 7] [--json] [--directory DIR]

Prints how many segments each start found, how long a start takes, and how many wrong bytes, false claims, leaked files, breaches of the
bound and lost or doubled samples there were, each with the limit it is held to. Exit code 1 if one is not held.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    *(str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "loader")),
]

from figures import Figure, as_json, at_least, at_most, exactly, lines  # noqa: E402
from support.kills import Kills, Report  # noqa: E402

START_WITHIN_S = 10.0  # of a process on a busy machine; most of it is the interpreter's own start


def figures(report: Report, kills: int) -> list[Figure]:
    """What is promised, with what was found."""
    kept = report.kept[1:]  # the first start finds nothing
    return [
        at_least("kill -9", report.kills, kills),
        Figure("of them during a start", report.kills_at_start),
        at_least("starts that found segments", 100 * sum(count > 0 for count in kept) / len(kept), 70, "%"),
        Figure("segments kept, median", statistics.median(kept)),
        Figure("segments kept, most", max(kept)),
        Figure("start, median", statistics.median(report.start_s), "s"),
        at_most("start, longest", max(report.start_s), START_WITHIN_S, "s"),
        Figure("bytes compared", report.bytes_compared),
        at_least("epochs of the training loop", report.epochs, 1),
        *(exactly(name.replace("_", " "), count, 0) for name, count in report.faults.items()),
    ]


def said(name: str, given: argparse.Namespace) -> str:
    return f"python benchmarks/{name}.py --kills {given.kills} --seed {given.seed}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to make, and remove, a working folder (default: the temporary directory)")
    given = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="forebay-crashes-", dir=given.directory))
    try:
        kills = Kills(directory, given.seed, progress=lambda line: print(line, file=sys.stderr, flush=True))
        report = asyncio.run(kills.run(given.kills))
    finally:
        shutil.rmtree(directory)
    found = figures(report, given.kills)
    print(as_json("crashes", said("crashes", given), found) if given.json else "\n".join(lines(found)))
    for note in report.notes:
        print(note, file=sys.stderr)
    return 0 if all(figure.ok for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
