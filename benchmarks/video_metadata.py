"""What is known of clips, looked up by forked workers at once: the mapped table, a ``multiprocessing.Manager`` dict, an inherited dict.

    python benchmarks/video_metadata.py [--clips 20000] [--frames 300] [--workers 4] [--seconds 3] [--json]

Look-ups are of random clips, counted over all workers by the clock. *Private* is the memory that one worker has for itself more at the end
than at its start: a dict that is inherited is copied page by page as its reference counts are written. *Ready* is what it takes until the
first look-up: writing is not counted for the table, which the scan does once, and is for the others, whose process holds them.
Exits 1 where the table is not the fastest of those that are shared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "loader"), str(ROOT / "proxy")]

from forebay_loader.videos.clip_info import ClipInfo  # noqa: E402
from forebay_loader.videos.metadata.clip_table import ClipTable  # noqa: E402
from forebay_loader.videos.metadata.motion import SPANS  # noqa: E402
from forebay_loader.videos.metadata.record import ClipRecord, packed  # noqa: E402
from forebay_loader.videos.metadata.table_file import TableWriter, clip_name  # noqa: E402

Find = Callable[[str], Any]
FORK = multiprocessing.get_context("fork")


def info_of(number: int, frames: int) -> ClipInfo:
    times_s = array("d", [frame / 30 for frame in range(frames)])
    energy = array("f", [(number + span) % 7 / 7 for span in range(SPANS)])
    return ClipInfo(frames, times_s, frames / 30, 1280, 720, 0, tuple(range(0, frames, 30)), 48_000, energy, energy)


def name_of(number: int) -> str:
    return clip_name(f"s3://bucket/train-{number // 100:06}.tar", f"{number:08}.mp4")


def private_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def look_up(find: Find, clips: int, seed: int, seconds: float, start: Any, found: Any) -> None:
    """A worker: how often it looked up, and what memory it took for that."""
    chance = random.Random(seed)
    names = [name_of(chance.randrange(clips)) for _ in range(5000)]
    before, count = private_bytes(), 0
    start.wait()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name in names[count % 5000 : count % 5000 + 100]:
            if find(name).frames < 1:
                raise AssertionError(name)
        count += 100
    found.put((count / seconds, private_bytes() - before))


def measure(find: Find, clips: int, workers: int, seconds: float) -> dict[str, float]:
    start, found = FORK.Barrier(workers), FORK.Queue()
    children = [FORK.Process(target=look_up, args=(find, clips, seed, seconds, start, found)) for seed in range(workers)]
    for child in children:
        child.start()
    answers = [found.get(timeout=60 + seconds) for _ in children]
    for child in children:
        child.join()
    return {"lookups_s": sum(rate for rate, _ in answers), "private_mb": sum(more for _, more in answers) / workers / 1e6}


def run(clips: int, frames: int, workers: int, seconds: float) -> dict[str, dict[str, float]]:
    infos = {name_of(number): info_of(number, frames) for number in range(clips)}
    found = {}
    with tempfile.TemporaryDirectory() as folder, FORK.Manager() as manager:
        path = Path(folder, "set.clips")
        with TableWriter(path) as writer:
            for name, info in infos.items():
                writer.add(name.encode(), packed(ClipRecord(name, 1, "", info)))
        began = time.perf_counter()
        table = ClipTable(path)
        table.find(name_of(0))
        ready = time.perf_counter() - began
        found["table"] = {**measure(table.find, clips, workers, seconds), "ready_s": ready, "file_mb": path.stat().st_size / 1e6}
        began = time.perf_counter()
        shared = manager.dict(infos)
        ready = time.perf_counter() - began
        found["manager"] = {**measure(shared.__getitem__, clips, workers, seconds), "ready_s": ready}
        found["inherited"] = {**measure(infos.__getitem__, clips, workers, seconds), "ready_s": 0.0}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=20_000)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = run(asked.clips, asked.frames, asked.workers, asked.seconds)
    faster = found["table"]["lookups_s"] / found["manager"]["lookups_s"]
    if asked.json:
        print(json.dumps(found))
    else:
        for name, figures in found.items():
            rate, private, ready = figures["lookups_s"], figures["private_mb"], figures["ready_s"]
            print(f"{name:10} {rate:12,.0f} look-ups/s  {private:7.1f} MB private  ready in {ready:.3f} s")
        print(f"the table has {found['table']['file_mb']:.1f} MB and is {faster:.1f} times as fast as the manager")
    return 0 if faster > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
