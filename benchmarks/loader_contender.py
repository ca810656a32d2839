"""One way to read the samples, in a process of its own, as one DataLoader worker would: forked anew for each reading.

    python benchmarks/loader_contender.py NAME < requests > answers

A request is a line of JSON: {"urls": [...], "passes": n, "check": bool}. The answer: for each pass its seconds (wall, cpu), samples, bytes
of JPEGs, and, where ``check`` asks for it (such a pass is not timed), the crc32 of all keys and values in their order. The data set is
built before the fork, as a training script does it. Imports are late: webdataset's worker has nothing of Forebay's.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Open = Callable[[list[str]], Iterable[Any]]


def webdataset() -> Open:
    import webdataset as wds

    return lambda urls: wds.WebDataset(urls, shardshuffle=False, empty_check=False)


def forebay() -> Open:
    import forebay_loader as fb

    return lambda urls: fb.WebDataset(urls, shardshuffle=False)


def indexed() -> Open:
    from forebay_loader.samples.indexed_shards import IndexedShards

    return IndexedShards


WAYS = {"webdataset": webdataset, "forebay": forebay, "forebay-indexed": indexed}


class Clock:
    """Seconds since it was made: on the wall, and of the processor in this process alone."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def spent(self) -> dict[str, float]:
        return {"wall": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}


def read(samples: Iterable[Any]) -> dict[str, Any]:
    """One pass, timed: every value is at hand as ``bytes``, its length is added up."""
    count = size = 0
    begun = Clock()
    for sample in samples:
        count += 1
        size += len(sample["jpg"])
    return {**begun.spent(), "samples": count, "bytes": size}


def check(samples: Iterable[Any]) -> dict[str, Any]:
    """One pass, looked at closely: types, keys, and the sum of every byte."""
    count = size = crc = 0
    begun = Clock()
    for sample in samples:
        count += 1
        for name in sorted(name for name in sample if not name.startswith("__")):
            value = sample[name]
            if type(value) is not bytes:
                raise TypeError(f"{name} of {sample['__key__']} is {type(value)}")
            crc = zlib.crc32(value, zlib.crc32(f"{sample['__key__']}.{name}".encode(), crc))
        size += len(sample["jpg"])
    return {**begun.spent(), "samples": count, "bytes": size, "crc": crc}


def answer(data: Iterable[Any], look: Callable[[Iterable[Any]], dict[str, Any]], passes: int) -> list[dict[str, Any]]:
    return [look(data) for _ in range(passes)]


def in_child(work: Callable[[], list[dict[str, Any]]]) -> str:
    """The answer of a forked worker, as a line."""
    get, put = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(get)
            with os.fdopen(put, "w") as told:
                told.write(json.dumps(work()))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(put)
    with os.fdopen(get) as told:
        line = told.read()
    os.waitpid(child, 0)
    return line or "null"


def main() -> None:
    name = sys.argv[1]
    way = WAYS[name]()
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        data = way(request["urls"])
        print(in_child(partial(answer, data, check if request.get("check") else read, request["passes"])), flush=True)


if __name__ == "__main__":
    main()
