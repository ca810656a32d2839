"""A training whose meter is turned on and off in short blocks: ``python switched_trainer.py CASE URLS QUADS [--null] [--added-us N]``.

Blocks come in fours (on, off, off, on). Prints one line of JSON: {"blocks": [{"on", "cpu_s", "wall_s"}, …], "looks_cpu_s", "tick_cpu_s"}:
processor time of trainer and workers, and wall time, a batch; what the threads that look take in a second, and what the one does that is
awake once a second: those run in all blocks. Its workers import this file too, and have the same switch.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import forebay_loader as fb
from forebay_loader.base.activity import Activity
from forebay_loader.meter.batch_mark import BatchMark
from forebay_loader.meter.observer import Observer
from forebay_loader.meter.report import meter_thread
from forebay_loader.meter.stalls import install


@dataclass(frozen=True)
class Case:
    """``batches`` of a block: what takes some ten milliseconds, before the machine has changed its mind.

    ``first``: not measured, after the switch was turned: those that were made before.
    """

    workers: int
    step_s: float
    first: int
    batches: int


CASES = {"step": Case(2, 0.005, 3, 6), "ready": Case(2, 0.0, 8, 40), "alone": Case(0, 0.0, 1, 5)}


class Switch:
    """One byte that trainer and workers see."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 1)

    @property
    def on(self) -> bool:
        return self._map[0] == 1

    def turn(self, *, on: bool) -> None:
        self._map[0] = int(on)


SWITCH = Switch(os.environ["FOREBAY_BENCHMARK_SWITCH"])


def switched(metered: Callable[..., Any], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Either: what chooses costs both alike, and no class changes while it is measured."""
    return lambda *given: metered(*given) if SWITCH.on else stock(*given)


def put_switch() -> None:
    """Into the parts of the meter that any process has."""
    run = Observer._run

    def told(looking: Observer, pid: int) -> None:
        with open(f"{SWITCH.path}.{pid}", "w", encoding="ascii") as file:
            file.write(str(threading.get_native_id()))
        run(looking, pid)

    Observer._run = told  # type: ignore[method-assign]
    BatchMark.__call__ = switched(BatchMark.__call__, lambda mark, data: mark._collate(data))  # type: ignore[method-assign]
    for name in ("wait", "over", "tell"):
        setattr(Activity, name, switched(getattr(Activity, name), lambda *_: None))


def put_switch_into_next() -> None:
    """Of torch's loaders, which are metered."""
    kind: Any = _BaseDataLoaderIter
    metered = kind.__next__
    kind.__next__ = switched(metered, metered.__wrapped__)
    kind.__next__.__forebay_meter__ = True  # it is not wrapped again


put_switch()


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


def blocks(
    case: Case, batches: Iterator[Any], step: Callable[[], object], quads: int, *, null: bool, added_s: float
) -> Iterator[dict[str, Any]]:
    clocks = [_clock_of(one.pid) for one in multiprocessing.active_children() if one.pid]
    for number in range(4 * quads):
        on = number % 4 in (0, 3)
        SWITCH.turn(on=on and not null)
        costs = (lambda: (step(), spin(added_s))) if on and added_s else step
        _read(batches, costs, case.first)
        before_s, began_s = _cpu_s(clocks), time.perf_counter()
        _read(batches, costs, case.batches)
        wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s(clocks) - before_s
        yield {"on": on, "cpu_s": cpu_s / case.batches, "wall_s": wall_s / case.batches}
    SWITCH.turn(on=True)


def _read(batches: Iterator[Any], step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        next(batches)
        step()


def _cpu_s(clocks: Sequence[int]) -> float:
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def _clock_of(pid: int) -> int:
    """The processor time of another process, as the kernel numbers such clocks."""
    return (~pid << 3) | 2


def _looks_s() -> float:
    """Processor time of the threads that look, in workers or here, until now."""
    total_ns = 0
    for pid in [os.getpid(), *(one.pid for one in multiprocessing.active_children())]:
        with suppress(FileNotFoundError):
            thread = Path(f"{SWITCH.path}.{pid}").read_text("ascii")
            total_ns += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text("ascii").split()[0])
    return total_ns / 1e9


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
    put_switch_into_next()
    batches, step = batches_of(given.case, case.workers, given.urls), step_of(case.step_s)
    _read(batches, step, 30)
    before_s, began_s = _looks_s(), time.perf_counter()
    found = list(blocks(case, batches, step, given.quads, null=given.null, added_s=given.added_us / 1e6))
    looks_s = (_looks_s() - before_s) / (time.perf_counter() - began_s)
    print(json.dumps({"blocks": found, "looks_cpu_s": looks_s, "tick_cpu_s": _tick_s()}), flush=True)


if __name__ == "__main__":
    main()
