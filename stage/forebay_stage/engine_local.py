"""Tasks in processes of this machine. One that dies in a task, by a signal or for memory, costs that task another try and nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from forebay_proxy.core.errors import ForebayError
from forebay_stage.errors import StageError
from forebay_stage.task import Finished, MapTask, Task, run_task

__all__ = ["MOST_TRIES", "Engine", "LocalEngine", "about"]

MOST_TRIES = 3  # of a task whose process dies: what kills it thrice is in the shard, or in the machine


class Engine(Protocol):
    """Runs tasks, and gives what they made as it comes. Raises the ``StageError`` of the first that fails. Closed, it ends."""

    def run(self, tasks: Iterable[Task]) -> Generator[Finished]: ...


class LocalEngine:
    """At most ``processes`` at once, each fresh (spawned) and busy with one task at a time. ``work`` does a task there."""

    def __init__(self, processes: int, work: Callable[[Any], Any] = run_task) -> None:
        self._processes = processes
        self._work = work

    def run(self, tasks: Iterable[Task]) -> Generator[Finished]:
        coming, again = iter(tasks), list[tuple[Task, int]]()
        with tempfile.TemporaryDirectory(prefix="forebay-stage-") as scratch, contextlib.ExitStack() as ending:
            start = partial(_Worker, self._work, scratch, ending)
            idle: list[_Worker] = []
            busy: dict[Connection, _Worker] = {}
            while True:
                while len(busy) < self._processes and (given := _next(again, coming)):
                    worker = idle.pop() if idle else start()
                    worker.give(*given)
                    busy[worker.connection] = worker
                if not busy:
                    return
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    worker = busy.pop(ready)
                    try:
                        answer = ready.recv()
                    except (EOFError, OSError):
                        again.append((worker.task, worker.tries + 1))
                        _check_tries(worker)
                        continue
                    idle.append(worker)
                    if isinstance(answer, Exception):
                        raise answer
                    yield answer


def about(task: Task) -> str:
    """What a person knows a task by."""
    return f"shard {task.name}" if isinstance(task, MapTask) else f"output {task.output}"


def _next(again: list[tuple[Task, int]], coming: Iterator[Task]) -> tuple[Task, int] | None:
    if again:
        return again.pop()
    task = next(coming, None)
    return None if task is None else (task, 1)


def _check_tries(worker: _Worker) -> None:
    worker.process.join()
    code = worker.process.exitcode or 0
    if worker.tries < MOST_TRIES:
        return
    how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    raise StageError(
        f"{about(worker.task)}: the process that made {worker.task.output} of it died {MOST_TRIES} times, last by {how}",
        next_step="SIGKILL means no memory, as a rule: fewer --processes, or a step that holds less; then the same command goes on",
    )


class _Worker:
    """A process and the connection to it. ``task`` is what it was given last, for the time number ``tries``."""

    task: Task
    tries: int

    def __init__(self, work: Callable[[Any], Any], scratch: str, ending: contextlib.ExitStack) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks and open connections
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, scratch), daemon=True)
        self.process.start()
        theirs.close()  # so that its death is the end of the connection
        ending.callback(self._end)

    def give(self, task: Task, tries: int) -> None:
        self.task, self.tries = task, tries
        with contextlib.suppress(OSError):  # it is gone: the answer that does not come says so
            self.connection.send(task)

    def _end(self) -> None:
        self.process.kill()  # what it makes is no use any more, and nothing at the destination is ever half
        self.process.join()
        self.process.close()
        self.connection.close()


def _serve(connection: Connection, work: Callable[[Any], Any], scratch: str) -> None:
    """In the process: do tasks until nobody gives any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends its processes
    os.dup2(2, 1)  # what a step prints must not come between the driver's lines for programs
    tempfile.tempdir = scratch
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    with contextlib.suppress(EOFError):
        while True:
            task = connection.recv()
            try:
                answer: Any = work(task)
            except ForebayError as error:
                answer = error
            with contextlib.suppress(BrokenPipeError):  # a driver that was killed wants no answer, and nobody a traceback of that
                connection.send(answer)


def _end_with_parent(scratch: str) -> None:
    """A driver that was killed has nobody to clean up after it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)
