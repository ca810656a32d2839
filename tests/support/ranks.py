"""Several ranks on this machine, each a forked process with a gloo process group, and what became of each of them."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

__all__ = ["End", "run_ranks"]

PATIENCE_S = 240.0  # a rank that has not ended by then hangs, and the test fails


@dataclass
class End:
    """How a rank ended: the value or the error of its function; log lines; and seconds."""

    value: Any = None
    error: str = ""
    said: list[str] = field(default_factory=list)
    seconds: float = 0.0
    hung: bool = False
    gone: bool = False


def run_ranks(size: int, what: Callable[[int], Any], folder: Path, *, group: bool = True) -> list[End]:
    """``what(rank)`` in ``size`` processes at once. Where one exits without a word, its end says so. Kills those that hang."""
    fork = multiprocessing.get_context("fork")
    meeting = folder / f"ranks-{time.monotonic_ns()}"
    ends, processes, pipes = [End(hung=True) for _ in range(size)], [], []
    gc.freeze()  # each rank and each of its workers would go through all that torch has imported, again and again, and copy its pages
    try:
        for rank in range(size):
            here, there = fork.Pipe(duplex=False)
            process = fork.Process(target=_rank, args=(rank, size, what, meeting if group else None, there), daemon=False)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
    finally:
        gc.unfreeze()
    try:
        _collect(pipes, ends)
        for process, end in zip(processes, ends, strict=True):
            process.join(60)
            if end.gone:
                end.error = f"gone without a word: {process.exitcode}"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in pipes:
            pipe.close()
    return ends


def _collect(pipes: list[Connection], ends: list[End]) -> None:
    until, waiting = time.monotonic() + PATIENCE_S, dict(zip(pipes, range(len(pipes)), strict=True))
    while waiting and time.monotonic() < until:
        for pipe in wait(list(waiting), timeout=until - time.monotonic()):
            assert isinstance(pipe, Connection)
            try:
                ends[waiting[pipe]] = pipe.recv()
            except EOFError:
                ends[waiting[pipe]] = End(gone=True)
            del waiting[pipe]


def _rank(rank: int, size: int, what: Callable[[int], Any], meeting: Path | None, answer: Connection) -> None:
    end, began = End(), time.monotonic()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    warnings.simplefilter("ignore")
    with _listening(end.said), _process_group(rank, size, meeting):
        try:
            end.value = what(rank)
        except BaseException as error:
            end.error = f"{type(error).__name__}: {error}"
    end.seconds = time.monotonic() - began
    answer.send(end)
    answer.close()


@contextlib.contextmanager
def _process_group(rank: int, size: int, meeting: Path | None) -> Iterator[None]:
    if meeting is not None:
        dist = importlib.import_module("torch.distributed")  # only in a test that has ranks
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    yield


@contextlib.contextmanager
def _listening(said: list[str]) -> Iterator[None]:
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("forebay_loader").addHandler(handler)
    yield
