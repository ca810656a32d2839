"""What it costs to compare whole shards with the digest their origin names: cold reads without one and with each kind, in turn.

    python benchmarks/digests.py [--size-mb 500] [--rounds 5] [--json] [--directory DIR]

The plain rate of each sum, on one core of this very run, predicts the processor time; what is measured beside it is what a cold read took
longer. A shard is hashed while it lands, so the time should be far below the sum of both wherever a second core is free.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "proxy")]

from rivals import _user, forebay, free_port, process, wait_for  # noqa: E402
from serve import curl, make_file, touch_memory  # noqa: E402

from forebay_proxy.core.digests import hasher_of  # noqa: E402

KINDS = ("none", "crc32c", "sha-256", "md5")
PIECE = 2**20
SERVER = "server {{ listen 127.0.0.1:{port}; root {files}; {header} }}\n"
NGINX = """
worker_processes 2; pid {work}/pid; error_log {work}/error.log crit; daemon off;
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; tcp_nopush on; types {{ }} default_type application/x-tar;
{servers} }}
"""


def digest_of(path: Path, algorithm: str) -> tuple[bytes, float]:
    """(the sum, bytes a second) of the file, read from memory."""
    hasher, spent = hasher_of(algorithm), 0.0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            started = time.perf_counter()
            hasher.update(piece)
            spent += time.perf_counter() - started
    return hasher.digest(), path.stat().st_size / spent


def header(kind: str, value: bytes) -> str:
    text = base64.b64encode(value).decode()
    if kind == "none":
        return ""
    return f'add_header Repr-Digest "{kind}=:{text}:";' if kind == "sha-256" else f'add_header x-goog-hash "{kind}={text}";'


@contextmanager
def origins(work: Path, files: Path, headers: dict[str, str]) -> Iterator[dict[str, str]]:
    """One nginx with a server for each kind: their URLs."""
    work.mkdir(parents=True)
    ports = {kind: free_port() for kind in headers}
    servers = "".join(SERVER.format(port=ports[kind], files=files, header=text) for kind, text in headers.items())
    (work / "nginx.conf").write_text(NGINX.format(work=work, servers=servers))
    program = shutil.which("nginx") or sys.exit("nginx is not installed: apt-get install nginx")
    command = [str(program), "-c", str(work / "nginx.conf"), "-e", str(work / "error.log"), "-g", f"user {_user()};"]
    with process(command):
        for port in ports.values():
            wait_for(port)
        yield {kind: f"http://127.0.0.1:{port}" for kind, port in ports.items()}


def run(directory: Path, size: int, rounds: int) -> dict[str, dict[str, float]]:
    files = directory / "files"
    files.mkdir()
    directory.chmod(0o755)
    files.chmod(0o755)
    make_file(files / "shard.tar", size)
    for number in range(rounds):
        os.link(files / "shard.tar", files / f"{number}.tar")
    sums = {kind: digest_of(files / "shard.tar", kind) for kind in KINDS if kind != "none"}
    headers = {kind: header(kind, sums.get(kind, (b"", 0.0))[0]) for kind in KINDS}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with origins(directory / "nginx", files, headers) as urls, forebay(directory / "forebay", *urls.values()) as mine:
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            for kind in KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]:
                touch_memory(directory, size + size // 4)
                before = mine.cpu_s()
                _, took, _ = curl(f"{mine.url}/{urls[kind].replace('://', '/')}/{number}.tar")
                seconds[kind].append(took)
                cpu[kind].append(mine.cpu_s() - before)
    gigabytes = size / 1e9
    table = {}
    for kind in KINDS:
        took, plain = statistics.median(seconds[kind]), statistics.median(seconds["none"])
        table[kind] = {
            "mb_s": size / took / 1e6,
            "cpu_s_per_gb": statistics.median(cpu[kind]) / gigabytes,
            "predicted_cpu_s_per_gb": 0.0 if kind == "none" else 1e9 / sums[kind][1],
            "time_against_none": took / plain,
            "serial_time_against_none": 1.0 if kind == "none" else (plain + size / sums[kind][1]) / plain,
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", type=Path, help="where to make, and remove, a working folder (default: the temporary directory)")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=given.directory))
    try:
        table = run(directory, given.size_mb * 10**6, given.rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if given.json:
        print(json.dumps(table))
        return
    print(f"{'cold read':10} {'MB/s':>6} {'CPU s/GB':>9} {'of it predicted':>16} {'time / none':>12} {'if one after the other':>23}")
    for kind, row in table.items():
        print(
            f"{kind:10} {row['mb_s']:6.0f} {row['cpu_s_per_gb']:9.2f} {row['predicted_cpu_s_per_gb']:16.2f} "
            f"{row['time_against_none']:12.2f} {row['serial_time_against_none']:23.2f}"
        )


if __name__ == "__main__":
    main()
