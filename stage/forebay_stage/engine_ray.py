"""Tasks on the nodes of a Ray cluster. Each worker reads through the sidecar of its node, which it joins or starts.

A task here is a task of Ray (``ray.remote``), not a row of a Ray Data set. That wants all tasks before the first runs, and one of a shuffle
lists each of its samples; it gives a result when the next block is there; and of a worker that dies thrice it does not say which task
it had. Where a task runs, how often, and when nodes are added is left to Ray in both.
"""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from forebay_proxy.cli.output import notice
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.wire.protocol.launch import LaunchedSidecar, LaunchError, join_or_start
from forebay_stage.destination import destination_of
from forebay_stage.engine_local import MOST_TRIES, about
from forebay_stage.errors import StageError, StageRefused
from forebay_stage.stage_lock import SPEC
from forebay_stage.task import Finished, Task, run_task

__all__ = ["RayEngine", "ray_module", "run_on_node"]

_FEWEST_GIVEN = 64  # tasks that wait for a place are what Ray adds nodes for
_SCRATCH = "forebay-stage-ray-"


def ray_module() -> Any:
    """Raises ``ConfigError`` without Ray."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            "--engine ray needs Ray, which is not installed here", next_step="pip install 'forebay[ray]', here and on each node"
        ) from error


class RayEngine:
    """The cluster at ``address`` (None: as ``ray.init()`` finds or starts one). ``job`` is what sidecars call this stage.

    ``at_once``: so many tasks at most; None is as many as Ray has places for. ``work`` does a task there.
    """

    def __init__(self, address: str | None, at_once: int | None, job: str, work: Callable[[Any], Finished] | None = None) -> None:
        self._address = address
        self._at_once = at_once
        self._job = job
        self._work = work or run_on_node

    def run(self, tasks: Iterable[Task]) -> Generator[Finished]:
        ray = _connected(self._address)
        answer = ray.remote(_answer)
        coming, given, said = iter(tasks), dict[Any, Task](), set[str]()
        try:
            while True:
                most = self._at_once or max(_FEWEST_GIVEN, 2 * int(ray.cluster_resources().get("CPU", 0)))
                while len(given) < most and (task := next(coming, None)):
                    options = {"num_cpus": 1, "max_retries": MOST_TRIES - 1, "name": f"forebay stage {task.output}"}
                    given[answer.options(**options).remote(self._work, task, self._job)] = task
                if not given:
                    return
                for ready in ray.wait(list(given))[0]:
                    told = _told(ray, ready, given.pop(ready))
                    if told.trouble and told.trouble not in said:
                        said.add(told.trouble)
                        notice(told.trouble)
                    if isinstance(told.made, Exception):
                        raise told.made
                    yield told.made
        finally:
            for left in given:
                ray.cancel(left, force=True)


@dataclass(frozen=True)
class _Answer:
    """What a node sends back. ``trouble`` is "" unless it reads without a sidecar."""

    made: Finished | ForebayError
    trouble: str


def _connected(address: str | None) -> Any:
    ray = ray_module()
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)  # stdout is for programs
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise StageRefused(
                f"no Ray cluster at {address or 'the address that Ray takes by default'}: {_line(error)}",
                next_step="start one with 'ray start --head', or name a running one: --address HOST:6379",
            ) from error
    return ray


def _told(ray: Any, ready: Any, task: Task) -> _Answer:
    """Raises ``StageError`` where Ray gave up."""
    try:
        told: _Answer = ray.get(ready)
        return told
    except ray.exceptions.RayTaskError as error:
        raise StageError(
            f"{about(task)}: a node cannot run {task.output}: {_line(error)}",
            next_step="each node needs the same version of forebay[stage,ray]; then the same command goes on",
        ) from None
    except ray.exceptions.RayError as error:
        raise StageError(
            f"{about(task)}: the worker that made {task.output} of it was lost {MOST_TRIES} times, last: {_line(error)}",
            next_step="Ray's log says why; no memory, as a rule: a step that holds less, or nodes with more; then the same command goes on",
        ) from None


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # of a task it is a traceback, whose last line is the cause; of a worker that died a text whose first line says so
    return (lines[-1] if lines[0].startswith("\x1b") or "ray::" in lines[0] else lines[0])[:300]


# On a node


def _answer(work: Callable[[Task], Finished], task: Task, job: str) -> _Answer:
    _own_scratch()
    trouble = _SIDECAR.held(job)
    where = importlib.import_module("ray").util.get_node_ip_address()
    told = trouble and f"node {where} reads its shards directly: {trouble}"
    try:
        return _Answer(work(task), told)
    except ConfigError as error:
        return _Answer(
            StageRefused(
                f"node {where}: {error}",
                next_step="what --map names must be importable on each node: install it there, or run this from its folder by "
                "'ray job submit --working-dir . -- forebay stage …'",
            ),
            told,
        )
    except ForebayError as error:
        return _Answer(error, told)


def run_on_node(task: Task) -> Finished:
    """``run_task``, where the node sees the destination that the driver writes to."""
    if destination_of(task.destination).get(SPEC) is None:
        raise StageRefused(
            f"a node of the cluster does not see the stage at {task.destination}",
            next_step="DST must be the same place for all nodes: s3://…, or a folder that they share",
        )
    return run_task(task)


class _NodeSidecar:
    """The sidecar of the node, held for as long as this process lives, and looked for again if it has gone."""

    def __init__(self) -> None:
        self._launched: LaunchedSidecar | None = None
        self._named = os.environ.get("FOREBAY_URL")

    def held(self, job: str) -> str:
        """Have the loader of this process read through it; else say why not."""
        if self._launched is not None:
            if self._launched.hold is None or self._launched.hold.ping():
                return ""
            self._launched.close()
            self._launched = None
        os.environ.pop("FOREBAY_URL", None)
        environ = {**os.environ, "FOREBAY_JOB": job} | ({"FOREBAY_URL": self._named} if self._named else {})
        try:
            # By a process between, which ends: Ray kills the children of a worker that ends, and others may have joined by then.
            self._launched = join_or_start((), environ)
        except LaunchError as error:
            return str(error)
        os.environ["FOREBAY_URL"] = self._launched.endpoint
        return ""


_SIDECAR = _NodeSidecar()


@cache
def _own_scratch() -> int:
    """A folder for this process's scratch files, locked while it lives; what processes that were killed left on this node goes."""
    for left in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            _locked(left)
            shutil.rmtree(left)
    while True:
        mine = tempfile.mkdtemp(prefix=_SCRATCH)
        with suppress(OSError):  # another one that begins took it for left
            lock = _locked(Path(mine))
            os.stat(mine)
            tempfile.tempdir = mine
            return lock


def _locked(folder: Path) -> int:
    """The descriptor. Raises ``OSError`` where another process has it."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        raise
    return found
