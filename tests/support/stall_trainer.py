"""A training whose bottleneck is chosen: ``python stall_trainer.py CASE URLS BATCHES STEP_S [WORKERS]`` prints what the meter said of it.

One line of JSON: {"wall_s", "step_s", "stalls", "said"}, of the batches after the first ``WARM_BATCHES``: by then the workers run.
``rounds`` instead of a case reads the set again and again, metered and not in turn, and prints
[{"metered", "samples", "wall_s", "cpu_s"}, …].
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import forebay_loader as fb
from forebay_loader.meter.stalls import remove

BATCH, WARM_BATCHES = 8, 6
ROUND_BATCH = 32
SAMPLE_COST_S, BATCH_COST_S, LOCKED_S = 0.008, 0.08, 0.03


def spin(seconds: float) -> None:
    """Python code that computes for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def slow_decoder(key: str, data: bytes) -> Any:
    if not key.endswith("bin"):
        return None
    spin(SAMPLE_COST_S)
    return len(data)


def locked_decoder(key: str, data: bytes) -> Any:
    """As a decoder in C that does not let go of the interpreter's lock."""
    if not key.endswith("bin"):
        return None
    ctypes.PyDLL(None).usleep(int(LOCKED_S * 1e6))
    return len(data)


def picture(sample: dict[str, Any]) -> Any:
    return len(sample["bin"]) if isinstance(sample["bin"], bytes) else sample["bin"]


def slow_picture(sample: dict[str, Any]) -> Any:
    spin(SAMPLE_COST_S)
    return picture(sample)


def slow_collate(samples: list[Any]) -> Any:
    spin(BATCH_COST_S)
    return samples


def loader_of(case: str, urls: str, workers: int, batch: int = BATCH) -> Any:
    data = fb.WebDataset(urls, shardshuffle=False)
    decoder = {"decode": slow_decoder, "locked": locked_decoder}.get(case)
    if decoder is not None:
        data = data.decode(decoder)
    data = data.map(slow_picture if case == "map" else picture).repeat()
    collate = slow_collate if case == "collate" else None
    return fb.WebLoader(data, batch_size=batch, num_workers=workers, collate_fn=collate)


def train(case: str, urls: str, batches: int, step_s: float, workers: int) -> dict[str, Any]:
    found = iter(loader_of(case, urls, workers))
    for _ in range(WARM_BATCHES):
        next(found)
    _settled()
    before, began_s, stepped_s = fb.stalls(), time.perf_counter(), 0.0
    for _ in range(batches):
        next(found)
        step_began_s = time.perf_counter()
        time.sleep(step_s)
        stepped_s += time.perf_counter() - step_began_s
    wall_s = time.perf_counter() - began_s
    _settled()
    stalls = fb.stalls().since(before)
    return {"wall_s": wall_s, "step_s": stepped_s, "stalls": stalls.as_json(), "said": str(stalls)}


def _settled() -> None:
    """Until the causes of all stalls are known."""
    until_s = time.monotonic() + 30
    while fb.stalls().pending_s and time.monotonic() < until_s:
        time.sleep(0.01)


def rounds(urls: str, batches: int, count: int, workers: int) -> list[dict[str, Any]]:
    return [{"metered": bool(number % 2), **_round(urls, batches, workers, metered=bool(number % 2))} for number in range(count)]


def _round(urls: str, batches: int, workers: int, *, metered: bool) -> dict[str, Any]:
    loader = loader_of("none", urls, workers, ROUND_BATCH)
    if not metered:
        remove()
    cpu_s, began_s, samples = _cpu_s(), time.perf_counter(), 0
    for number, _ in enumerate(_ended(loader)):
        samples += ROUND_BATCH
        if number == batches:
            break
    return {"samples": samples, "wall_s": time.perf_counter() - began_s, "cpu_s": _cpu_s() - cpu_s}


def _ended(loader: Any) -> Iterator[Any]:
    """Its batches; its workers have ended with them."""
    batches = iter(loader)
    yield from batches


def _cpu_s() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


def main() -> None:
    case, urls, batches, step = sys.argv[1:5]
    workers = int(sys.argv[5]) if len(sys.argv) > 5 else 2
    if case == "rounds":
        found: Any = rounds(urls, int(batches), int(step), workers)
    else:
        found = train(case, urls, int(batches), float(step), workers)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
