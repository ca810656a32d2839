"""The stores of ``fb.memo``: many readers at random, a million small entries. Writes docs/stores.json, which docs/stores.py draws.

    python benchmarks/memo_stores.py docs/stores.json         some four minutes and 4 GB below the folder for temporary files
    python benchmarks/memo_stores.py --quick FILE             small: whether it works

Readers are processes that begin together and read at random for some seconds, mostly from the page cache. Their rate is given of the clock,
and of a second of processor, which says on a busy machine too whether they cost each other anything. Into a store that is too slow for a
million entries go as many as it writes in 30 s; the file says how many.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy

from forebay_loader.memos.entry import packed
from forebay_loader.memos.kept_value import taken_apart
from forebay_loader.memos.stores.choice import STORES, opened_store

KINDS = {"frames": (200, 16 * 224 * 224 * 3), "features": (3_000, 8_000), "small": (10_000, 64)}  # entries, bytes of each
READERS = (1, 4, 16)
SIZE_BYTES = 16 << 30
COMMIT = 50_000  # entries; of large ones as many as are 16 MB, as a memo's writer does


def keys(count: int) -> list[bytes]:
    """As those of ``fb.memo`` are: digests, in no order."""
    return [blake2b(number.to_bytes(8, "little"), digest_size=24).digest() for number in range(count)]


def entries(kind: str, found: list[bytes], size: int) -> Iterator[list[bytes]]:
    """Entries of ``size`` bytes, as many together as a memo writes at a time."""
    kept = taken_apart({"array": numpy.random.default_rng(1).integers(0, 255, size, numpy.uint8)})
    each = max(1, min(COMMIT if kind == "lmdb" else 100, (16 << 20) // size))
    for first in range(0, len(found), each):
        yield [packed(key, kept) for key in found[first : first + each]]


def written(kind: str, folder: str, found: list[bytes], size: int, limit_s: float) -> tuple[int, float]:
    """How many entries were written, within ``limit_s`` or a little more, and the seconds for them; making them is not counted."""
    store, took_s, count, begin = opened_store(kind, folder, SIZE_BYTES), 0.0, 0, time.perf_counter()
    for together in entries(kind, found, size):
        started = time.perf_counter()
        store.put(together)
        took_s += time.perf_counter() - started
        count += len(together)
        if time.perf_counter() - begin > limit_s:
            break
    store.close()
    return count, took_s


def read(kind: str, folder: str, found: list[bytes], seconds: float, seed: int, start: Any, told: Any) -> None:
    """One reader: how many entries it read, in how many seconds of the clock, and of the processor."""
    store, chance, count = opened_store(kind, folder, SIZE_BYTES), random.Random(seed), 0
    start.wait()
    begin, processor = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        if store.get(chance.choice(found)) is None:
            raise LookupError("an entry is not there")
        count += 1
    told.put((count, time.perf_counter() - begin, time.process_time() - processor))


def reads_s(kind: str, folder: str, found: list[bytes], readers: int, seconds: float) -> list[float]:
    """Entries a second of the clock, of all readers together; and a second of processor."""
    spawned = multiprocessing.get_context("fork")
    start, told = spawned.Barrier(readers), spawned.Queue()
    processes = [spawned.Process(target=read, args=(kind, folder, found, seconds, seed, start, told)) for seed in range(readers)]
    for one in processes:
        one.start()
    done = [told.get(timeout=120 + seconds) for _ in processes]
    for one in processes:
        one.join()
    of_processor = sum(count for count, _, _ in done) / sum(processor_s for _, _, processor_s in done)
    return [round(sum(count / took_s for count, took_s, _ in done), 1), round(of_processor, 1)]


def many(kind: str, folder: str, count: int, limit_s: float) -> dict[str, float]:
    """Very many entries of 64 bytes: to write, to open, to look one up, and on the disk."""
    found = keys(count)
    there, took_s = written(kind, folder, found, 64, limit_s)
    begin = time.perf_counter()
    store = opened_store(kind, folder, SIZE_BYTES)
    assert store.get(found[0]) is not None
    opened_s = time.perf_counter() - begin
    looked_up = random.Random(2).sample(found[:there], min(there, 20_000))
    begin = time.perf_counter()
    assert all(store.get(key) is not None for key in looked_up)
    lookup_s = (time.perf_counter() - begin) / len(looked_up)
    store.close()
    on_disk = int(subprocess.run(["du", "-s", "-B1", folder], capture_output=True, check=True, text=True).stdout.split()[0])
    return {"entries": there, "written_s": took_s, "opened_ms": 1e3 * opened_s, "lookup_us": 1e6 * lookup_s, "bytes_each": on_disk / there}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="small")
    options.add_argument("file", type=Path, help="where the figures go")
    given = options.parse_args()
    share, seconds, limit_s = (100, 0.2, 1.0) if given.quick else (1, 1.0, 30.0)
    told: dict[str, Any] = {"readers": list(READERS), "reads_s": {}, "many": {}}
    for kind in STORES:
        told["reads_s"][kind] = {}
        for name, (count, size) in KINDS.items():
            with tempfile.TemporaryDirectory(prefix="forebay-stores-") as base:
                folder = os.path.join(base, "memo")
                found = keys(max(10, count // share // (1 if kind == "lmdb" or name == "frames" else 10)))
                found = found[: written(kind, folder, found, size, limit_s)[0]]
                told["reads_s"][kind][name] = [reads_s(kind, folder, found, readers, seconds) for readers in READERS]
                print(kind, name, told["reads_s"][kind][name], f"load {os.getloadavg()[0]:.1f}", flush=True)
        with tempfile.TemporaryDirectory(prefix="forebay-stores-") as base:
            figures = many(kind, os.path.join(base, "memo"), 1_000_000 // share, 600.0 if kind == "lmdb" else limit_s)
            told["many"][kind] = {name: float(f"{value:.4g}") for name, value in figures.items()}
            print(kind, told["many"][kind], flush=True)
    given.file.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
