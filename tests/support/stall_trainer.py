"""A training whose bottleneck is chosen: ``python stall_trainer.py CASE URLS BATCHES STEP_S [WORKERS]`` prints what the meter said of it.

One line of JSON: {"wall_s", "step_s", "stalls", "said"}, of the batches after the first ``WARM_BATCHES``: by then the workers run.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import forebay_loader as fb

BATCH, WARM_BATCHES = 8, 6
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


def loader_of(case: str, urls: str, workers: int) -> Any:
    data = fb.WebDataset(urls, shardshuffle=False)
    decoder = {"decode": slow_decoder, "locked": locked_decoder}.get(case)
    if decoder is not None:
        data = data.decode(decoder)
    data = data.map(slow_picture if case == "map" else picture).repeat()
    collate = slow_collate if case == "collate" else None
    return fb.WebLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate)


def train(case: str, urls: str, batches: int, step_s: float, workers: int) -> dict[str, Any]:
    found = iter(loader_of(case, urls, workers))
    for _ in range(WARM_BATCHES):
        next(found)
    settled()
    before, began_s, stepped_s = fb.stalls(), time.perf_counter(), 0.0
    for _ in range(batches):
        next(found)
        step_began_s = time.perf_counter()
        time.sleep(step_s)
        stepped_s += time.perf_counter() - step_began_s
    wall_s = time.perf_counter() - began_s
    settled()
    stalls = fb.stalls().since(before)
    return {"wall_s": wall_s, "step_s": stepped_s, "stalls": stalls.as_json(), "said": str(stalls)}


def settled() -> None:
    """Until the causes of all stalls are known."""
    until_s = time.monotonic() + 30
    while fb.stalls().pending_s and time.monotonic() < until_s:
        time.sleep(0.01)


def main() -> None:
    case, urls, batches, step = sys.argv[1:5]
    workers = int(sys.argv[5]) if len(sys.argv) > 5 else 2
    print(json.dumps(train(case, urls, int(batches), float(step), workers)), flush=True)


if __name__ == "__main__":
    main()
