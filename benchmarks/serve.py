"""Throughput, processor time and memory: Forebay beside nginx proxy_cache and direct curl, in one run.

    python benchmarks/serve.py [--size-mb 300] [--rounds 5] [--warm | --cold] [--schemes http,https] [--readers 1,8,64] [--capped]
                               [--json] [--directory DIR]

Every round asks all of them in turn, the first one another each time, so that the machine's moods meet all alike; medians and the medians
of the rounds' ratios are printed. A virtual machine pays more for memory it touches for the first time (or again, after its host took it
back) than for anything measured here; so before each cold read a file of the same size is written and dropped, and what is measured finds
pages that are warm. Several cold readers read a shard each, together as much as one reads alone. Over https the origin speaks TLS with a
certificate of the run's own authority; nginx and Forebay give what they fetched over plain http, and curl reads it directly over TLS.

Processor seconds are those of the server, never curl's: of Forebay's loop (its first thread), and in all; the origin's own stand beside
them.
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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "examples")]

from rivals import Authority, Server, Spent, forebay, nginx_cache, nginx_origin  # noqa: E402

READERS = 64
READER_MB = 32  # what each of the 64 readers reads, of the same shard at its own offset


@dataclass
class Row:
    """One thing measured in each round: bytes a second, and processor seconds per 10^9 bytes, in all and apart."""

    rates: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)
    loop_s_per_gb: list[float] = field(default_factory=list)
    children_s_per_gb: list[float] = field(default_factory=list)
    origin_s_per_gb: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)  # of each round, what 99 of 100 readers waited at most

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def median(self, name: str) -> float | None:
        """Of one of the lists; None where it is empty."""
        values: list[float] = getattr(self, name)
        return statistics.median(values) if values else None

    def add(self, size: int, spent: Spent | None, origin: Spent | None) -> None:
        """What ``size`` bytes took of the server and of its origin."""
        gigabytes = size / 1e9
        if spent is not None:
            self.cpu_s_per_gb.append(spent.all_s / gigabytes)
            self.loop_s_per_gb.append(spent.loop_s / gigabytes)
            self.children_s_per_gb.append(spent.children_s / gigabytes)
        if origin is not None:
            self.origin_s_per_gb.append(origin.all_s / gigabytes)


@dataclass(frozen=True)
class Contender:
    """Who is asked for shards of an origin: ``prefixes`` by the origin's scheme, before ``/name``; ``server`` None: nobody between."""

    name: str
    prefixes: Mapping[str, str]
    server: Server | None = None


