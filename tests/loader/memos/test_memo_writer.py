"""Nobody waits for the writer; processes write into one store; whoever dies leaves what can be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.lengths import LONG

from forebay_loader.base.counters import COUNTS
from forebay_loader.memos.entry import packed
from forebay_loader.memos.errors import StoreFull
from forebay_loader.memos.kept_value import put_together, taken_apart
from forebay_loader.memos.memo_writer import MemoWriter
from forebay_loader.memos.stores.choice import opened_store

SIZE = 64 << 20


def key(number: int) -> bytes:
    return number.to_bytes(8, "little") * 3


def value(number: int) -> Any:
    return {"n": number, "x": numpy.full(5000, number % 251, "u1")}


def entry(number: int) -> bytes:
    return packed(key(number), taken_apart(value(number)))


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "memo")


@pytest.fixture
def made(folder: str) -> Iterator[Callable[..., MemoWriter]]:
    writers = []

    def make(store: Any = None, **how: Any) -> MemoWriter:
        writers.append(MemoWriter(folder, store or opened_store("npz", folder, SIZE), **how))
        return writers[-1]

    yield make
    for one in reversed(writers):
        one.end(5)


def test_what_is_offered_is_written(folder: str, made: Callable[..., MemoWriter]) -> None:
    """And what is told to be damaged leaves."""
    writer, store = made(), opened_store("npz", folder, SIZE)
    assert all(writer.keep(entry(number)) for number in range(5))
    assert writer.drained(10)
    assert all(store.get(key(number)) for number in range(5))
    writer.forget(key(1))
    writer.forget(key(3))
    assert writer.drained(10)
    assert [store.get(key(number)) is None for number in range(5)] == [False, True, False, True, False]


class HeldStore:
    """Full, or failing, or slow."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.wait = error is None

    def put(self, entries: Any) -> None:
        while self.wait:
            time.sleep(0.005)
        if self.error is not None:
            raise self.error


def test_a_slow_store_makes_nobody_wait(folder: str, made: Callable[..., MemoWriter]) -> None:
    """What does not fit into the queue is refused at once."""
    os.mkdir(folder, 0o700)
    store = HeldStore()
    writer, began = made(store, queue_bytes=20_000), time.monotonic()
    taken = [writer.keep(entry(number)) for number in range(20)]
    assert time.monotonic() - began < 2
    assert (taken[0], taken[-1], sum(taken)) == (True, False, 3)
    store.wait = False


@pytest.mark.parametrize("error", [StoreFull("no space"), OSError(5, "I/O error")])
def test_a_full_disk_ends_the_writing_loudly(
    folder: str, made: Callable[..., MemoWriter], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning that says what goes on, counted; offers are refused from then on."""
    os.mkdir(folder, 0o700)
    writer = made(HeldStore(error))
    writer.keep(entry(1))
    until(lambda: writer.ended)
    until(lambda: COUNTS.snapshot()["memo_off"] == 1)
    assert not writer.keep(entry(2))
    until(lambda: "Training goes on" in caplog.text)


WRITES = """
import sys, itertools, numpy
from forebay_loader.memos.entry import packed
from forebay_loader.memos.kept_value import taken_apart
from forebay_loader.memos.stores.choice import opened_store
from forebay_loader.memos.memo_writer import MemoWriter
import time
folder, kind, SIZE = sys.argv[1], sys.argv[2], 64 << 20
def entry(number):
    return packed(number.to_bytes(8, "little") * 3, taken_apart({"n": number, "x": numpy.full(5000, number % 251, "u1")}))
writer = MemoWriter(folder, opened_store(kind, folder, SIZE))
for number in itertools.cycle(range(400)):
    while not writer.keep(entry(number)):
        time.sleep(0.001)
    if number == 30:
        writer.drained(60)
        print("on", flush=True)
"""


@pytest.mark.parametrize("kind", ["lmdb", "npz", "hdf5"])
def test_killed_writers_of_one_store_leave_nothing_wrong(folder: str, kind: str) -> None:
    """Two at once, kill -9 under load, again and again: what either wrote is there, and each entry there is the one that was put."""
    for turn in range(20 if LONG else 3 if kind == "lmdb" else 1):
        several = [subprocess.Popen([sys.executable, "-c", WRITES, folder, kind], stdout=subprocess.PIPE) for _ in range(2)]
        for writer in several:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"on\n"
        time.sleep(0.013 * (turn % 7))
        for writer in several:
            with writer:
                os.kill(writer.pid, signal.SIGKILL)
        store = opened_store(kind, folder, SIZE)
        for number in range(400):
            kept = store.get(key(number))
            assert kept is not None or number >= 30
            if kept is not None:
                found = put_together(kept)
                assert found["n"] == number
                assert numpy.array_equal(found["x"], value(number)["x"])
        store.close()
