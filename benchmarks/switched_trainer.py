"""A training whose meter is turned on and off in short blocks: ``python switched_trainer.py CASE URLS FOURS [--null] [--added-us N] …``.

Blocks come in fours, each (on, off, off, on) or (off, on, on, off), by chance: nothing in the training that comes round again meets one
more often than the other. Prints one line of JSON: {"on": [block, …], "next": [[block, ns], …], "made": [[block, ns], …],
"walls": [ns, …], "batch_cpu_s", "batch_wall_s", "looks": [ns, …], "looks_a_batch", "looks_a_second", "tick_cpu_s"}: the metered blocks;
processor time of each call of ``next``, and of the worker for each batch that it made; wall time of each block; of all processes together,
a batch; processor time of each look, how many there were for a batch that was metered, how many there are in a second as shipped, and what
the thread takes in a second that is awake as often: that one runs by itself.

Who looks sleeps while the meter is off, and only time in which it is on counts as its rest: so what a look does to the thread that it looks
at is in that thread's own clock. Workers import this file too, and have the same switch.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import multiprocessing
import os
import random
import select
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

import forebay_loader as fb
from forebay_loader.base.activity import Activity
from forebay_loader.meter import observer
from forebay_loader.meter.observer import Observer
from forebay_loader.meter.process_page import BatchMark
from forebay_loader.meter.report import meter_thread
from forebay_loader.meter.stalls import install


@dataclass(frozen=True)
class Case:
    """``batches`` of a block, and ``first`` ones before them that are not measured: they were made before the switch was turned.

    Together they are a pass over the set, where there is one: every block reads the same shards.
    """

    workers: int
    step_s: float
    first: int
    batches: int


CASES = {"step": Case(2, 0.005, 3, 21), "ready": Case(2, 0.0, 8, 40), "alone": Case(0, 0.0, 1, 23)}
MOST_FOURS = 10_000
MORE_LOOKS = 10


class Switch:
    """The number of a block, that trainer and workers see. A pipe has a byte in it while the meter is on, another while it is off."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "r+b") as file:
            self._block = memoryview(mmap.mmap(file.fileno(), 4)).cast("i")
        self.null = "--null" in sys.argv or os.environ.get("FOREBAY_BENCHMARK_NULL") == "1"
        chance = random.Random(0)
        self._turned = [chance.random() < 0.5 for _ in range(MOST_FOURS)]
        self._pipes = {}
        for on in (True, False):
            name = f"{path}.{on}"
            with suppress(FileExistsError):
                os.mkfifo(name)
            self._pipes[on] = os.open(name, os.O_RDWR | os.O_NONBLOCK)

    @property
    def block(self) -> int:
        return self._block[0]

    @block.setter
    def block(self, number: int) -> None:
        self._block[0] = number
        with suppress(BlockingIOError):
            os.read(self._pipes[not self.on], 1)
            os.write(self._pipes[self.on], b"x")

    def begin(self) -> None:
        """The trainer's alone."""
        os.write(self._pipes[self.on], b"x")

    @property
    def on(self) -> bool:
        return self.is_metered(self._block[0]) and not self.null

    def is_metered(self, block: int) -> bool:
        return (block % 4 in (0, 3)) is not self._turned[block // 4]

    def wait(self, on: bool, seconds: float | None = None) -> None:
        """Until it is so, or for that long."""
        select.select([self._pipes[on]], [], [], seconds)


SWITCH = Switch(os.environ["FOREBAY_BENCHMARK_SWITCH"])


class Made:
    """What this worker's main thread took of a processor for each batch that was made within one block."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self._before = -1, 0

    def add(self) -> None:
        block, now_ns = SWITCH.block, time.thread_time_ns()
        if self._before[0] == -1:
            util.Finalize(None, self._tell, exitpriority=1)
        elif self._before[0] == block:
            self.batches.append((block, now_ns - self._before[1]))
        self._before = block, now_ns

    def _tell(self) -> None:
        Path(f"{SWITCH.path}.{os.getpid()}.made").write_text(json.dumps(self.batches), "ascii")


MADE = Made()


def switched(metered: Callable[..., Any], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Either: what chooses costs both alike, and no class changes while it is measured."""
    return lambda *given: metered(*given) if SWITCH.on else stock(*given)


class Looks:
    """What each look takes of a processor, from one rest to the next: where the meter was on all the time.

    There are ten times as many as shipped: so each batch meets one, and an upper bound of what they do to it needs no luck.
    """

    def __init__(self) -> None:
        self.took: list[int] = []
        self.count = 0
        self._before_ns = 0
        self._told = False

    def rest(self, seconds: float) -> None:
        if not self._told:
            self._told = True
            util.Finalize(None, self.tell, exitpriority=1)
        seconds /= MORE_LOOKS
        self.count += 1
        while seconds > 0:
            is_whole = SWITCH.on
            SWITCH.wait(on=True)
            began_s, before_ns = time.monotonic(), time.thread_time_ns()
            if self._before_ns:
                self.took.append(before_ns - self._before_ns)
            SWITCH.wait(on=False, seconds=seconds)
            seconds -= time.monotonic() - began_s
            self._before_ns = before_ns if is_whole and seconds <= 0 else 0

    def tell(self) -> None:
        Path(f"{SWITCH.path}.{os.getpid()}.looks").write_text(json.dumps({"took": self.took, "count": self.count}), "ascii")


LOOKS = Looks()


def put_switch() -> None:
    """Into the parts of the meter that any process has."""
    Observer._rest = lambda _, seconds: LOOKS.rest(seconds)  # type: ignore[method-assign,assignment]
    observer.FIRST_LOOKS = 0
    collate = switched(BatchMark.__call__, lambda mark, data: mark._collate(data))

    def noted(mark: BatchMark, data: Any) -> Any:
        batch = collate(mark, data)
        MADE.add()
        return batch

    BatchMark.__call__ = noted  # type: ignore[method-assign]
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


def blocks(case: Case, batches: Iterator[Any], step: Callable[[], object], count: int, added_s: float) -> tuple[list[Any], list[int]]:
    """(of each call of ``next`` its block and its processor time, of each block its wall time), in ns."""
    calls, walls = [], []
    for number in range(count):
        SWITCH.block = number
        added = added_s if SWITCH.is_metered(number) else 0.0
        for at in range(case.first + case.batches):
            if at == case.first:
                began_ns = time.perf_counter_ns()
            before_ns = time.thread_time_ns()
            next(batches)
            if added:
                spin(added)
            after_ns = time.thread_time_ns()
            if at >= case.first:
                calls.append((number, after_ns - before_ns))
            step()
        walls.append(time.perf_counter_ns() - began_ns)
    return calls, walls


def _cpu_s(clocks: Sequence[int]) -> float:
    return time.process_time() + sum(map(time.clock_gettime, clocks))


def _clock_of(pid: int) -> int:
    """The processor time of another process, as the kernel numbers such clocks."""
    return (~pid << 3) | 2


def _looks() -> tuple[list[int], int]:
    """(what each look took, how many there were), of workers that have ended and of this process."""
    told = [json.loads(path.read_text("ascii")) for path in Path(SWITCH.path).parent.glob("*.looks")]
    return [*chain.from_iterable(one["took"] for one in told), *LOOKS.took], sum(one["count"] for one in told) + LOOKS.count


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
    parser.add_argument("fours", type=int)
    parser.add_argument("--null", action="store_true")
    parser.add_argument("--added-us", type=float, default=0.0)
    given = parser.parse_args()
    case = CASES[given.case]
    torch.set_num_threads(1)
    if given.null:
        os.environ["FOREBAY_BENCHMARK_NULL"] = "1"  # for workers
    meter_thread.THREAD._pid = os.getpid()  # it is timed by itself
    install()
    put_switch_into_next()
    SWITCH.begin()
    batches, step = batches_of(given.case, case.workers, given.urls), step_of(case.step_s)
    for _ in range(30):
        next(batches)
    clocks = [_clock_of(one.pid) for one in multiprocessing.active_children() if one.pid]
    cpu_s, began_s, count = _cpu_s(clocks), time.perf_counter(), 4 * given.fours
    calls, walls = blocks(case, batches, step, count, given.added_us / 1e6)
    wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s(clocks) - cpu_s
    read = count * (case.first + case.batches)
    del batches  # its workers end, and tell
    gc.collect()
    told = [json.loads(path.read_text("ascii")) for path in Path(SWITCH.path).parent.glob("*.made")] if case.workers else []
    looks, looked = _looks()
    said = {
        "on": [block for block in range(count) if SWITCH.is_metered(block)],
        "next": calls,
        "made": list(chain.from_iterable(told)),
        "walls": walls,
        "batch_cpu_s": cpu_s / read,
        "batch_wall_s": wall_s / read,
        "looks": looks,
        "looks_a_batch": looked / (read / 2),
        "looks_a_second": max(case.workers, 1) / observer.STEP_S,
        "tick_cpu_s": _tick_s(),
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
