"""What ``fb.memo`` costs: each store by the size of its entries, and a hit beside the decoding that it stands for.

python benchmarks/memo.py [--folder /ssd/bench] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

sys.path[:0] = [str(Path(__file__).parents[1] / part) for part in ("tests", "loader", "proxy")]

import forebay_loader as fb  # noqa: E402
from forebay_loader.memos import opened_memo  # noqa: E402
from forebay_loader.memos.entry import packed  # noqa: E402
from forebay_loader.memos.kept_value import taken_apart  # noqa: E402
from forebay_loader.memos.stores.choice import STORES, opened_store  # noqa: E402

SIZE = 4 << 30
KINDS = {"frames, 1.2 MB": (150, (8, 224, 224, 3)), "features, 8 kB": (3000, (2048,)), "small, 64 B": (10_000, (16,))}


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") + (number * 0x9E3779B97F4A7C15 % (1 << 128)).to_bytes(16, "little")


def value(shape: tuple[int, ...], number: int) -> Any:
    rng = numpy.random.default_rng(number)
    if len(shape) == 4:  # pictures are smooth: what compresses must have something to do
        return numpy.repeat(numpy.repeat(rng.integers(0, 255, (8, 28, 28, 3), "u1"), 8, 1), 8, 2)
    return rng.standard_normal(shape, "f4")


def seconds(what: Callable[[], Any]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def stores(folder: Path) -> None:
    print("| store | entries | write, a second | drawn, a second | in order | disk / arrays |\n|---|---|---|---|---|---|")
    for kind, (most, shape) in KINDS.items():
        for name in STORES:
            count = most // 10 if name in ("npz", "hdf5") and most > 1000 else most  # they take a file each
            entries = [packed(key(number), taken_apart({"x": value(shape, number)})) for number in range(count)]
            whole = sum(value(shape, number).nbytes for number in range(count))
            order = list(range(count))
            random.Random(1).shuffle(order)
            where = folder / f"{name}-{len(shape)}-{most}"
            store = opened_store(name, str(where), SIZE)
            many = max(1, min(count, (16 << 20) // len(entries[0])))
            put = seconds(lambda: [store.put(entries[at : at + many]) for at in range(0, count, many)])  # noqa: B023
            drawn = seconds(lambda: [store.get(key(number)) for number in order])  # noqa: B023
            straight = seconds(lambda: [store.get(key(number)) for number in range(count)])  # noqa: B023
            store.close()
            disk = sum(one.stat().st_blocks * 512 for one in where.rglob("*") if one.is_file())
            print(
                f"| {name} | {kind} | {count / put:,.0f} | {count / drawn:,.0f} | {count / straight:,.0f} | {disk / whole:.2f} |",
                flush=True,
            )
            shutil.rmtree(where)


def clip(folder: Path) -> bytes:
    path = folder / "clip.mp4"
    source = "testsrc2=size=640x360:rate=30:duration=10,noise=alls=12:allf=t"
    if shutil.which("ffmpeg"):
        told = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, "-g", "30", "-pix_fmt", "yuv420p", "-c:v", "libx264", str(path)]
        subprocess.run(told, check=True)
        return path.read_bytes()
    from support.clips import rendered  # noqa: PLC0415

    return rendered()


def hits(folder: Path, rounds: int) -> None:
    data = clip(folder)
    samples = [{"__key__": str(number), "__url__": "x", "mp4": data} for number in range(12)]
    plain = fb.video("uniform(8)", size=224)
    kept = fb.memo(folder=folder / "clips", size="1GB", key="mp4")(plain)
    bare, first, again = [], [], []
    for _ in range(rounds):
        shutil.rmtree(folder / "clips", ignore_errors=True)
        opened_memo._OPEN.clear()
        bare.append(seconds(lambda: list(plain(iter(samples)))))
        first.append(seconds(lambda: list(kept(iter(samples)))))
        memo = next(iter(opened_memo._OPEN.values()))
        memo.writer.queue.drained(60)
        again.append(seconds(lambda: list(kept(iter(samples)))))
        memo.writer.end(10)
    each = [statistics.median(one) / len(samples) * 1000 for one in (bare, first, again)]
    print(f"\na clip of {len(data)} bytes, 8 frames: made in {each[0]:.1f} ms; made, kept {each[1]:.1f}; given again {each[2]:.2f}")
    costs = [(one / other - 1) * 100 for one, other in zip(first, bare, strict=True)]
    print(f"a hit: {each[0] / each[2]:.0f} times as fast; keeping: {', '.join(f'{one:+.1f}' for one in costs)} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="on the disk to measure; a temporary one without it")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        hits(Path(folder), asked.rounds)
        stores(Path(folder))
    print("load", os.getloadavg())


if __name__ == "__main__":
    main()
