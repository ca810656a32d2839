"""Which training run this process belongs to: one name for all ranks of it on this node, another for the next run.

A name that a person gives (torchrun's ``--rdzv-id=100``) and an allocation (``salloc``) outlive a run, and data may be replaced between
two: the second must not read what the first was told. So the process that launched the run belongs to the name, by its number and start
time; and torchrun's attempt: restarted workers share nothing with those before them, so they ask the origin as a new run does.
"""

from __future__ import annotations

import os
import socket
from typing import Mapping, Tuple

from forebay_proxy.wire.protocol.runfile import process_start_time
from forebay_proxy.wire.protocol.step_runs import run_step, step, told_apart

__all__ = ["launched_run", "own_run"]

_MOST_ANCESTORS = 64
_RUN_ID = "TORCHELASTIC_RUN_ID"


def launched_run(environ: Mapping[str, str]) -> Tuple[str, str]:
    """(name of the run, what tells this run from others of the name): all ranks of a run on this node find the same; ("", "") elsewhere.

    Several ranks of one torchrun are told apart by its agent. Several tasks of one ``srun`` have their step, the same on every node, and
    for later runs in that step the process that began the run.
    """
    shared = run_step(environ)
    if shared:
        return shared, told_apart(shared, environ, os.getpid())
    agent = _agent() if environ.get(_RUN_ID) and _count(environ.get("LOCAL_WORLD_SIZE", "")) > 1 else 0
    if agent:
        attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "")
        attempt = f"-{attempt}" if attempt.isdigit() and attempt != "0" else ""
        return _called(environ), f"{_process(agent)}{attempt}"
    return "", ""


def own_run(environ: Mapping[str, str]) -> Tuple[str, str]:
    """The same for a process that is alone on this node, or whose launcher says nothing: the process itself tells it from others."""
    return _called(environ), _process(os.getpid())


def _called(environ: Mapping[str, str]) -> str:
    run_id = environ.get(_RUN_ID, "none")  # torchrun's default id is the word none: every such job has it
    return step(environ) or (run_id if run_id not in ("", "none") else "") or socket.gethostname().partition(".")[0]


def _process(pid: int) -> str:
    return f"{pid}-{process_start_time(pid) or 0}"


def _agent() -> int:
    """The process that started the ranks: the nearest ancestor that was not started with their variables. A shell may lie between.

    0: it is outside of this process's namespace.
    """
    pid = os.getppid()
    for _ in range(_MOST_ANCESTORS):
        if not _is_of_a_rank(pid):
            break
        pid = _parent(pid)
    return pid


def _is_of_a_rank(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(text.startswith(_RUN_ID.encode() + b"=") for text in file.read().split(b"\0"))
    except OSError:
        return False


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])  # the command before it may hold spaces and parentheses
    except (OSError, ValueError, IndexError):
        return 0


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0
