"""What ``NameTable`` gains over a dict: bytes a name and the longest single insertion, for 585,270 names.

python benchmarks/simple_forms.py [--json]
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

from figures import Figure, as_json, lines  # noqa: E402

from forebay_proxy.policy.plans.shard_ids import NameTable  # noqa: E402

NAMES = 585_270  # LAION-5B


class NameDict:
    """``NameTable`` in its simple form: a dict, and an array for the way back."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._hashes = array("q", [0])

    def add(self, hashed: int) -> int:
        """A number for a name that has none."""
        number = self._numbers[hashed] = len(self._hashes)
        self._hashes.append(hashed)
        return number


def names() -> list[Figure]:
    hashes = array("q", (hash(f"s3://laion/laion2B-en/images/part-{number % 10}/{number:06d}.tar") for number in range(NAMES)))
    found = []
    for made in (NameTable, NameDict):
        add = made().add
        longest_s = max(_seconds(add, hashed) for hashed in hashes)
        tracemalloc.start()
        table = made()
        for hashed in hashes:
            table.add(hashed)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        found += [
            Figure(f"{made.__name__}, {NAMES} names: a name", size / NAMES, "B"),
            Figure("  longest insertion, processor time", 1e3 * longest_s, "ms"),
        ]
    return found


def _seconds(add: Callable[[int], int], hashed: int) -> float:
    began = time.thread_time()
    add(hashed)
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures, command = names(), "python benchmarks/simple_forms.py"
    print(as_json("simple_forms", command, figures) if given.json else "\n".join(lines(figures)))


if __name__ == "__main__":
    main()