class Bench:
    """All rows of one run."""

    def __init__(self, directory: Path, size: int, authority: Authority | None = None) -> None:
        self.rows: dict[str, Row] = {}
        self.facts: dict[str, float] = {}
        self._directory = directory
        self._size = size
        self._authority = authority

    def measure(self, name: str, url: str, server: Server | None = None, *, writes: bool = False) -> None:
        """Read ``url`` once with curl. ``writes``: the server will store it."""
        self._measure(name, [(url, "")], server, None, writes=writes)

    def measure_shards(self, name: str, urls: list[str], server: Server | None, origin: Server) -> None:
        """A curl each of ``urls`` at once, which the server, if there is one, will store."""
        self._measure(name, [(url, "") for url in urls], server, origin, writes=server is not None)

    def measure_many(self, name: str, url: str, server: Server, size: int) -> None:
        """``READERS`` curls at once, each a range of its own."""
        part = min(READER_MB * 10**6, size // 2)
        step = (size - part) // READERS
        self._measure(name, [(url, f"{i * step}-{i * step + part - 1}") for i in range(READERS)], server, None)

    def _measure(
        self, name: str, asked: list[tuple[str, str]], server: Server | None, origin: Server | None, *, writes: bool = False
    ) -> None:
        if writes:
            touch_memory(self._directory, self._size + self._size // 4)
        before, origin_before = server and server.spent(), origin and origin.spent()
        authority = self._authority and self._authority.certificate
        with ThreadPoolExecutor(len(asked)) as pool:
            results = list(pool.map(lambda one: curl(*one, authority), asked))
        total, seconds = sum(result[0] for result in results), max(result[1] for result in results)
        row = self.rows.setdefault(name, Row())
        row.rates.append(total / seconds)
        row.add(
            total,
            server.spent() - before if server and before else None,
            origin.spent() - origin_before if origin and origin_before else None,
        )
        if len(asked) > 1:
            row.first_byte_s.append(sorted(result[2] for result in results)[math.ceil(0.99 * len(asked)) - 1])

    def ratio(self, one: str, other: str) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(a / b for a, b in zip(self.rows[one].rates, self.rows[other].rates, strict=False))

    def cpu_ratio(self, one: str, other: str) -> float | None:
        """As ``ratio``, of processor seconds per GB."""
        pairs = list(zip(self.rows[one].cpu_s_per_gb, self.rows[other].cpu_s_per_gb, strict=False))
        return statistics.median(a / b for a, b in pairs) if pairs else None


def curl(url: str, byte_range: str = "", authority: Path | None = None) -> tuple[int, float, float]:
    """(bytes, seconds, seconds to the first byte) of one download to nowhere. Raises ``CalledProcessError`` when it is not complete.

    ``authority``: the certificate that https is judged by.
    """
    command = ["curl", "-s", "-f", "-o", "/dev/null", "-w", "%{size_download} %{time_total} %{time_starttransfer}", url]
    command += ["-r", byte_range] if byte_range else []
    command += ["--cacert", str(authority)] if authority is not None else []
    done = subprocess.run(command, check=True, capture_output=True, text=True)
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


@dataclass(frozen=True)
class Plan:
    """What a run measures."""

    size: int
    rounds: int
    warm: bool = True
    cold: bool = True
    capped: bool = True
    schemes: tuple[str, ...] = ("http", "https")
    readers: tuple[int, ...] = (1, 8, 64)


def run(directory: Path, plan: Plan) -> Bench:
    files, authority = directory / "files", Authority.made(directory)
    files.mkdir()
    directory.chmod(0o755)
    files.chmod(0o755)
    bench = Bench(directory, plan.size, authority)
    say(f"making {plan.size / 1e9:.1f} GB")
    make_file(files / "shard.tar", plan.size)
    make_file(files / "small.tar", 2**20)
    for readers in plan.readers:  # links to them are the cold shards: what counts is that each has a name of its own
        make_file(files / f"of-{readers}.tar", plan.size // readers)
    with nginx_origin(directory / "origin", files, authority) as origin:
        for number in range(plan.rounds):
            say(f"round {number + 1} of {plan.rounds}")
            place = directory / "round"
            with contenders(place, origin, authority) as them:
                for url in (prefix for one in them for prefix in one.prefixes.values()):
                    curl(f"{url}/small.tar", authority=authority.certificate)  # what comes once a process is no part of it
                if plan.warm:
                    warm(bench, origin, them, plan.size)
                if plan.cold:
                    cold(bench, origin, turned(them, number), files, plan, number)
                for one in them:
                    if one.server is not None:
                        name = f"{one.name} peak RSS of a process, bytes"
                        bench.facts[name] = max(bench.facts.get(name, 0), one.server.peak_rss_bytes())
            shutil.rmtree(place)
    if plan.capped:
        asyncio.run(capped(bench, directory, files, min(plan.size, 500 * 10**6), plan))
    return bench


@contextmanager
def contenders(place: Path, origin: Server, authority: Authority) -> Iterator[list[Contender]]:
    """All of them, each with an empty cache below ``place``, and the origin itself. Servers of one round: the disk holds no more."""
    place.mkdir(mode=0o755)
    urls = {"http": origin.url, "https": origin.tls_url}
    with ExitStack() as stack:
        cached = stack.enter_context(nginx_cache(place / "nginx", origin, authority))
        mine = stack.enter_context(forebay(place / "forebay", *urls.values(), authority=authority))
        yield [
            Contender("direct", urls),
            Contender("nginx", {"http": cached.url, "https": cached.tls_url}, cached),
            Contender("forebay", {scheme: f"{mine.url}/{url.replace('://', '/')}" for scheme, url in urls.items()}, mine),
        ]


def turned(them: list[Contender], number: int) -> list[Contender]:
    return them[number % len(them) :] + them[: number % len(them)]


def warm(bench: Bench, origin: Server, them: list[Contender], size: int) -> None:
    """One reader and many, of a shard that all of them have."""
    for one in them:
        curl(f"{one.prefixes['http']}/shard.tar")
    for one in them:
        bench.measure(f"warm, 1: {one.name}", f"{one.prefixes['http']}/shard.tar", one.server)
    for one in them:
        if one.server is not None:
            bench.measure_many(f"warm, {READERS}: {one.name}", f"{one.prefixes['http']}/shard.tar", one.server, size)


def cold(bench: Bench, origin: Server, them: list[Contender], files: Path, plan: Plan, number: int) -> None:
    """Shards that nobody has, over each scheme, for each number of readers."""
    for scheme in plan.schemes:
        for readers in plan.readers:
            names = [f"cold-{scheme}-{number}-{readers}-{i}.tar" for i in range(readers)]
            for name in names:
                os.link(files / f"of-{readers}.tar", files / name)
            for one in them:
                urls = [f"{one.prefixes[scheme]}/{name}" for name in names]
                bench.measure_shards(f"cold {scheme}, {readers}: {one.name}", urls, one.server, origin)


async def capped(bench: Bench, directory: Path, files: Path, size: int, plan: Plan) -> None:
    """An origin that gives one connection 50 MB/s after 30 ms."""
    make_file(files / "capped.tar", size)
    for number in range(plan.rounds):
        os.link(files / "capped.tar", files / f"capped-{number}.tar")
    command = [sys.executable, "-m", "demo.serve_origin", str(files), "--latency-ms", "30", "--rate-mb", "50"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "examples")}
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environ)
    try:
        assert child.stdout is not None
        url = json.loads(await child.stdout.readline())["url"].rstrip("/")
        with ExitStack() as stack:
            mine = stack.enter_context(forebay(directory / "capped", url))
            for number in range(plan.rounds):
                say(f"capped origin, round {number + 1} of {plan.rounds}")
                if number < 2:  # 50 MB/s is no matter of luck, and takes its time
                    bench.measure("capped: direct", f"{url}/capped-{number}.tar")
                bench.measure("capped: forebay", f"{mine.url}/{url.replace('://', '/')}/capped-{number}.tar", mine, writes=True)
    finally:
        child.terminate()
        await child.wait()


def compared(bench: Bench) -> list[tuple[str, str]]:
    """Which rows are set against each other: Forebay against nginx, or the origin itself where there is no nginx."""
    pairs = []
    for row in bench.rows:
        what, _, name = row.partition(": ")
        if name == "forebay":
            pairs += [(row, f"{what}: {other}") for other in ("nginx", "direct") if f"{what}: {other}" in bench.rows]
    return pairs


def print_table(bench: Bench) -> None:
    columns = {"CPU s/GB": "cpu_s_per_gb", "loop": "loop_s_per_gb", "children": "children_s_per_gb", "origin": "origin_s_per_gb"}
    print(
        f"{'':34} {'MB/s':>6} {'lowest':>7} {'highest':>8}"
        + "".join(f" {name:>8}" for name in columns)
        + f" {'first byte, ms (99 of 100)':>27}"
    )
    for name, row in bench.rows.items():
        medians = [row.median(each) for each in columns.values()]
        told = "".join(f" {'' if each is None else f'{each:.2f}':>8}" for each in medians)
        first = row.median("first_byte_s")
        waited = "" if first is None else f"{1000 * first:.0f}"
        print(f"{name:34} {row.rate / 1e6:6.0f} {min(row.rates) / 1e6:7.0f} {max(row.rates) / 1e6:8.0f}{told} {waited:>27}")
    print(f"\n{'':60} {'rate':>6} {'CPU':>6}")
    for one, other in compared(bench):
        cpu = bench.cpu_ratio(one, other)
        print(f"{one:34} against {other:26} {bench.ratio(one, other):5.2f} {'' if cpu is None else f'{cpu:.2f}':>6}")
    for name, value in bench.facts.items():
        print(f"{name:60} {value / 2**20:6.0f} MiB")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--warm", action="store_true", help="only what is stored already")
    only.add_argument("--cold", action="store_true", help="only what is not stored yet")
    parser.add_argument("--capped", action="store_true", help="also an origin that gives one connection 50 MB/s after 30 ms")
    parser.add_argument("--schemes", type=lambda text: tuple(text.split(",")), default=("http", "https"))
    parser.add_argument("--readers", type=numbers, default=(1, 8, 64))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to make, and remove, a working folder (default: the temporary directory)")
    given = parser.parse_args()
    cold_too, warm_too = not given.warm, not given.cold
    plan = Plan(given.size_mb * 10**6, given.rounds, warm_too, cold_too, given.capped, given.schemes, given.readers)
    directory = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=given.directory))
    try:
        bench = run(directory, plan)
    finally:
        shutil.rmtree(directory)
    if given.json:
        ratios = {f"{one} against {other}": bench.ratio(one, other) for one, other in compared(bench)}
        cpu_ratios = {f"{one} against {other}": bench.cpu_ratio(one, other) for one, other in compared(bench)}
        rows = {
            name: {"bytes_s" if each == "rates" else each: values for each, values in asdict(row).items()}
            for name, row in bench.rows.items()
        }
        print(json.dumps({"rows": rows, "ratios": ratios, "cpu_ratios": cpu_ratios, "facts": bench.facts}))
    else:
        print_table(bench)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    main()
