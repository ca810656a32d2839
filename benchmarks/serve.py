"""Throughput, processor time and memory: Forebay beside nginx proxy_cache, direct curl and a one-thread relay, in one run.

    python benchmarks/serve.py [--size-mb 1000] [--rounds 5] [--warm] [--json] [--directory DIR]

Every round asks all of them in turn, so that the machine's moods meet all alike; medians and the ratios of medians are printed. A virtual
machine pays more for memory it touches for the first time (or again, after its host took it back) than for anything measured here; so
before each cold read a file of the same size is written and dropped, and what is measured finds pages that are warm. Processor seconds
are those of the serving processes (the origin's nginx counts as the proxy's: one process tree serves both), never curl's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "examples")]

from rivals import Server, forebay, nginx, relay  # noqa: E402

READERS = 64
READER_MB = 32  # what each of the 64 readers reads, of the same shard at its own offset
CAPPED_RATE_BYTES_S = 50e6
CAPPED_LATENCY_S = 0.03


@dataclass
class Row:
    """One thing measured in each round: bytes a second, and processor seconds per 10^9 bytes."""

    rates: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)  # of each round, what 99 of 100 readers waited at most

    @property
    def first_byte(self) -> float | None:
        return statistics.median(self.first_byte_s) if self.first_byte_s else None

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu(self) -> float | None:
        return statistics.median(self.cpu_s_per_gb) if self.cpu_s_per_gb else None


class Bench:
    """All rows of one run."""

    def __init__(self, directory: Path, size: int) -> None:
        self.rows: dict[str, Row] = {}
        self.facts: dict[str, float] = {}
        self._directory = directory
        self._size = size

    def measure(self, name: str, url: str, server: Server | None = None, *, writes: bool = False) -> None:
        """Read ``url`` once with curl. ``writes``: the server will store it."""
        if writes:
            touch_memory(self._directory, self._size + self._size // 4)
        before = server.cpu_s() if server else 0.0
        size, seconds, _ = curl(url)
        row = self.rows.setdefault(name, Row())
        row.rates.append(size / seconds)
        if server:
            row.cpu_s_per_gb.append((server.cpu_s() - before) / (size / 1e9))

    def measure_many(self, name: str, url: str, server: Server, size: int) -> None:
        """``READERS`` curls at once, each a range of its own."""
        part = min(READER_MB * 10**6, size // 2)
        step = (size - part) // READERS
        before = server.cpu_s()
        with ThreadPoolExecutor(READERS) as pool:
            results = list(pool.map(lambda i: curl(url, f"{i * step}-{i * step + part - 1}"), range(READERS)))
        total, seconds = sum(result[0] for result in results), max(result[1] for result in results)
        row = self.rows.setdefault(name, Row())
        row.rates.append(total / seconds)
        row.cpu_s_per_gb.append((server.cpu_s() - before) / (total / 1e9))
        row.first_byte_s.append(sorted(result[2] for result in results)[math.ceil(0.99 * READERS) - 1])

    def ratio(self, one: str, other: str) -> float:
        return self.rows[one].rate / self.rows[other].rate


def curl(url: str, byte_range: str = "") -> tuple[int, float, float]:
    """(bytes, seconds, seconds to the first byte) of one download to nowhere. Raises ``CalledProcessError`` when it is not complete."""
    command = ["curl", "-s", "-f", "-o", "/dev/null", "-w", "%{size_download} %{time_total} %{time_starttransfer}", url]
    done = subprocess.run(command + (["-r", byte_range] if byte_range else []), check=True, capture_output=True, text=True)
    size, seconds, first_byte_s = done.stdout.split()
    return int(size), float(seconds), float(first_byte_s)


def make_file(path: Path, size: int) -> None:
    """Incompressible bytes, each block another."""
    block = bytearray(os.urandom(2**20))
    with path.open("wb") as file:
        for number in range(size // 2**20 + 1):
            block[:8] = number.to_bytes(8, "little")
            file.write(block[: min(2**20, size - number * 2**20)] if size - number * 2**20 > 0 else b"")


def touch_memory(directory: Path, size: int) -> None:
    """Write and drop a file: the pages it held are the next ones to be used."""
    path = directory / "touched"
    make_file(path, size)
    path.unlink()


def run(directory: Path, size: int, rounds: int, *, cold: bool = True) -> Bench:
    bench, files = Bench(directory, size), directory / "files"
    files.mkdir()
    directory.chmod(0o755)
    files.chmod(0o755)
    say(f"making {size / 1e9:.1f} GB")
    make_file(files / "shard.tar", size)
    for number in range(rounds):
        os.link(files / "shard.tar", files / f"cold-{number}.tar")
    with ExitStack() as stack:
        origin, cached = stack.enter_context(nginx(directory / "nginx", files))
        mine = stack.enter_context(forebay(directory / "forebay", origin.url))
        plain = stack.enter_context(relay(directory / "relay", origin))
        through = f"{mine.url}/{origin.url.replace('://', '/')}"
        for url in (f"{origin.url}/shard.tar", f"{cached.url}/shard.tar", f"{through}/shard.tar"):
            curl(url)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            bench.measure("warm: direct", f"{origin.url}/shard.tar")
            bench.measure("warm: nginx hit", f"{cached.url}/shard.tar", cached)
            bench.measure("warm: forebay", f"{through}/shard.tar", mine)
            bench.measure_many("64 readers: nginx hit", f"{cached.url}/shard.tar", cached, size)
            bench.measure_many("64 readers: forebay", f"{through}/shard.tar", mine, size)
            if not cold:
                continue
            bench.measure("cold: direct", f"{origin.url}/cold-{number}.tar")
            bench.measure("cold: relay", f"{plain.url}/cold-{number}.tar", plain, writes=True)
            bench.measure("cold: nginx miss", f"{cached.url}/cold-{number}.tar", cached, writes=True)
            bench.measure("cold: forebay", f"{through}/cold-{number}.tar", mine, writes=True)
        bench.facts["forebay peak RSS, bytes"] = mine.peak_rss_bytes()
        bench.facts["nginx peak RSS of a worker, bytes"] = cached.peak_rss_bytes()
    if cold:
        asyncio.run(capped(bench, directory, files, min(size, 500 * 10**6), rounds))
    return bench


async def capped(bench: Bench, directory: Path, files: Path, size: int, rounds: int) -> None:
    """An origin that gives one connection 50 MB/s after 30 ms."""
    command = [sys.executable, "-m", "demo.serve_origin", str(files), "--latency-ms", "30", "--rate-mb", "50"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "examples")}
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environ)
    try:
        assert child.stdout is not None
        url = json.loads(await child.stdout.readline())["url"].rstrip("/")
        with forebay(directory / "forebay-capped", url) as mine:
            through = f"{mine.url}/{url.replace('://', '/')}"
            for number in range(rounds):
                say(f"capped origin, round {number + 1} of {rounds}")
                if number < 2:  # 50 MB/s is no matter of luck, and takes its time
                    bench.measure("capped: direct", f"{url}/cold-{number}.tar")
                bench.measure("capped: forebay", f"{through}/cold-{number}.tar", mine, writes=True)
    finally:
        child.terminate()
        await child.wait()


AIMS = (
    ("warm, against nginx hit (aim 1.5)", "warm: forebay", "warm: nginx hit"),
    ("warm, against direct curl (aim 0.95 if not the above)", "warm: forebay", "warm: direct"),
    ("64 readers, against nginx hit", "64 readers: forebay", "64 readers: nginx hit"),
    ("cold, against nginx miss (aim 1.0)", "cold: forebay", "cold: nginx miss"),
    ("cold, against the relay (aim 0.8)", "cold: forebay", "cold: relay"),
    ("capped origin, against direct (aim 10)", "capped: forebay", "capped: direct"),
)


def measured_aims(bench: Bench) -> list[tuple[str, str, str]]:
    return [aim for aim in AIMS if bench.rows.keys() >= {aim[1], aim[2]}]


def print_table(bench: Bench) -> None:
    print(f"{'':26} {'MB/s':>7} {'lowest':>7} {'highest':>8} {'CPU s/GB':>9} {'first byte, ms (99 of 100)':>27}")
    for name, row in bench.rows.items():
        cpu = "" if row.cpu is None else f"{row.cpu:9.2f}"
        waited = "" if row.first_byte is None else f"{1000 * row.first_byte:.0f}"
        print(f"{name:26} {row.rate / 1e6:7.0f} {min(row.rates) / 1e6:7.0f} {max(row.rates) / 1e6:8.0f} {cpu:>9} {waited:>27}")
    print()
    for name, one, other in measured_aims(bench):
        print(f"{name:56} {bench.ratio(one, other):6.2f}")
    for name, value in bench.facts.items():
        print(f"{name:56} {value / 2**20:6.0f} MiB")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="only what is stored already")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to make, and remove, a working folder (default: the temporary directory)")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=given.directory))
    try:
        bench = run(directory, given.size_mb * 10**6, given.rounds, cold=not given.warm)
    finally:
        shutil.rmtree(directory)
    if given.json:
        ratios = {name: bench.ratio(one, other) for name, one, other in measured_aims(bench)}
        rows = {
            name: {"bytes_s": row.rates, "cpu_s_per_gb": row.cpu_s_per_gb, "first_byte_s": row.first_byte_s}
            for name, row in bench.rows.items()
        }
        print(json.dumps({"rows": rows, "ratios": ratios, "facts": bench.facts}))
    else:
        print_table(bench)


if __name__ == "__main__":
    main()
