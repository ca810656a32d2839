"""What two policies gain over their simple forms, both in one run: counted or simulated, so a busy machine does not matter.

    python benchmarks/simple_forms.py [names] [line] [--json] [--seed 1]

names    585,270 names as numbers: bytes a name and the longest single insertion, in ``NameTable`` and in a dict
line     how busy an accelerator is kept on a line of so many times its need (simulated): with ``BandwidthEstimate`` holding requests back,
         and with the slots of the limiter alone
"""

from __future__ import annotations

import argparse
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable
from pathlib import Path
from unittest import mock

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

from far_set import FarSet  # noqa: E402
from figures import Figure, as_json, lines  # noqa: E402

from forebay_proxy.core.shard import Shard  # noqa: E402
from forebay_proxy.policy.plans.shard_ids import NameTable  # noqa: E402
from forebay_proxy.simulate import origin  # noqa: E402
from forebay_proxy.simulate.origin import SimulatedLine  # noqa: E402
from forebay_proxy.simulate.outcome import SimulatedRun  # noqa: E402
from forebay_proxy.simulate.workload import shuffled  # noqa: E402
from forebay_proxy.wire.urls.shard_url import parse_origin_url  # noqa: E402

NAMES = 585_270  # LAION-5B
SHARDS, NEED_BYTES_S, CONNECTION_BYTES_S, LATENCY_S = 192, 100e6, 50e6, 0.065


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


class NoEstimate:
    """``BandwidthEstimate`` in its simple form: no request is one too many."""

    requests = 1 << 30

    def asked(self, now: float) -> None: ...

    def came(self, size: int, now: float) -> None: ...

    def ended(self, now: float) -> None: ...


def names(_: int) -> list[Figure]:
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


def line(seed: int) -> list[Figure]:
    found = []
    for of_need in (1.1, 1.5):
        for readers in (1, 2, 4):
            name = f"a line of {of_need:g} times the need, {readers} readers: accelerator busy"
            found.append(Figure(name, busy(of_need, readers, seed), "%"))
            with mock.patch.object(origin, "BandwidthEstimate", NoEstimate):
                found.append(Figure("  with the limiter's slots alone", busy(of_need, readers, seed), "%"))
    return found


def busy(of_need: float, readers: int, seed: int) -> float:
    """Percent of a cold epoch in which readers that announce whole epochs did not wait."""
    far = FarSet(SHARDS, seed)
    shards = [Shard.of(parse_origin_url(f"https://o/set/{name}")) for name in far.names]
    lengths = {shard.name: length for shard, length in zip(shards, far.lengths, strict=True)}
    workload = shuffled(shards, lengths, seed=seed, readers=readers, rate=NEED_BYTES_S)
    outcome = SimulatedRun(workload, SimulatedLine(of_need * NEED_BYTES_S, CONNECTION_BYTES_S, LATENCY_S), 2 * far.bytes).finish()
    return round(100 * (1 - outcome.wait_ratio), 2)


PARTS: dict[str, Callable[[int], list[Figure]]] = {"names": names, "line": line}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures = [figure for part in given.parts or PARTS for figure in PARTS[part](given.seed)]
    command = " ".join(["python benchmarks/simple_forms.py", *(part for part in sys.argv[1:] if part != "--json")])
    print(as_json("simple_forms", command, figures) if given.json else "\n".join(lines(figures)))


if __name__ == "__main__":
    main()
