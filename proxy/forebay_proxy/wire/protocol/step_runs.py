"""Which Slurm step is one training run, and which of the runs inside one step a process belongs to: the tasks of a step agree on that
through a file in the run directory.

The script of a step may start one run after the other in each of its tasks, and data may be replaced between two. So a run is joined while
a process of it lives, by whoever is not back from an ended one: a task whose process has ended begins the next run. stdlib only.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any, Mapping

from forebay_proxy.wire.protocol.runfile import private_directory, process_start_time, runtime_directory

__all__ = ["FILE_NAME", "run_step", "step", "told_apart"]

FILE_NAME = "forebay-steps.json"
_MAX_STEPS = 64  # of one user on one node that are remembered; a step that runs now is always among the last
_MAX_BYTES = 1 << 20
_SPECIAL = 0xFFFFFFF0  # from here on: the batch script, the shell of an `salloc`, and others that are no step of an srun


def step(environ: Mapping[str, str]) -> str:
    """``job.step`` inside a step of an ``srun``, ``job`` elsewhere in an allocation, "" outside of Slurm."""
    job, number = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    return f"{job}.{number}" if job and number.isdigit() and int(number) < _SPECIAL else job


def run_step(environ: Mapping[str, str]) -> str:
    """``job.step`` where the tasks of a step are one run, or one after the other (``told_apart`` says which), else "".

    A step of one task is none: it may be the shell of ``srun --pty``, in which one run is started after the other.
    """
    found = step(environ)
    return "" if environ.get("SLURM_STEP_NUM_TASKS") == "1" or "." not in found else found


def told_apart(step: str, environ: Mapping[str, str], pid: int) -> str:
    """What tells the run of process ``pid`` from earlier ones of ``step``: "" for the first, the same for all tasks that join a later one.

    Where nothing can be agreed on (no directory of ours, a full disk) the process itself: a name too many costs questions, one too few
    would hide that data was replaced.
    """
    holder = (pid, process_start_time(pid) or 0)
    alone = f"{holder[0]}-{holder[1]}"
    try:
        descriptor = os.open(_path(environ), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "r+b") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # given back as the file is closed
            steps = _read(file.read(_MAX_BYTES))
            if steps is None:
                steps, found = {}, _begun(alone)
            else:
                found = _joined(steps.pop(step, None), environ.get("SLURM_PROCID", ""), alone)
            found["tasks"].setdefault(environ.get("SLURM_PROCID", ""), []).append(holder)
            steps[step] = found
            _write(file, dict(list(steps.items())[-_MAX_STEPS:]))
            return str(found["told"])
    except OSError:
        return alone


def _joined(run: Any, task: str, alone: str) -> dict[str, Any]:
    """The run that lives and ``task`` has not come back from, else a new one. ``told``: see ``told_apart``."""
    if run is None:
        return _begun("")
    living = {name: [holder for holder in holders if _lives(holder)] for name, holders in run["tasks"].items()}
    if not any(living.values()) or living.get(task) == []:
        return _begun(alone)
    return {"told": run["told"], "tasks": living}


def _begun(told: str) -> dict[str, Any]:
    return {"told": told, "tasks": {}}


def _lives(holder: Any) -> bool:
    pid, start = holder
    return bool(start) and process_start_time(pid) == start


def _path(environ: Mapping[str, str]) -> str:
    """In the directory of the run file; made as the sidecar would. Raises ``OSError`` where there is none of ours."""
    directory = private_directory(environ)
    if directory is None:
        os.makedirs(runtime_directory({}), mode=0o700, exist_ok=True)
        directory = private_directory({})
    if directory is None:
        raise PermissionError(runtime_directory({}))
    return os.path.join(directory, FILE_NAME)


def _read(text: bytes) -> dict[str, Any] | None:
    """{step: its latest run}; None for what was not written whole: then no first run can be told from a later one."""
    try:
        steps = json.loads(text) if text else {}
        for run in steps.values():
            str(run["told"]), [(int(pid), int(start)) for holders in run["tasks"].values() for pid, start in holders]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return dict(steps)


def _write(file: Any, steps: Mapping[str, Any]) -> None:
    file.seek(0)
    file.write(json.dumps(steps).encode())
    file.truncate()  # after the bytes: what is torn in between is no JSON, and is seen to be none
