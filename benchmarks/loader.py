"""Samples a second of one worker: webdataset over curl and over files, Forebay warm, indexed and cold.

    python benchmarks/loader.py                                        five rounds, 20,000 samples of 10 KB, 2,000 of 100 KB
    python benchmarks/loader.py --samples 4000 --rounds 2 --json       quickly, as one JSON object

All read the same samples, a JPEG and its class from plain tars, in the same order: once, before anything is timed, the crc32 of all their
keys and values is compared. Timed is the loop over samples that adds up the lengths of the JPEGs, each of them ``bytes`` at hand; the sums
are compared too. Every reading is a worker forked for it. All contenders take turns in every round; rates are medians, ratios the medians
of the rounds' ratios. nginx is the origin, on loopback. Exit code 1 where a limit is broken. On a machine with other work `--clock cpu`
counts the worker's own processor seconds instead (not its curl's, nor the sidecar's); cold readings, which wait for others, are told both
ways and held to their limit on the wall.

What the rows read:
- webdataset, curl: ``pipe:curl`` from the origin. webdataset, file: the tars themselves from the page cache.
- forebay, warm: a worker's first reading of shards that the sidecar has, and has indexed; http: the same with the descriptors turned off.
- forebay, indexed: ``IndexedShards`` from its first sample to its last, a worker's second time.
- forebay, cold: shards the sidecar has never seen. Before it memory is touched as in serve.py: no other row stores anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOTS = [str(HERE.parent / part) for part in ("tests", "proxy", "loader", "benchmarks")]
sys.path[:0] = ROOTS

from figures import Figure, as_json, at_least, exactly, lines  # noqa: E402
from loader_set import Made, make_set  # noqa: E402
from rivals import nginx  # noqa: E402
from serve import touch_memory  # noqa: E402
from support.other_python import clean_environment  # noqa: E402
from support.sidecar import running  # noqa: E402

PARTS = ("10", "10-alone", "10-three", "100")
SHARDS = 4
WDS_CURL, WDS_FILE = "webdataset, curl", "webdataset, file"
WARM, HTTP, INDEXED, COLD = "forebay, warm", "forebay, warm, http", "forebay, indexed", "forebay, cold"
WDS_CURL_WALL, COLD_CPU = "webdataset, curl, wall", "forebay, cold, worker's cpu"
ALONE, THREE = "10 KB, one file a sample", "10 KB, three files a sample"


class Contender:
    """One way to read, in a process of its own. ``reading``: which pass of a fresh worker is timed."""

    def __init__(self, way: str, environ: dict[str, str], reading: int = 1) -> None:
        self.reading = reading
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "loader_contender.py"), way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        self._ready = False  # they start together

    def passes(self, urls: list[str], *, check: bool = False) -> list[dict[str, Any]]:
        """Each pass of a new worker: seconds, samples, bytes, and the crc32 where ``check`` asks for it."""
        assert self._child.stdin is not None
        self._ready = self._ready or bool(self._line())
        self._child.stdin.write(json.dumps({"urls": urls, "passes": self.reading, "check": check}) + "\n")
        self._child.stdin.flush()
        found: list[dict[str, Any]] | None = json.loads(self._line())
        if found is None:
            raise SystemExit(f"a reading of {urls[0]} failed; its error is above")
        return found

    def close(self) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(30)
        self._child.stdout.close()

    def _line(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit("a contender ended before it was ready; its error is above")
        return line


@dataclass
class Bench:
    """All that was measured: samples a second of each row in each round."""

    clock: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    samples: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    sums: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, size: str, row: str, found: dict[str, Any]) -> None:
        seconds = found["wall" if row in (COLD, WDS_CURL_WALL) else self.clock]
        self.rates.setdefault(f"{size}: {row}", []).append(found["samples"] / seconds)
        self.samples.setdefault(size, set()).add((found["samples"], found["bytes"]))

    def ratio(self, one: str, other: str) -> float:
        """The median of the rounds' ratios; nan where one was not measured."""
        pairs = list(zip(self.rates.get(one, []), self.rates.get(other, []), strict=False))
        return statistics.median(mine / theirs for mine, theirs in pairs) if pairs else float("nan")


