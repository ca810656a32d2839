"""How long the first batch takes after a resume, beside the first of an epoch: through a real sidecar, from a far origin.

The origin answers after 50 ms and gives 20 MB/s a connection. Every measurement is a trainer of its own, a fresh process with two workers,
timed from ``iter(loader)`` to its first batch; a shuffle buffer of ``--buffer`` samples was full when the state was taken, half way through
the epoch. *Cold*: the sidecar has an empty cache; *warm*: it has every shard, and the sample indexes it made of them.

    python benchmarks/first_batch.py [--json] [--quick] [--buffer 5000] [--rounds 3]

Exits 1 where the first batch after a resume takes longer than 1.25 times the first of an epoch, by the medians.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).resolve().parent), *(str(ROOT / name) for name in ("proxy", "loader", "tests", "examples"))]

from figures import Figure, as_json, at_most, lines  # noqa: E402
from support.sidecar import Sidecar, running  # noqa: E402

SHARDS, SAMPLES, SAMPLE_BYTES = 40, 500, 10_000
WORKERS, BATCH = 2, 64
MOST_RATIO = 1.25
TRAINER = f"""
import json, sys, time
import forebay_loader as fb
pattern, buffer, steps, state, kept = sys.argv[1:]
data = fb.WebDataset(pattern, shardshuffle=True, seed=5).shuffle(int(buffer)).to_tuple("__key__", "bin").batched({BATCH})
loader = fb.WebLoader(data, batch_size=None, num_workers={WORKERS}, pin_memory=False)
if state:
    loader.load_state_dict(fb.load_state(state))
began = time.perf_counter()
batches = iter(loader)
next(batches)
first_s = time.perf_counter() - began
for step in range(1, int(steps)):
    if next(batches, None) is None:
        break
if kept:
    fb.save_state(loader.state_dict(), kept)
print(json.dumps({{"first_s": first_s}}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--buffer", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="forebay-first-") as folder:
        written(Path(folder) / "shards")
        with far_origin(Path(folder) / "shards") as origin:
            for number in range(1 if asked.quick else asked.rounds):
                for name, seconds in one_round(Path(folder) / str(number), origin, asked.buffer):
                    found.setdefault(name, []).append(seconds)
    figures = list(told({name: statistics.median(each) for name, each in found.items()}))
    print(as_json("first_batch", " ".join(sys.argv), figures) if asked.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


def told(medians: dict[str, float]) -> Iterator[Figure]:
    for cache in ("cold", "warm"):
        first, resumed = medians[f"{cache}, an epoch"], medians[f"{cache}, a resume"]
        yield Figure(f"{cache} cache: first batch of an epoch", first, "s")
        yield Figure("  first batch after a resume", resumed, "s")
        yield at_most("  times as long", resumed / first, MOST_RATIO)


def one_round(folder: Path, origin: str, buffer: int) -> Iterator[tuple[str, float]]:
    """What each trainer took, by name. The state is taken half way through the epoch."""
    half, state = SHARDS * SAMPLES // BATCH // 2, str(folder / "state.json")
    pattern = f"{origin}/{{000..{SHARDS - 1:03d}}}.tar"
    with sidecar(folder / "first", origin) as here:
        yield "cold, an epoch", trained(here, pattern, buffer, half, "", state)
        trained(here, pattern, buffer, 10**6, "", "")  # the rest of the cache
        here.wait_complete(SHARDS)
        yield "warm, an epoch", trained(here, pattern, buffer, 1, "", "")
        yield "warm, a resume", trained(here, pattern, buffer, 1, state, "")
    with sidecar(folder / "second", origin) as here:
        yield "cold, a resume", trained(here, pattern, buffer, 1, state, "")


@contextmanager
def sidecar(folder: Path, origin: str) -> Iterator[Sidecar]:
    folder.mkdir(parents=True)
    with running(folder, "--socket", str(folder / "s"), "--cache-size", str(4 * SHARDS * SAMPLES * SAMPLE_BYTES), allow=[origin]) as here:
        yield here


def trained(here: Sidecar, pattern: str, buffer: int, steps: int, state: str, kept: str) -> float:
    """Seconds to the first batch of a trainer in a process of its own."""
    path = ":".join([*sys.path[:5], os.environ.get("PYTHONPATH", "")])
    environ = {
        **os.environ,
        "FOREBAY_URL": here.url,
        "PYTHONPATH": path,
        "XDG_RUNTIME_DIR": str(here.directory),
        "FOREBAY_METER_LINE_S": "0",
    }
    words = [sys.executable, "-c", TRAINER, pattern, str(buffer), str(steps), state, kept]
    ended = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=600)
    if ended.returncode:
        raise RuntimeError(f"the trainer ended with {ended.returncode}: {ended.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return float(found["first_s"])


def written(folder: Path) -> None:
    folder.mkdir()
    content = os.urandom(SAMPLE_BYTES)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for number in range(SAMPLES):
                entry = tarfile.TarInfo(f"{shard:03d}-{number:04d}.bin")
                entry.size = SAMPLE_BYTES
                tar.addfile(entry, io.BytesIO(content))


@contextmanager
def far_origin(folder: Path) -> Iterator[str]:
    """A process of its own: 50 ms and 20 MB/s a connection, as it does unless told otherwise."""
    words = [sys.executable, "-m", "demo.serve_origin", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "examples")})
    assert process.stdout is not None
    try:
        yield str(json.loads(process.stdout.readline())["url"]).rstrip("/")
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    raise SystemExit(main())
