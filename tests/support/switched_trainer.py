"""A training whose meter is turned on and off in short blocks: ``python switched_trainer.py CASE URLS QUADS [--null] [--added-us N]``.

Blocks come in fours (on, off, off, on). Prints one line of JSON: {"blocks": [{"on", "cpu_s", "wall_s"}, …], "tick_cpu_s"}: processor time
of trainer and workers and wall time, a batch; and what the thread that is awake once a second takes in a second.

Its workers import this file too, and have the same switch: one byte that all see, and a lock that the trainer holds while it is off. Who
waits for a lock takes no processor time.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import forebay_loader as fb
from forebay_loader.base.activity import Activity
from forebay_loader.meter import observer
from forebay_loader.meter.batch_mark import BatchMark
from forebay_loader.meter.report import meter_thread
from forebay_loader.meter.stalls import install, remove

SETTLE_BATCHES = 4  # after the switch was turned: batches that were made before are taken first
NULL = "--null" in sys.argv  # nothing is metered, on or off


@dataclass(frozen=True)
class Case:
    """``batches`` of a block: enough for some looks of a worker's thread, few enough for hundreds of blocks."""

    workers: int
    step_s: float
    batches: int


CASES = {"step": Case(2, 0.005, 16), "ready": Case(2, 0.0, 150), "alone": Case(0, 0.0, 16)}


class Switch:
    """One byte that all processes see, and a lock that the trainer holds while it is off: who waits for it takes no processor time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(self._file, 1)

    @property
    def on(self) -> bool:
        return self._map[0] == 1

    def turn(self, *, on: bool) -> None:
        """By the trainer."""
        if not on:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._map[0] = int(on)
        if on:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def wait(self) -> None:
        """Until it is on."""
        file = os.open(self._path, os.O_RDWR)  # a description of its own: locks are of those
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
        finally:
            os.close(file)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        if not self.on:
            self.wait()


SWITCH = Switch(os.environ["FOREBAY_BENCHMARK_SWITCH"])


def switched(stock: Callable[[BatchMark, Any], Any]) -> Callable[[BatchMark, Any], Any]:
    """The collation's mark, and with it the notes of what reading waits for, from the next batch on."""
    notes = {name: getattr(Activity, name) for name in ("wait", "over", "tell")}
    before = [True]

    def collate(mark: BatchMark, data: Any) -> Any:
        on = SWITCH.on and not NULL
        if on != before[0]:
            before[0] = on
            for name, note in notes.items():
                setattr(Activity, name, note if on else _nothing)
        return stock(mark, data) if on else mark._collate(data)

    return collate


def _nothing(*_: Any) -> None:
    """In place of a note."""


observer.time = SimpleNamespace(sleep=SWITCH.sleep, monotonic_ns=time.monotonic_ns)  # type: ignore[attr-defined]
BatchMark.__call__ = switched(BatchMark.__call__)  # type: ignore[method-assign]


def picture(sample: dict[str, Any]) -> Any:
    return torch.frombuffer(bytearray(sample["bin"]), dtype=torch.uint8)


class Ready(IterableDataset):  # type: ignore[misc, type-arg]
    """The same batch of 64 again and again."""

    def __iter__(self) -> Iterator[Any]:
        batch = {"image": torch.zeros(64, 3, 16, 16, dtype=torch.uint8), "label": torch.zeros(64, dtype=torch.int64)}
        while True:
            yield batch


def batches_of(name: str, workers: int, urls: str) -> Iterator[Any]:
    if name == "ready":
        return iter(DataLoader(Ready(), batch_size=None, num_workers=workers))
    data = fb.WebDataset(urls, shardshuffle=False).map(picture).repeat()
    return iter(fb.WebLoader(data, batch_size=32, num_workers=workers))


def step_of(seconds: float) -> Callable[[], object]:
    """A layer's passes, forwards and backwards, as often as they take that long on a quiet core."""
    if not seconds:
        return lambda: None
    layer, given = torch.nn.Linear(256, 256), torch.ones(64, 256)

    def once() -> None:
        layer(given).sum().backward()

    took_s = []
    for _ in range(300):
        began_s = time.thread_time()
        once()
        took_s.append(time.thread_time() - began_s)
    count = max(1, round(seconds / statistics.median(took_s)))
    return lambda: [once() for _ in range(count)]


def spin(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def blocks(case: Case, batches: Iterator[Any], step: Callable[[], object], quads: int, added_s: float) -> Iterator[dict[str, Any]]:
    clocks = [_clock_of(one.pid) for one in multiprocessing.active_children() if one.pid]
    for number in range(4 * quads):
        on = number % 4 in (0, 3)
        SWITCH.turn(on=on and not NULL)
        (install if on and not NULL else remove)()
        costs = (lambda: (step(), spin(added_s))) if on and added_s else step
        _read(batches, costs, SETTLE_BATCHES)
        before_s, began_s = _cpu_s(clocks), time.perf_counter()
        _read(batches, costs, case.batches)
        wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s(clocks) - before_s
        yield {"on": on, "cpu_s": cpu_s / case.batches, "wall_s": wall_s / case.batches}
    SWITCH.turn(on=True)
    install()


def _read(batches: Iterator[Any], step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        next(batches)
        step()


def _cpu_s(clocks: Sequence[int]) -> float:
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def _clock_of(pid: int) -> int:
    """The processor time of another process, as the kernel numbers such clocks."""
    return (~pid << 3) | 2


def _tick_s() -> float:
    """What the thread that is awake once a second takes of a processor in a second: a look each, and what is told every ten seconds."""
    ticks = meter_thread._made()
    assert ticks is not None
    took: dict[str, float] = {}
    for name, act, times in (("look", ticks.look, 100), ("tell", lambda: ticks.tell(waits=True), 20)):
        began_s = time.thread_time()
        for _ in range(times):
            ticks._tell_at_s = ticks._line_at_s = float("inf")
            act()
        took[name] = (time.thread_time() - began_s) / times
    return took["look"] / meter_thread.TICK_S + took["tell"] / meter_thread.TELL_S


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=list(CASES))
    parser.add_argument("urls")
    parser.add_argument("quads", type=int)
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--added-us", type=float, default=0.0)
    given = parser.parse_args()
    case = CASES[given.case]
    torch.set_num_threads(1)
    meter_thread.THREAD._pid = os.getpid()  # it is timed by itself
    SWITCH.turn(on=True)
    install()
    batches, step = batches_of(given.case, case.workers, given.urls), step_of(case.step_s)
    _read(batches, step, 30)
    found = list(blocks(case, batches, step, given.quads, given.added_us / 1e6))
    print(json.dumps({"blocks": found, "tick_cpu_s": _tick_s()}), flush=True)


if __name__ == "__main__":
    main()