class Run:
    """The servers and the contenders of one run, in ``directory``."""

    def __init__(self, directory: Path, stack: ExitStack, clock: str) -> None:
        self._directory, self._stack = directory, stack
        self.files = directory / "files"
        self.files.mkdir()
        origin, _ = stack.enter_context(nginx(directory / "nginx", self.files))
        self.origin = origin.url
        place = directory / "sidecar"
        place.mkdir()
        flags = ("--cache-size", "16GB", "--socket", str(place / "s"))
        self.sidecar = stack.enter_context(running(place, *flags, allow=[origin.url]))
        self.plain = clean_environment(directory / "run", PYTHONPATH=os.pathsep.join(ROOTS), OMP_NUM_THREADS="1")
        self.served = {**self.plain, "FOREBAY_URL": self.sidecar.url}
        self.bench = Bench(clock)

    def contender(self, way: str, reading: int = 1, **variables: str) -> Contender:
        environ = self.served if way.startswith("forebay") else self.plain
        made = Contender(way, {**environ, **variables}, reading)
        self._stack.callback(made.close)
        return made

    def urls(self, made: Made, prefix: str = "") -> list[str]:
        return [f"{self.origin}/{path.parent.name}/{prefix}{path.name}" for path in made.shards]

    def raw(self, size: str, made: Made, rounds: int) -> None:
        """The rows of raw samples."""
        urls = self.urls(made)
        pipes = [f"pipe:curl -s -f {url}" for url in urls]
        rows = {
            WDS_CURL: (self.contender("webdataset"), pipes),
            WDS_FILE: (self.contender("webdataset"), [str(path) for path in made.shards]),
            WARM: (self.contender("forebay"), urls),
            HTTP: (self.contender("forebay", FOREBAY_FD="0"), urls),
            INDEXED: (self.contender("forebay-indexed", 2), urls),
        }
        say(f"{size}: comparing all bytes")
        self.bench.sums[size] = {row: contender.passes(given, check=True)[-1]["crc"] for row, (contender, given) in rows.items()}
        for number in range(rounds):
            say(f"{size}: round {number + 1} of {rounds}")
            for row, (contender, given) in rows.items():
                found = contender.passes(given)[-1]
                self.bench.add(size, row, found)
                if row == WDS_CURL and self.bench.clock != "wall":
                    self.bench.add(size, WDS_CURL_WALL, found)
            for path in made.shards:
                os.link(path, path.with_name(f"cold-{number}-{path.name}"))
            touch_memory(self._directory, sum(path.stat().st_size for path in made.shards) * 5 // 4)
            found = rows[WARM][0].passes(self.urls(made, f"cold-{number}-"))[-1]
            self.bench.add(size, COLD, found)
            if self.bench.clock != "wall":
                self.bench.add(size, COLD_CPU, found)


def figures(run: Run) -> Iterator[Figure]:
    """Everything the run found, each with its limit."""
    bench = run.bench
    for size, sums in bench.sums.items():
        yield exactly(f"{size}: different crc32 of all keys and values", len(set(sums.values())), 1)
    for size, found in bench.samples.items():
        yield exactly(f"{size}: different (samples, bytes) in timed passes", len(found), 1)
    for row, rates in bench.rates.items():
        yield Figure(row, statistics.median(rates), "/s", f"{min(rates):,.0f} to {max(rates):,.0f}")
    for size in bench.sums:
        yield from _ratios(bench, size, held=size == "10 KB")
    if THREE in bench.sums:
        ratio = bench.ratio(f"{THREE}: {WARM}", f"{THREE}: {WDS_FILE}")
        yield at_least(f"{THREE}: {WARM} / {WDS_FILE}, held", ratio, 25, "times")


def _ratios(bench: Bench, size: str, *, held: bool) -> Iterator[Figure]:
    waited = WDS_CURL if bench.clock == "wall" else WDS_CURL_WALL
    aims = [
        (WARM, WDS_CURL, 12), (WARM, WDS_FILE, 12), (INDEXED, WDS_CURL, 35), (INDEXED, WDS_FILE, 35),
        (COLD, waited, 12), (COLD_CPU, WDS_CURL, 0), (HTTP, WDS_CURL, 0),
    ]  # fmt: skip
    for one, other, aim in aims:
        value = bench.ratio(f"{size}: {one}", f"{size}: {other}")
        if value == value:  # nan: LitData was not there
            made = at_least if held and aim else _told
            yield made(f"{size}: {one} / {other}", value, aim, "times")


def _told(what: str, value: float, _: float, unit: str) -> Figure:
    return Figure(what, value, unit)


@contextmanager
def folder(parent: Path | None) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="forebay-loader-", dir=parent))
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def measure(given: argparse.Namespace, directory: Path) -> list[Figure]:
    with ExitStack() as stack:
        run = Run(directory, stack, given.clock)
        say("making samples")
        small = make_set(run.files / "10kb", 10, given.samples, SHARDS)
        alone = make_set(run.files / "10kb-alone", 10, given.samples, SHARDS, classes=False)
        three = make_set(run.files / "10kb-three", 10, given.samples, SHARDS, texts=True)
        large = make_set(run.files / "100kb", 100, max(given.samples // 10, SHARDS), SHARDS)
        for size, part, made in (("10 KB", "10", small), (ALONE, "10-alone", alone), (THREE, "10-three", three), ("100 KB", "100", large)):
            if part in given.part:
                run.raw(size, made, given.rounds)
        return list(figures(run))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000, help="of 10 KB; a tenth as many of 100 KB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: of the worker alone, on a machine with other work")
    parser.add_argument(
        "--part",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        help="only these; those with numbers are sizes of raw samples, in KB",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--directory", type=Path, help="where to make, and remove, a working folder (default: the temporary directory)")
    given = parser.parse_args()
    if given.samples < 4 * SHARDS or given.rounds < 1:
        parser.error(f"at least {4 * SHARDS} samples, 1 round")
    with folder(given.directory) as directory:
        found = measure(given, directory)
    print(as_json("loader", " ".join(["python", "benchmarks/loader.py", *sys.argv[1:]]), found) if given.json else "\n".join(lines(found)))
    return 0 if all(figure.ok for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
